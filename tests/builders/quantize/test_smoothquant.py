"""SmoothQuant: the formulas of NVIDIA's converter, derived again from the activations."""

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from llmc.builders.quantize import ALGORITHMS
from llmc.builders.quantize.site import Settings, Site, Tensors
from llmc.builders.quantize.smoothquant import ALPHAS, fold, quantize
from tests.builders.quantize.tiny_sites import make_site

PLUGINS = [algo for algo in ALGORITHMS if algo.endswith("_PLUGIN")]
FC, PROJ = "transformer.layers.0.mlp.fc", "transformer.layers.0.mlp.proj"
NORM = "transformer.layers.0.post_layernorm"


def smoother_of(site: Site, alpha: float) -> npt.NDArray[np.float64]:
    inputs = np.abs(site.stats.rows).max(axis=0).astype(float)
    weights = np.max([np.abs(module.weight).max(axis=0) for module in site.modules], axis=0)
    smoother: npt.NDArray[np.float64] = inputs**alpha / weights.astype(float) ** (1 - alpha)
    return smoother


def product(site: Site, tensors: Tensors, algo: str) -> npt.NDArray[Any]:
    """Return fc's output as the engine computes it, integers times scales."""
    x: npt.NDArray[Any] = site.stats.rows
    if site.norm_weight is None:
        x = x / tensors[f"{PROJ}.smoother"]
        name, to_int = PROJ, "transformer.layers.0.mlp.quantization_scaling_factor"
    else:
        # The norm's new weight does the division.
        x = x / site.norm_weight * tensors[f"{NORM}.weight"].astype(np.float32)
        name, to_int = FC, f"{NORM}.scale_to_int"
    if "PER_TOKEN" in algo:
        scale = np.abs(x).max(axis=1, keepdims=True) / 127
    else:
        scale = 1 / tensors[to_int]
    integers = np.clip(np.rint(x / scale), -128, 127)
    result: npt.NDArray[Any] = integers @ tensors[f"{name}.weight"].astype(np.float32).T
    result = result * tensors[f"{name}.per_channel_scale"]
    result *= scale if "PER_TOKEN" in algo else tensors[f"{name}.act_scale"]
    return result


@pytest.mark.parametrize("alpha", [0.3, 0.5, 0.8])
def test_norm_takes_the_smoother(alpha: float) -> None:
    site = make_site()
    assert site.norm_weight is not None
    settings = Settings(algo="W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN", dtype="float32", alpha=alpha)
    tensors = quantize(site, settings)
    wanted = site.norm_weight / smoother_of(site, alpha)
    np.testing.assert_allclose(tensors[f"{NORM}.weight"], wanted, rtol=1e-5)
    smoothed = site.modules[0].weight * smoother_of(site, alpha)
    scale = np.abs(smoothed).max(axis=1) / 127
    np.testing.assert_allclose(tensors[f"{FC}.per_channel_scale"][0], scale, rtol=1e-5)
    wrong = tensors[f"{FC}.weight"] != np.clip(np.rint(smoothed / scale[:, None]), -127, 127)
    assert wrong.mean() < 1e-3  # halves that fall the other way


@pytest.mark.parametrize("algo", PLUGINS)
@pytest.mark.parametrize("normed", [True, False])
def test_static_scales_give_back_the_product(algo: str, normed: bool) -> None:
    if normed:
        site = make_site()
    else:
        site = make_site((PROJ,), norm=None)
    tensors = quantize(site, Settings(algo=algo, dtype="bfloat16"))
    exact = site.stats.rows @ site.modules[0].weight.T
    error = np.linalg.norm(product(site, tensors, algo) - exact) / np.linalg.norm(exact)
    # INT8 inputs with one scale for all: noise of 1/127/sqrt(12) of the largest, 5 to 10 sigma.
    assert error < 0.03
    if normed:
        assert tensors[f"{NORM}.weight"].dtype == ml_dtypes.bfloat16
        assert "smoother" not in {name.rpartition(".")[2] for name in tensors}


