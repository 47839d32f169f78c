"""From a Hugging Face checkpoint to a TensorRT-LLM checkpoint, and from there to an engine.

| part | owns |
|---|---|
| hf | reading and checking what Hugging Face wrote |
| families | which architecture's tensors become which of ours |
| convert | writing the checkpoint |
| quantize | algorithms that choose scales, and the calibration they need |
| calibrate | running one layer at a time, watched |
| rank_files | every rank's tensors, from where each comes |
| network | the checkpoint's config as a graph of plugins |
| targets | turning network and weights into an engine |
| pipeline | the stages in order, each written once and reused |
| choices | a recipe in the words of convert |
| automatic | quantization `auto`: measured, then chosen within a budget |
"""

__all__: list[str] = []
