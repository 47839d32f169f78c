"""Which quantizations TensorRT-LLM has no engine for, and why.

What merely cannot be split over the ranks is `llmc.checkpoint.unsplittable`'s to say.

Sources, of NVIDIA/TensorRT-LLM 0.17: [layers] tensorrt_llm/quantization/layers.py,
[functional] tensorrt_llm/quantization/functional.py, [quantize] tensorrt_llm/quantization/
quantize.py, [moe] tensorrt_llm/layers/moe.py, [plugin] cpp/tensorrt_llm/plugins/
weightOnly{,Groupwise}QuantMatmulPlugin. For NVFP4, of 1.x: tensorrt_llm/quantization/
quantize_by_modelopt.py (KV_QUANT_CFG_CHOICES), [modeling] tensorrt_llm/models/modeling_utils.py.
"""

from collections.abc import Collection, Iterator
from typing import Any

from llmc.checkpoint.config import CheckpointConfig
from llmc.checkpoint.linears import Linear, distinct_linears, layer_linears
from llmc.checkpoint.quantization import MIXED_PRECISION, Quantization
from llmc.checkpoint.schema import unsplittable
from llmc.quant import FORMATS
from llmc.quant.format import QuantFormat, load_format
from llmc.quant.layouts import LAYOUTS, MULTIPLE

KV_CACHE_ALGOS = ("INT8", "FP8")
_FIELDS = ("group_size", "pre_quant_scale", "has_zero_point")


def forbidden(config: CheckpointConfig) -> list[str]:
    """Return every reason why `config.quantization` and what it meets cannot be; empty if none."""
    quantization = config.quantization
    algo, kv_algo = quantization.quant_algo, quantization.kv_cache_quant_algo
    reasons = []
    if kv_algo is not None and kv_algo not in KV_CACHE_ALGOS:
        known = ", ".join(KV_CACHE_ALGOS)
        reasons.append(f"kv_cache_quant_algo {kv_algo!r}, expected one of {known}")
    if algo is None:
        return reasons + (["layout: nothing is quantized"] if config.layout else [])
    if algo not in (MIXED_PRECISION, *FORMATS):
        return [*reasons, f"quant_algo {algo!r}, expected one of {', '.join(FORMATS)}"]
    if quantization.use_meta_recipe:
        reasons.append("use_meta_recipe True, expected False; exclude modules by name")
    clamp = quantization.clamp_val
    if clamp is not None and (clamp[0] != -clamp[1] or clamp[1] <= 0):
        reasons.append(f"clamp_val {list(clamp)}, expected a negative and a positive number alike")
    if algo == MIXED_PRECISION:
        reasons += _mixture_reasons(config)
        chosen: Collection[Quantization] = quantization.quantized_layers.values()
    else:
        reasons += _exclusion_reasons(config, load_format(algo))
        chosen = (quantization,)
    for one in dict.fromkeys((item.quant_algo, _fields(item)) for item in chosen):
        form = load_format(str(one[0]))
        reasons += _field_reasons(config, form, dict(one[1]))
        reasons += _experts_reasons(config, form)
        if form.algo == "NVFP4" and kv_algo == "INT8":
            reasons.append("NVFP4 with an INT8 KV cache: TensorRT-LLM knows FP8 only beside NVFP4")
    reasons += _layout_reasons(config, {str(item.quant_algo) for item in chosen})
    if not reasons and not unsplittable(config):
        for linear in distinct_linears(config):
            reasons += _size_reasons(config, linear)
    return reasons


def _fields(quantization: Quantization) -> tuple[tuple[str, Any], ...]:
    return tuple((key, getattr(quantization, key)) for key in _FIELDS)


def _field_reasons(
    config: CheckpointConfig, form: QuantFormat, fields: dict[str, Any]
) -> Iterator[str]:
    for key in ("pre_quant_scale", "has_zero_point"):
        found, wanted = fields[key], form.config.get(key, False)
        if found != wanted:
            yield f"{form.algo}: {key} {found}, expected {wanted}"
    if form.group_sizes and fields["group_size"] not in form.group_sizes:
        # [functional] validate_group_size; [plugin] has kernels for 64 and 128.
        sizes = " or ".join(map(str, form.group_sizes))
        yield f"{form.algo}: group_size {fields['group_size']}, expected {sizes}"
    packs = form.granularity == "per_group" and form.algo != "NVFP4"
    packs |= form.needs_layout and config.layout is not None
    if packs and config.dtype == "float32":
        # [plugin] takes half or bfloat16 activations.
        yield f"{form.algo}: dtype float32, expected float16 or bfloat16"