@pytest.mark.parametrize("algo", PLUGINS)
def test_static_scales_are_nvidias(algo: str) -> None:
    site = make_site((PROJ,), norm=None)
    tensors = quantize(site, Settings(algo=algo, dtype="float32", alpha=0.5))
    smoother = smoother_of(site, 0.5)
    np.testing.assert_allclose(tensors[f"{PROJ}.smoother"][0], smoother, rtol=1e-5)
    smoothed = site.modules[0].weight * smoother
    scale = np.abs(smoothed).max(axis=1) / 127
    if "PER_CHANNEL" not in algo:
        scale = scale.max(keepdims=True)
    if "PER_TOKEN" not in algo:
        inputs = (np.abs(site.stats.rows) / smoother).max() / 127
        outputs = np.abs(site.stats.rows @ site.modules[0].weight.T).max() / 127
        to_int = tensors["transformer.layers.0.mlp.quantization_scaling_factor"]
        np.testing.assert_allclose(to_int, 1 / inputs, rtol=1e-5)
        np.testing.assert_allclose(tensors[f"{PROJ}.act_scale"], outputs, rtol=1e-5)
        scale = scale * inputs / outputs
    np.testing.assert_allclose(tensors[f"{PROJ}.per_channel_scale"][0], scale, rtol=1e-5)


@pytest.mark.parametrize("algo", PLUGINS)
def test_alpha_is_what_changes_the_output_least(algo: str) -> None:
    """Of outputs as the engine computes them; the search sees half the rows."""
    site = make_site((PROJ,), norm=None)
    exact = site.stats.rows @ site.modules[0].weight.T

    def error_at(alpha: float | None) -> float:
        tensors = quantize(site, Settings(algo=algo, dtype="float32", alpha=alpha))
        return float(np.linalg.norm(product(site, tensors, algo) - exact))

    errors = [error_at(alpha) for alpha in ALPHAS]
    assert error_at(None) <= 1.02 * min(errors) < 0.8 * max(errors)


@pytest.mark.parametrize("algo", PLUGINS)
def test_weights_are_not_scaled_where_inputs_cannot_be(algo: str) -> None:
    """fc's input when its norm is also read by qkv, or is no RMSNorm: no tensor divides it."""
    site = make_site((FC,), norm=None)
    tensors = quantize(site, Settings(algo=algo, dtype="float32", alpha=0.5))
    x: npt.NDArray[Any] = site.stats.rows
    if "PER_TOKEN" in algo:
        scale = np.abs(x).max(axis=1, keepdims=True) / 127
    else:
        scale = 1 / tensors[f"{NORM}.scale_to_int"]
    result = np.rint(x / scale) @ tensors[f"{FC}.weight"].astype(np.float32).T
    result = result * tensors[f"{FC}.per_channel_scale"]
    result *= scale if "PER_TOKEN" in algo else tensors[f"{FC}.act_scale"]
    exact = x @ site.modules[0].weight.T
    assert np.linalg.norm(result - exact) < 0.05 * np.linalg.norm(exact)
    assert set(tensors) <= {
        *(f"{FC}.{role}" for role in ("weight", "per_channel_scale", "act_scale")),
        f"{NORM}.scale_to_int",
    }


def test_q_k_and_v_have_a_scale_each() -> None:
    name = "transformer.layers.0.attention.qkv"
    norm = "transformer.layers.0.input_layernorm"
    site = make_site((name,), num_out=64, parts=(32, 16, 16), norm=norm)
    algo = "W8A8_SQ_PER_TENSOR_PER_TOKEN_PLUGIN"
    scale = quantize(site, Settings(algo=algo, dtype="float32"))[f"{name}.per_channel_scale"][0]
    assert len(scale) == 64 and len(np.unique(scale)) == 3
    assert (scale[:32] == scale[0]).all() and (scale[32:48] == scale[32]).all()


def test_modelopt_form_scales_inputs_by_the_inverse() -> None:
    site = make_site()
    tensors = quantize(site, Settings(algo="W8A8_SQ_PER_CHANNEL", dtype="float16", alpha=1.0))
    prequant = tensors[f"{FC}.prequant_scaling_factor"]
    np.testing.assert_allclose(prequant, 1 / site.stats.amax, rtol=1e-3)
    assert (prequant == tensors["transformer.layers.0.mlp.gate.prequant_scaling_factor"]).all()
    # With alpha 1 every channel's largest input becomes 1.
    np.testing.assert_allclose(tensors[f"{FC}.activation_scaling_factor"], [1 / 127], rtol=1e-3)
    assert f"{NORM}.weight" not in tensors


def test_folding_leaves_no_rounding_error() -> None:
    generator = np.random.default_rng(3)
    norm = generator.standard_normal(256).astype(np.float32)
    norm[:3] = 0
    scale = np.exp(generator.standard_normal(256)).astype(np.float32)
    folded, left = fold(norm, scale, "bfloat16")
    assert (folded == folded.astype(ml_dtypes.bfloat16).astype(np.float32)).all()
    np.testing.assert_allclose(folded * left, norm, rtol=1e-6)
    np.testing.assert_array_equal(left[:3], scale[:3])
    assert np.abs(left / scale - 1)[3:].max() < 1 / 128
