"""Which quantizations TensorRT-LLM has no engine for, and why.

What merely cannot be split over the ranks is `llmc.checkpoint.unsplittable`'s to say.

Sources, of NVIDIA/TensorRT-LLM 0.17: [layers] tensorrt_llm/quantization/layers.py,
[functional] tensorrt_llm/quantization/functional.py, [quantize] tensorrt_llm/quantization/
quantize.py, [moe] tensorrt_llm/layers/moe.py, [plugin] cpp/tensorrt_llm/plugins/
weightOnly{,Groupwise}QuantMatmulPlugin; of 1.x: [builder] tensorrt_llm/builder.py.
"""

from collections.abc import Iterator

from llmc.checkpoint.config import CheckpointConfig
from llmc.checkpoint.linears import Linear, layer_linears, lm_head
from llmc.checkpoint.schema import unsplittable
from llmc.quant import FORMATS
from llmc.quant.format import QuantFormat, load_format
from llmc.quant.layouts import LAYOUTS, MULTIPLE

KV_CACHE_ALGOS = ("INT8", "FP8")


def forbidden(config: CheckpointConfig) -> list[str]:
    """Return every reason why `config.quantization` and what it meets cannot be; empty if none."""
    algo = config.quantization.quant_algo
    kv_algo = config.quantization.kv_cache_quant_algo
    reasons = []
    if kv_algo is not None and kv_algo not in KV_CACHE_ALGOS:
        known = ", ".join(KV_CACHE_ALGOS)
        reasons.append(f"kv_cache_quant_algo {kv_algo!r}, expected one of {known}")
    if algo is None:
        return reasons + (["layout: nothing is quantized"] if config.layout else [])
    if algo not in FORMATS:
        return [*reasons, f"quant_algo {algo!r}, expected one of {', '.join(FORMATS)}"]
    if algo == "NVFP4" and kv_algo == "INT8":
        # [builder] refuses INT8 KV on compute capability 10.0 and later, where alone NVFP4 runs.
        reasons.append("NVFP4 with an INT8 KV cache: no GPU has both; use FP8")
    form = load_format(algo)
    reasons += _field_reasons(config, form)
    reasons += _layout_reasons(config, form)
    reasons += _experts_reasons(config, form)
    reasons += _exclusion_reasons(config, form)
    if not reasons and not unsplittable(config):
        for linear in (*layer_linears(config.arch, 0), lm_head(config.arch)):
            reasons += _size_reasons(config, linear)
    return reasons


def _field_reasons(config: CheckpointConfig, form: QuantFormat) -> Iterator[str]:
    quantization = config.quantization
    for key in ("pre_quant_scale", "has_zero_point"):
        found, wanted = getattr(quantization, key), form.config.get(key, False)
        if found != wanted:
            yield f"{form.algo}: {key} {found}, expected {wanted}"
    if form.group_sizes and quantization.group_size not in form.group_sizes:
        # [functional] validate_group_size; [plugin] has kernels for 64 and 128.
        sizes = " or ".join(map(str, form.group_sizes))
        yield f"{form.algo}: group_size {quantization.group_size}, expected {sizes}"
    if quantization.use_meta_recipe:
        yield "use_meta_recipe True, expected False; exclude modules by name"
    clamp = quantization.clamp_val
    if clamp is not None and (clamp[0] != -clamp[1] or clamp[1] <= 0):
        yield f"clamp_val {list(clamp)}, expected a negative and a positive number alike"
    packs = form.granularity == "per_group" and form.algo != "NVFP4"
    if (packs or config.layout is not None) and config.dtype == "float32":
        # [plugin] takes half or bfloat16 activations.
        yield f"{form.algo}: dtype float32, expected float16 or bfloat16"


def _layout_reasons(config: CheckpointConfig, form: QuantFormat) -> Iterator[str]:
    if config.layout is not None and config.layout not in LAYOUTS:
        yield f"layout {config.layout!r}, expected one of {', '.join(LAYOUTS)}"
    elif config.layout is not None and not form.needs_layout:
        yield f"layout {config.layout!r}: {form.algo} is the same for every GPU; leave it out"
    elif config.layout is None and form.needs_layout and form.in_checkpoint == "quantized":
        known = ", ".join(LAYOUTS)
        yield f"{form.algo} has no portable form: name a layout, one of {known}"


def _experts_reasons(config: CheckpointConfig, form: QuantFormat) -> Iterator[str]:
    moe = config.arch.family_settings.get("moe")
    if not isinstance(moe, dict) or not moe.get("num_experts"):
        return
    # [moe] MixtureOfExperts: weight-only per channel and FP8 per tensor; 1.x adds NVFP4.
    if form.algo not in ("W8A16", "W4A16", "FP8", "NVFP4"):
        yield f"{form.algo} with experts: TensorRT-LLM has W8A16, W4A16, FP8 and NVFP4 for them"


def _exclusion_reasons(config: CheckpointConfig, form: QuantFormat) -> Iterator[str]:
    quantizes = config.quantization.quantizes
    weight_only = form.in_checkpoint == "plain"
    if quantizes("lm_head") and not weight_only:
        yield f"{form.algo}: lm_head stays as it is; put 'lm_head' into exclude_modules"
    whole = form.algo.endswith("_PLUGIN") or form.algo == "FP8_PER_CHANNEL_PER_TOKEN"
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
        multiple = max(smallest, config.quantization.group_size)
    elif form.needs_layout:
        multiple = MULTIPLE
    tp_size = config.mapping.tp_size
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
