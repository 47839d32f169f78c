"""Reads an INetworkDefinition of TensorRT for RTX or TensorRT back, layer by layer.

Every attribute of every layer is read, and a class that has more than are known here is an error:
an attribute passed over could change what the network computes.
"""

import json
from collections.abc import Iterator
from enum import Enum
from importlib import import_module
from typing import Any

from llmc.builders.targets.tensorrt_interpreter.constants import read_constants
from llmc.builders.targets.tensorrt_interpreter.graph import Graph, Layer, TensorInfo
from llmc.errors import BuildError, UnsupportedError

ATTRIBUTES: dict[str, tuple[str, tuple[str, ...]]] = {
    "ACTIVATION": ("IActivationLayer", ("type", "alpha", "beta")),
    "CAST": ("ICastLayer", ("to_type",)),
    "CONCATENATION": ("IConcatenationLayer", ("axis",)),
    "CUMULATIVE": ("ICumulativeLayer", ("op", "exclusive", "reverse")),
    "DEQUANTIZE": ("IDequantizeLayer", ("axis", "block_shape", "to_type")),
    "DYNAMIC_QUANTIZE": (
        "IDynamicQuantizeLayer",
        ("axis", "block_shape", "block_size", "scale_type", "to_type"),
    ),
    "ELEMENTWISE": ("IElementWiseLayer", ("op",)),
    "FILL": ("IFillLayer", ("alpha", "beta", "operation", "shape", "to_type")),
    "GATHER": ("IGatherLayer", ("axis", "mode", "num_elementwise_dims")),
    "IDENTITY": ("IIdentityLayer", ()),
    "KV_CACHE_UPDATE": ("IKVCacheUpdateLayer", ("cache_mode", "update_form")),
    "MATRIX_MULTIPLY": ("IMatrixMultiplyLayer", ("op0", "op1")),
    "NORMALIZATION": ("INormalizationLayer", ("axes", "epsilon", "is_v2", "num_groups")),
    "ONE_HOT": ("IOneHotLayer", ("axis",)),
    "QUANTIZE": ("IQuantizeLayer", ("axis", "block_shape", "to_type")),
    "REDUCE": ("IReduceLayer", ("axes", "keep_dims", "op")),
    "ROTARY_EMBEDDING": ("IRotaryEmbeddingLayer", ("interleaved", "rotary_embedding_dim")),
    "SCATTER": ("IScatterLayer", ("axis", "mode")),
    "SELECT": ("ISelectLayer", ()),
    "SHAPE": ("IShapeLayer", ()),
    "SHUFFLE": (
        "IShuffleLayer",
        ("first_transpose", "reshape_dims", "second_transpose", "zero_is_placeholder"),
    ),
    "SLICE": ("ISliceLayer", ("axes", "mode", "shape", "start", "stride")),
    "SOFTMAX": ("ISoftMaxLayer", ("axes",)),
    "SQUEEZE": ("ISqueezeLayer", ()),
    "TOPK": ("ITopKLayer", ("axes", "indices_type", "k", "op")),
    "UNARY": ("IUnaryLayer", ("op",)),
    "UNSQUEEZE": ("IUnsqueezeLayer", ()),
    "DIST_COLLECTIVE": ("IDistCollectiveLayer", ("num_ranks",)),
}
"""Kind of a layer → its class and the attributes that say what it computes."""

_ATTENTION = ("norm_op", "causal_kind", "normalization_quantize_to_type",
              "query_form", "key_value_form")  # fmt: skip

_SEEN_OTHERWISE = {
    "is_alpha_beta_int64",  # what type the start and step of a fill were given in
    "update_lengths",  # an input of the layer, and only with packed updates, which are refused
    "mask", "key_value_lengths", "query_lengths", "normalization_quantize_scale",  # inputs too
    "causal",  # the older name of causal_kind
    "decomposable",  # whether kernels may be combined, not what is computed
}  # fmt: skip


def read_network(network: Any) -> Graph:
    """Return the graph of an INetworkDefinition; it refers to no memory of it.

    Raises: UnsupportedError naming every layer of a kind, or with an attribute, that is not known;
    BuildError for a placeholder without values.
    """
    trt = import_module(type(network).__module__.split(".")[0])
    layers: list[Layer] = []
    constants: list[Any] = []
    boundaries: dict[str, Any] = {}
    reasons: list[str] = []
    for layer in (network.get_layer(index) for index in range(network.num_layers)):
        kind, name = layer.type.name, layer.name
        if kind == "CONSTANT":
            layer.__class__ = trt.IConstantLayer
            constants.append(layer)
        elif kind == "ATTENTION_INPUT":
            boundaries[layer.get_output(0).name] = layer
        elif kind == "ATTENTION_OUTPUT":
            layers.append(_attention(trt, boundaries[layer.get_input(0).name], layer))
        elif kind not in ATTRIBUTES:
            reasons.append(f"{name}: a layer of kind {kind}")
        else:
            layer.__class__ = getattr(trt, ATTRIBUTES[kind][0])
            reasons += _unknown_attributes(trt, ATTRIBUTES[kind][0], ATTRIBUTES[kind][1], name)
            layers.append(_layer(kind, name, layer, _attributes(layer, ATTRIBUTES[kind][1], name)))
    if reasons:
        raise UnsupportedError("the interpreter cannot evaluate this network", reasons)
    inputs = {i.name: i for i in map(_info, map(network.get_input, range(network.num_inputs)))}
    outputs = {o.name: o for o in map(_info, map(network.get_output, range(network.num_outputs)))}
    values = read_constants(constants)
    ordered = tuple(_in_order(layers, {*values, *inputs}))
    return Graph(layers=ordered, inputs=inputs, outputs=outputs, constants=values)