def _mixture_reasons(config: CheckpointConfig) -> Iterator[str]:
    """Say what a quantization by module cannot be."""
    layers = config.quantization.quantized_layers
    if not layers:
        yield f"{MIXED_PRECISION}: quant_cfg.json names no module"
    linears = [
        linear.name
        for layer in range(config.arch.num_hidden_layers)
        for linear in layer_linears(config.arch, layer)
    ]
    for module in layers.keys() - {*linears}:
        yield f"{MIXED_PRECISION}: {module} is no linear module of a layer"
    for module, layer in layers.items():
        if _takes_whole_layers(str(layer.quant_algo)):
            # [quantize] these replace attention and MLP, not a linear module in them.
            yield f"{module}: {layer.quant_algo} cannot be chosen by module"
    for fc in (name for name in linears if name.endswith(".fc")):
        gate = fc.removesuffix("fc") + "gate"
        if gate in linears and layers.get(fc) != layers.get(gate):
            # 0.17 tensorrt_llm/models/modeling_utils.py, fuse_gate_mlp: one product for both.
            yield f"{fc} and {gate}: quantized differently, expected alike"
    if config.mapping.pp_size > 1:
        # [quantize] looks modules up by the name they have within their stage.
        yield f"{MIXED_PRECISION} with pp_size {config.mapping.pp_size}, expected 1"


def _takes_whole_layers(algo: str) -> bool:
    return algo.endswith("_PLUGIN") or algo == "FP8_PER_CHANNEL_PER_TOKEN"


def _layout_reasons(config: CheckpointConfig, algos: set[str]) -> Iterator[str]:
    forms = [load_format(algo) for algo in sorted(algos)]
    known = ", ".join(LAYOUTS)
    if config.layout is not None and config.layout not in LAYOUTS:
        yield f"layout {config.layout!r}, expected one of {known}"
    elif config.layout is not None and not any(form.needs_layout for form in forms):
        names = " and ".join(form.algo for form in forms)
        yield f"layout {config.layout!r}: {names} is the same for every GPU; leave it out"
    for form in forms if config.layout is None else ():
        if form.needs_layout and form.in_checkpoint == "quantized":
            yield f"{form.algo} has no portable form: name a layout, one of {known}"


def _experts_reasons(config: CheckpointConfig, form: QuantFormat) -> Iterator[str]:
    if config.arch.moe is None:
        return
    # [moe] MixtureOfExperts: weight-only per channel and FP8 per tensor. Its NVFP4 of 1.x is for
    # models in Hugging Face's form: of a checkpoint [modeling] preprocess_weights interleaves block
    # scales of two axes, and those of stacked experts have three.
    if form.algo not in ("W8A16", "W4A16", "FP8"):
        yield (
            f"{form.algo} with experts: TensorRT-LLM reads W8A16, W4A16 and FP8 of them in a"
            " checkpoint"
        )


def _exclusion_reasons(config: CheckpointConfig, form: QuantFormat) -> Iterator[str]:
    quantizes = config.quantization.quantizes
    weight_only = form.in_checkpoint == "plain"
    if quantizes("lm_head") and not weight_only:
        yield f"{form.algo}: lm_head stays as it is; put 'lm_head' into exclude_modules"
    whole = _takes_whole_layers(form.algo)
    for layer in range(config.arch.num_hidden_layers if whole else 0):
        # [quantize] smooth_quantize_plugin and fp8_rowwise_quantize replace attention and MLP.
        plain = [
            item.name for item in layer_linears(config.arch, layer) if not quantizes(item.name)
        ]
        if plain:
            yield (
                f"{form.algo}: exclude_modules leaves out {plain[0]}, but TensorRT-LLM quantizes"
                " every linear module of a layer"
            )
            return


def _size_reasons(config: CheckpointConfig, linear: Linear) -> Iterator[str]:
    """Say which rows and columns of a rank's part the kernels cannot take."""
    form = config.stored_format(linear.name)
    if form is None:
        return
    multiple = 1
    if form.granularity == "per_group" and form.algo != "NVFP4":
        # [layers] WeightOnlyGroupwiseQuantLinear pads to these, which checkpoints are not.
        smallest = 128 if form.algo == "W4A8_AWQ" else 64
        multiple = max(smallest, config.quantization.of_module(linear.name).group_size)
    elif form.needs_layout:
        multiple = MULTIPLE
    tp_size = linear.split_size(config.mapping)
    num_out, num_in = linear.num_out, linear.num_in
    if linear.split == "rows":
        num_out = sum(segment.local_length(tp_size) for segment in linear.rows)
    else:
        num_in = linear.columns.local_length(tp_size)
    for count, what in ((num_out, "rows"), (num_in, "columns")):
        if count % multiple:
            hint = "; group_size 64 may fit" if multiple == 128 and count % 64 == 0 else ""
            hint = hint if 64 in form.group_sizes else ""
            yield (
                f"{linear.name}: {count} {what} per rank at tp_size {tp_size}, expected a multiple"
                f" of {multiple} for {form.algo}{hint}"
            )
