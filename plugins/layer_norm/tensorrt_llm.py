"""TensorRT-LLM's options of `layer_norm`, which the builder sets by the checkpoint's quant_algo."""

from llmc.plugins.tensorrt_llm_options import DTYPES, Option

OPTIONS: dict[str, Option] = {
    "layernorm_quantization_plugin": Option(default=None, values=DTYPES, flag=False)
}
