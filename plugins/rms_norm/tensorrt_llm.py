"""TensorRT-LLM's options of `rms_norm`: one kernel with the quantization of what follows."""

from llmc.plugins.tensorrt_llm_options import DTYPES, Option

OPTIONS: dict[str, Option] = {
    "norm_quant_fusion": Option(default=False, needs={True: ("NVFP4",)}),
    "rmsnorm_quantization_plugin": Option(default=None, values=DTYPES, flag=False),
}