def _attention(trt: Any, first: Any, last: Any) -> Layer:
    """Return the pair of boundary layers of an attention as the one layer they stand for."""
    last.__class__ = trt.IAttentionOutputLayer
    attention = last.attention
    reasons = list(_unknown_attributes(trt, "IAttention", _ATTENTION, attention.name))
    if reasons:
        raise UnsupportedError("the interpreter cannot evaluate this network", reasons)
    found = _layer(
        "ATTENTION", attention.name, first, _attributes(attention, _ATTENTION, first.name)
    )
    return Layer(
        kind=found.kind,
        name=found.name,
        inputs=found.inputs,
        outputs=(_info(last.get_output(0)),),
        attrs=found.attrs,
    )


def _layer(kind: str, name: str, layer: Any, attrs: dict[str, Any]) -> Layer:
    if kind == "DIST_COLLECTIVE":
        attrs = attrs | _collective(layer, name)
    inputs = (layer.get_input(index) for index in range(layer.num_inputs))
    outputs = (layer.get_output(index) for index in range(layer.num_outputs))
    return Layer(
        kind=kind,
        name=name,
        inputs=tuple(None if tensor is None else tensor.name for tensor in inputs),
        outputs=tuple(_info(tensor) for tensor in outputs),
        attrs=attrs,
    )


def _collective(layer: Any, name: str) -> dict[str, Any]:
    """Return operation and group of a collective, which TensorRT has no getters for.

    They come from the layer's metadata, {"collective": …, "group": […]}; whether they fit the
    layer's shapes and number of ranks is checked when it runs.
    """
    try:
        found = json.loads(layer.metadata)
        return {"collective": str(found["collective"]), "group": tuple(map(int, found["group"]))}
    except (json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise UnsupportedError(
            f"{name}: metadata {layer.metadata!r}, expected the collective and its group as JSON"
        ) from error


def _attributes(layer: Any, names: tuple[str, ...], where: str) -> dict[str, Any]:
    return {name: _plain(layer, name, where) for name in names}


def _plain(layer: Any, name: str, where: str) -> Any:
    """Return an attribute as a number, a name, a tuple or None."""
    try:
        value = getattr(layer, name)
    except RuntimeError:  # how an unset block_shape is told
        assert name == "block_shape", (where, name)
        return None
    if value is None or isinstance(value, int | float) and not isinstance(value, Enum):
        return value
    if hasattr(value, "name"):
        return value.name
    return tuple(value)


def _unknown_attributes(
    trt: Any, class_name: str, known: tuple[str, ...], where: str
) -> Iterator[str]:
    base = set(dir(trt.ILayer))
    found = {
        name
        for name in dir(getattr(trt, class_name))
        if name not in base and not name.startswith("_")
    }
    for name in sorted(found - set(known) - _SEEN_OTHERWISE - _METHODS):
        yield f"{where}: {class_name} has the attribute {name!r}, which is not known"


_METHODS = {"get_input", "get_output", "set_input", "num_inputs", "num_outputs", "name", "metadata"}


def _info(tensor: Any) -> TensorInfo:
    try:
        shape = tuple(tensor.shape)
    except RuntimeError as error:
        raise BuildError(f"{tensor.name}: TensorRT cannot tell its shape: {error}") from error
    return TensorInfo(name=tensor.name, dtype=tensor.dtype.name, shape=shape)


def _in_order(layers: list[Layer], known: set[str]) -> Iterator[Layer]:
    """Yield each layer after those it reads; TensorRT lets inputs be set to later layers."""
    waiting = layers
    while waiting:
        later = []
        for layer in waiting:
            if all(name is None or name in known for name in layer.inputs):
                written = {output.name for output in layer.outputs}
                if written & known:
                    raise BuildError(f"{layer.name}: writes {written & known} a second time")
                known |= written
                yield layer
            else:
                later.append(layer)
        if len(later) == len(waiting):
            missing = ", ".join(layer.name for layer in later[:3])
            raise BuildError(f"{missing}: reads a tensor that nothing writes")
        waiting = later
