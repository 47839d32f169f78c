"""Each kind of layer against its formula in torch, and what is refused."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from llmc.builders.targets.tensorrt_interpreter.reader import read_network
from llmc.errors import BuildError, UnsupportedError
from tests.builders.targets.tensorrt_interpreter.small_networks import (
    SmallNetwork,
    run_layer,
    trt,
)

RNG = torch.Generator().manual_seed(0)


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=RNG)


def int64(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


@pytest.mark.parametrize(
    ("operation", "formula"),
    [
        ("SUM", lambda a, b: a + b),
        ("SUB", lambda a, b: a - b),
        ("PROD", lambda a, b: a * b),
        ("DIV", lambda a, b: a / b),
        ("MAX", torch.maximum),
        ("MIN", torch.minimum),
        ("LESS", lambda a, b: a < b),
        ("GREATER", lambda a, b: a > b),
    ],
)
def test_elementwise_broadcasts(operation: str, formula: object) -> None:
    a, b = random(2, 3, 4), random(1, 3, 1)
    op = getattr(trt.ElementWiseOperation, operation)
    result = run_layer(
        lambda n, x, y: n.definition.add_elementwise(x, y, op), (a, "FLOAT"), (b, "FLOAT")
    )
    assert callable(formula)
    torch.testing.assert_close(result, formula(a, b))


@pytest.mark.parametrize("operation", ["FLOOR_DIV", "DIV", "SUB"])
def test_integer_division_rounds_as_named(operation: str) -> None:
    a = torch.tensor([-7, 7, 9, -9], dtype=torch.int32)
    b = torch.tensor([2, 2, -4, -4], dtype=torch.int32)
    wanted = {"FLOOR_DIV": [-4, 3, -3, 2], "DIV": [-3, 3, -2, 2], "SUB": [-9, 5, 13, -5]}
    op = getattr(trt.ElementWiseOperation, operation)
    result = run_layer(
        lambda n, x, y: n.definition.add_elementwise(x, y, op), (a, "INT32"), (b, "INT32")
    )
    assert result.tolist() == wanted[operation]


@pytest.mark.parametrize(
    ("operation", "formula"),
    [
        ("EXP", torch.exp),
        ("SQRT", torch.sqrt),
        ("RECIP", lambda x: 1 / x),
        ("ERF", torch.erf),
        ("NEG", lambda x: -x),
        ("LOG", torch.log),
    ],
)
def test_unary(operation: str, formula: object) -> None:
    x = random(3, 5).abs() + 0.1
    op = getattr(trt.UnaryOperation, operation)
    result = run_layer(lambda n, t: n.definition.add_unary(t, op), (x, "FLOAT"))
    assert callable(formula)
    torch.testing.assert_close(result, formula(x))


@pytest.mark.parametrize(
    ("kind", "formula"),
    [
        ("SIGMOID", lambda x: 1 / (1 + torch.exp(-x))),
        ("RELU", lambda x: x * (x > 0)),
        ("TANH", torch.tanh),
        ("GELU_ERF", lambda x: x * 0.5 * (1 + torch.erf(x / 2**0.5))),
        (
            "GELU_TANH",
            lambda x: x * 0.5 * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3))),
        ),
    ],
)
def test_activation(kind: str, formula: object) -> None:
    x = random(4, 6)
    found = getattr(trt.ActivationType, kind)
    result = run_layer(lambda n, t: n.definition.add_activation(t, found), (x, "FLOAT"))
    assert callable(formula)
    torch.testing.assert_close(result, formula(x))


@pytest.mark.parametrize(("operation", "name"), [("AVG", "mean"), ("SUM", "sum"), ("MAX", "amax")])
def test_reduce_keeps_axes_when_told(operation: str, name: str) -> None:
    x = random(2, 3, 4)
    op = getattr(trt.ReduceOperation, operation)
    kept = run_layer(lambda n, t: n.definition.add_reduce(t, op, 0b100, True), (x, "FLOAT"))
    torch.testing.assert_close(kept, getattr(x, name)(-1, keepdim=True))
    both = run_layer(lambda n, t: n.definition.add_reduce(t, op, 0b110, False), (x, "FLOAT"))
    torch.testing.assert_close(both, getattr(x, name)((1, 2)))


def test_matrix_multiply_transposes() -> None:
    a, b = random(2, 3, 4), random(1, 5, 4)
    op = trt.MatrixOperation
    result = run_layer(
        lambda n, x, y: n.definition.add_matrix_multiply(x, op.NONE, y, op.TRANSPOSE),
        (a, "FLOAT"),
        (b, "FLOAT"),
    )
    torch.testing.assert_close(result, torch.einsum("bij,kj->bik", a, b[0]))


def test_softmax_of_an_axis() -> None:
    x = random(2, 5, 3)

    def make(network: SmallNetwork, tensor: object) -> object:
        layer = network.definition.add_softmax(tensor)
        layer.axes = 0b010
        return layer

    torch.testing.assert_close(
        run_layer(make, (x, "FLOAT")), torch.exp(x) / torch.exp(x).sum(1, True)
    )


def test_shuffle_permutes_reshapes_permutes() -> None:
    x = random(2, 6, 4)

    def make(network: SmallNetwork, tensor: object) -> object:
        layer = network.definition.add_shuffle(tensor)
        layer.first_transpose = (0, 2, 1)
        layer.reshape_dims = (0, 0, 3, 2)
        layer.second_transpose = (0, 3, 1, 2)
        return layer

    wanted = x.transpose(1, 2).reshape(2, 4, 3, 2).permute(0, 3, 1, 2)
    assert torch.equal(run_layer(make, (x, "FLOAT")), wanted)


def test_shuffle_to_a_computed_shape() -> None:
    x, like = random(2, 6), random(3, 4)

    def make(network: SmallNetwork, tensor: object, other: object) -> object:
        layer = network.definition.add_shuffle(tensor)
        layer.set_input(1, network.definition.add_shape(other).get_output(0))
        return layer

    assert torch.equal(run_layer(make, (x, "FLOAT"), (like, "FLOAT")), x.reshape(3, 4))


def test_gather_whole_rows_batched_and_elements() -> None:
    table, ids = random(7, 3), torch.tensor([[1, 6], [0, 0]], dtype=torch.int32)
    rows = run_layer(
        lambda n, t, i: n.definition.add_gather(t, i, 0), (table, "FLOAT"), (ids, "INT32")
    )
    assert torch.equal(rows, table[ids.long()])
    x = random(2, 7, 3)

    def batched(network: SmallNetwork, tensor: object, indices: object) -> object:
        layer = network.definition.add_gather(tensor, indices, 1)
        layer.num_elementwise_dims = 1
        return layer

    found = run_layer(batched, (x, "FLOAT"), (ids, "INT32"))
    assert torch.equal(found, torch.stack([x[0, [1, 6]], x[1, [0, 0]]]))

    def element(network: SmallNetwork, tensor: object, indices: object) -> object:
        layer = network.definition.add_gather_v2(tensor, indices, trt.GatherMode.ELEMENT)
        layer.axis = 1
        return layer

    picked = run_layer(element, (random(2, 7) * 0 + torch.arange(7.0), "FLOAT"), (ids, "INT32"))
    assert torch.equal(picked, ids.float())


def test_gather_out_of_range_is_an_error() -> None:
    ids = torch.tensor([7], dtype=torch.int32)
    with pytest.raises(BuildError, match="GATHER at 7 to 7 of an axis of 7"):
        run_layer(
            lambda n, t, i: n.definition.add_gather(t, i, 0),
            (random(7, 3), "FLOAT"),
            (ids, "INT32"),
        )


def test_slice_static_strided_and_by_tensors() -> None:
    x = random(4, 9)
    fixed = run_layer(lambda n, t: n.definition.add_slice(t, (1, 0), (2, 3), (1, 3)), (x, "FLOAT"))
    assert torch.equal(fixed, x[1:3, ::3])

    def dynamic(network: SmallNetwork, tensor: object, like: object) -> object:
        layer = network.definition.add_slice(tensor, (0, 2), (0, 0), (1, 1))
        layer.set_input(2, network.definition.add_shape(like).get_output(0))
        return layer

    found = run_layer(dynamic, (x, "FLOAT"), (random(3, 5), "FLOAT"))
    assert torch.equal(found, x[:3, 2:7])


def test_concatenation_squeeze_and_unsqueeze() -> None:
    a, b = random(2, 3), random(2, 5)

    def concatenate(network: SmallNetwork, x: object, y: object) -> object:
        layer = network.definition.add_concatenation([x, y])
        layer.axis = 1
        return layer

    assert torch.equal(run_layer(concatenate, (a, "FLOAT"), (b, "FLOAT")), torch.cat([a, b], 1))
    wide = run_layer(
        lambda n, t: n.definition.add_unsqueeze(t, n.constant(int64(0, 2), "INT64")), (a, "FLOAT")
    )
    assert wide.shape == (1, 2, 1, 3)
    narrow = run_layer(
        lambda n, t: n.definition.add_squeeze(t, n.constant(int64(0), "INT64")),
        (random(1, 4), "FLOAT"),
    )
    assert narrow.shape == (4,)


def test_fill_counts() -> None:
    def make(network: SmallNetwork) -> object:
        layer = network.definition.add_fill((5,), trt.FillOperation.LINSPACE, trt.int32)
        layer.set_input(1, network.constant(torch.tensor(3, dtype=torch.int32), "INT32"))
        layer.set_input(2, network.constant(torch.tensor([2], dtype=torch.int32), "INT32"))
        return layer

    assert run_layer(make).tolist() == [3, 5, 7, 9, 11]


def test_select_and_cast() -> None:
    x = torch.tensor([-1.5, 0.0, 2.7])

    def make(network: SmallNetwork, tensor: object) -> object:
        zero = network.constant(torch.zeros(1), "FLOAT")
        positive = network.definition.add_elementwise(
            tensor, zero, trt.ElementWiseOperation.GREATER
        ).get_output(0)
        chosen = network.definition.add_select(positive, tensor, zero).get_output(0)
        return network.definition.add_cast(chosen, trt.int32)

    assert run_layer(make, (x, "FLOAT")).tolist() == [0, 0, 2]


def test_topk_and_one_hot_and_scatter() -> None:
    x = torch.tensor([[1.0, 5.0, 3.0, 5.0]])
    top = trt.TopKOperation.MAX
    values = run_layer(lambda n, t: n.definition.add_topk(t, top, 3, 0b10), (x, "FLOAT"))
    assert values.tolist() == [[5.0, 5.0, 3.0]]
    ids = torch.tensor([2, 0], dtype=torch.int32)

    def one_hot(network: SmallNetwork, indices: object) -> object:
        depth = network.constant(torch.tensor(3, dtype=torch.int32), "INT32")
        values = network.constant(torch.tensor([0.0, 1.0]), "FLOAT")
        return network.definition.add_one_hot(indices, values, depth, -1)

    assert run_layer(one_hot, (ids, "INT32")).tolist() == [[0, 0, 1], [1, 0, 0]]

    def scatter(network: SmallNetwork, t: object, i: object, u: object) -> object:
        layer = network.definition.add_scatter(t, i, u, trt.ScatterMode.ELEMENT)
        layer.axis = 1
        return layer

    places = torch.tensor([[0, 3]], dtype=torch.int32)
    written = run_layer(
        scatter, (x, "FLOAT"), (places, "INT32"), (torch.tensor([[7.0, 8.0]]), "FLOAT")
    )
    assert written.tolist() == [[7.0, 5.0, 3.0, 8.0]]


def test_normalization_subtracts_the_mean() -> None:
    x, scale, bias = random(2, 3, 8) + 2, random(1, 1, 8), random(1, 1, 8)

    def make(network: SmallNetwork, tensor: object) -> object:
        layer = network.definition.add_normalization_v2(
            tensor, network.constant(scale, "FLOAT"), network.constant(bias, "FLOAT"), 0b100
        )
        layer.epsilon = 1e-3
        return layer

    wanted = functional.layer_norm(x, (8,), scale[0, 0], bias[0, 0], 1e-3)
    torch.testing.assert_close(run_layer(make, (x, "FLOAT")), wanted)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("rotary", [8, 4])
def test_rotary_embedding(interleaved: bool, rotary: int) -> None:
    """Against complex numbers: a pair turned by its position's angle."""
    x = random(2, 3, 5, 8)
    positions = torch.tensor([[0, 1, 2, 3, 4], [4, 5, 6, 7, 8]], dtype=torch.int32)
    angles = torch.arange(10.0)[:, None] / 10.0 ** (torch.arange(rotary // 2) / (rotary // 2))

    def make(network: SmallNetwork, tensor: object, places: object) -> object:
        layer = network.definition.add_rotary_embedding(
            tensor,
            network.constant(angles.cos(), "FLOAT"),
            network.constant(angles.sin(), "FLOAT"),
            interleaved,
            rotary,
        )
        layer.set_input(3, places)
        return layer

    turned, half = x[..., :rotary], rotary // 2
    pairs = turned.reshape(2, 3, 5, half, 2)
    if not interleaved:
        pairs = turned.reshape(2, 3, 5, 2, half).mT
    turn = torch.polar(torch.ones(()), angles[positions.long()])[:, None]
    result = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * turn)
    flat = result.flatten(-2) if interleaved else result.mT.flatten(-2)
    wanted = torch.cat([flat, x[..., rotary:]], -1)
    torch.testing.assert_close(run_layer(make, (x, "FLOAT"), (positions, "INT32")), wanted)


def test_typed_evaluation_rounds_and_ideal_does_not() -> None:
    x = torch.tensor([1.0 + 2**-12])

    def make(network: SmallNetwork, tensor: object) -> object:
        return network.definition.add_cast(tensor, trt.float16)

    assert run_layer(make, (x, "FLOAT"), mode="ideal").item() == 1.0 + 2**-12
    assert run_layer(make, (x, "FLOAT"), mode="typed").item() == 1.0


def test_an_unknown_layer_is_named() -> None:
    network = SmallNetwork()
    layer = network.definition.add_non_zero(network.input("x", "FLOAT", 3))
    layer.name = "what is this"
    network.output(layer.get_output(0), "result")
    with pytest.raises(UnsupportedError, match="what is this: a layer of kind NON_ZERO"):
        read_network(network.definition)


def test_an_unknown_attribute_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A newer TensorRT's class has more than is read."""
    monkeypatch.setattr(trt.ISoftMaxLayer, "temperature", 2.0, raising=False)
    with pytest.raises(UnsupportedError, match="ISoftMaxLayer has the attribute 'temperature'"):
        run_layer(lambda n, t: n.definition.add_softmax(t), (random(2, 3), "FLOAT"))


def test_an_attribute_value_without_a_formula_is_named() -> None:
    kind = trt.ActivationType.HARD_SIGMOID
    with pytest.raises(UnsupportedError, match="ACTIVATION with type HARD_SIGMOID"):
        run_layer(lambda n, t: n.definition.add_activation(t, kind), (random(2), "FLOAT"))


def test_a_placeholder_has_nothing_to_evaluate() -> None:
    network = SmallNetwork()
    for name in ("lm_head", "ln_f"):
        layer = network.definition.add_constant((4,), trt.Weights(trt.float16, 0, 4))
        layer.name = name
        network.output(layer.get_output(0), f"{name}.weight")
    with pytest.raises(BuildError, match="lm_head: a placeholder without values"):
        read_network(network.definition)


def test_constants_of_every_type() -> None:
    network = SmallNetwork()
    values = torch.tensor([[0.5, -2.0, 3.0, 0.0]])
    made = {
        "FLOAT": values,
        "HALF": values.half(),
        "BF16": values.bfloat16(),
        "FP8": values.to(torch.float8_e4m3fn),
        "INT32": values.int(),
        "INT64": values.long(),
        "INT8": values.to(torch.int8),
        "FP4": torch.from_numpy(np.array([[0xC1, 0x05]], np.uint8)),
        "INT4": torch.from_numpy(np.array([[0xE0, 0x03]], np.uint8)),
    }
    for dtype, tensor in made.items():
        network.output(network.constant(tensor, dtype), dtype)
    found = network.run({})
    for dtype in ("FLOAT", "HALF", "BF16", "FP8", "FP4"):
        assert found[dtype].tolist() == values.tolist(), dtype
    for dtype in ("INT32", "INT64", "INT8", "INT4"):
        assert found[dtype].tolist() == [[0, -2, 3, 0]], dtype
