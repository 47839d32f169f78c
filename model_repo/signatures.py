"""The tensors of every model: names, types and shapes of TensorRT-LLM's inflight_batcher_llm.

A client written for that repository finds every tensor it knows. What llmc adds is optional on
the way in and extra on the way out, and marked `own`: `apply_chat_template`, `min_p`,
`OUTPUT_TEXT`, `STOP_ID`, `finish_reason`. Which inputs a request may really set is runtime's
business (llmc.runtime.triton_request).

Source: NVIDIA/TensorRT-LLM 1.2.0rc8, triton_backend/all_models/inflight_batcher_llm/*/config.pbtxt.
"""

from dataclasses import replace

from llmc.model_repo.specs import TensorSpec


def _optional(dtype: str, *names: str, dims: tuple[int, ...] = (1,)) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(name=name, dtype=dtype, dims=dims, optional=True) for name in names)


def _ragged(dtype: str, *names: str, dims: tuple[int, ...]) -> tuple[TensorSpec, ...]:
    return tuple(
        TensorSpec(name=name, dtype=dtype, dims=dims, optional=True, ragged=True) for name in names
    )


def _own(*tensors: TensorSpec) -> tuple[TensorSpec, ...]:
    return tuple(replace(tensor, own=True) for tensor in tensors)


def _scalar(dtype: str, *names: str, optional: bool = True) -> tuple[TensorSpec, ...]:
    return tuple(
        TensorSpec(name=name, dtype=dtype, optional=optional, scalar=True) for name in names
    )


def _required(dtype: str, *names: str, dims: tuple[int, ...] = (1,)) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(name=name, dtype=dtype, dims=dims) for name in names)


PREPROCESSING_INPUTS = (
    *_required("STRING", "QUERY"),
    *_optional("STRING", "DECODER_QUERY"),
    *_optional("UINT8", "IMAGE_BYTES", dims=(-1, -1, -1, -1)),
    *_optional("STRING", "IMAGE_URL"),
    *_optional("STRING", "IMAGES", dims=(-1,)),
    *_optional("UINT8", "VIDEO_BYTES", dims=(-1, -1, -1, -1)),
    *_required("INT32", "REQUEST_OUTPUT_LEN"),
    *_optional("STRING", "BAD_WORDS_DICT", "STOP_WORDS_DICT", dims=(-1,)),
    *_optional("STRING", "EMBEDDING_BIAS_WORDS", dims=(-1,)),
    *_optional("FP32", "EMBEDDING_BIAS_WEIGHTS", dims=(-1,)),
    *_optional("INT32", "END_ID", "PAD_ID"),
    *_optional("UINT64", "PROMPT_TABLE_EXTRA_ID"),
    *_own(*_optional("BOOL", "APPLY_CHAT_TEMPLATE")),
)
PREPROCESSING_OUTPUTS = (
    *_required("INT32", "INPUT_ID", dims=(-1,)),
    *_required("INT32", "REQUEST_INPUT_LEN"),
    *_required("INT32", "DECODER_INPUT_ID", dims=(-1,)),
    *_required("INT32", "REQUEST_DECODER_INPUT_LEN"),
    *_required("INT32", "BAD_WORDS_IDS", "STOP_WORDS_IDS", dims=(2, -1)),
    *_required("FP32", "EMBEDDING_BIAS", dims=(-1,)),
    *_required("INT32", "REQUEST_OUTPUT_LEN", dims=(-1,)),
    *_required("INT32", "OUT_END_ID", "OUT_PAD_ID"),
    *_required("UINT64", "OUT_PROMPT_TABLE_EXTRA_IDS", dims=(-1,)),
    *_required("FP16", "PIXEL_VALUES", dims=(-1, -1, -1, -1)),
    *_required("INT64", "ASPECT_RATIO_IDS", dims=(-1,)),
    *_required("INT64", "ASPECT_RATIO_MASK", dims=(-1, -1)),
    *_required("INT64", "CROSS_ATTENTION_MASK", dims=(-1, -1, -1)),
    *_required("INT64", "IMAGE_SIZES", dims=(-1, 2)),
    *_required("BOOL", "IS_VIDEO_INPUT"),
    *_required("INT64", "ATTENTION_MASK", dims=(-1,)),
    *_required("INT64", "IMAGE_GRID_THW", dims=(3,)),
    *_required("INT32", "VISION_INPUT_ID", dims=(-1,)),
)
"""From PIXEL_VALUES on for multimodal encoders, which llmc does not build: never made."""

POSTPROCESSING_INPUTS = (
    *_required("INT32", "TOKENS_BATCH", dims=(-1, -1)),
    *_required("INT32", "SEQUENCE_LENGTH", dims=(-1,)),
    *_own(*_optional("STRING", "OUTPUT_TEXT", dims=(-1,)), *_optional("STRING", "STOP_ID")),
)
POSTPROCESSING_OUTPUTS = _required("STRING", "OUTPUT", dims=(-1,))

TENSORRT_LLM_INPUTS = (
    *_ragged("INT32", "input_ids", dims=(-1,)),
    *_ragged("FP16", "encoder_input_features", dims=(-1, -1)),
    *_scalar("INT32", "encoder_output_lengths"),
    *_scalar("INT32", "input_lengths", "request_output_len", optional=False),
    *_scalar("INT32", "num_return_sequences"),
    *_ragged("INT32", "draft_input_ids", "decoder_input_ids", dims=(-1,)),
    *_scalar("INT32", "decoder_input_lengths"),
    *_ragged("FP32", "draft_logits", dims=(-1, -1)),
    *_scalar("FP32", "draft_acceptance_threshold"),
    *_scalar("INT32", "end_id", "pad_id"),
    *_ragged("INT32", "stop_words_list", "bad_words_list", dims=(2, -1)),
    *_ragged("FP32", "embedding_bias", dims=(-1,)),
    *_scalar("INT32", "beam_width"),
    *_scalar("FP32", "temperature"),
    *_scalar("INT32", "runtime_top_k"),
    *_scalar("FP32", "runtime_top_p", "runtime_top_p_min", "runtime_top_p_decay"),
    *_own(*_scalar("FP32", "runtime_min_p")),
    *_scalar("INT32", "runtime_top_p_reset_ids"),
    *_scalar("FP32", "len_penalty"),
    *_scalar("BOOL", "early_stopping"),
    *_scalar("FP32", "repetition_penalty"),
    *_scalar("INT32", "min_tokens"),
    *_scalar("FP32", "beam_search_diversity_rate", "presence_penalty", "frequency_penalty"),
    *_scalar("UINT64", "seed"),
    *_scalar("BOOL", "return_log_probs", "return_context_logits", "return_generation_logits"),
    *_scalar("BOOL", "return_perf_metrics", "return_num_input_tokens", "return_num_output_tokens"),
    *_scalar("BOOL", "exclude_input_in_output", "stop", "streaming"),
    *_ragged("FP16", "prompt_embedding_table", dims=(-1, -1)),
    *_ragged("UINT64", "prompt_table_extra_ids", dims=(-1,)),
    *_scalar("INT32", "prompt_vocab_size"),
    *_ragged("BOOL", "cross_attention_mask", dims=(-1, -1)),
    *_optional("FP32", "mrope_rotary_cos_sin", dims=(-1,)),
    *_optional("INT64", "mrope_position_deltas"),
    *_scalar("UINT64", "lora_task_id"),
    *_ragged("FP16", "lora_weights", dims=(-1, -1)),
    *_ragged("INT32", "lora_config", dims=(-1, 3)),
    *_ragged("UINT8", "context_phase_params", dims=(-1,)),
    *_ragged("BOOL", "skip_cross_attn_blocks", dims=(1,)),
    *_ragged("INT32", "retention_token_range_starts", "retention_token_range_ends", dims=(-1,)),
    *_ragged("INT32", "retention_token_range_priorities", dims=(-1,)),
    *_ragged("INT32", "retention_token_range_durations_ms", dims=(-1,)),
    *_ragged("INT32", "retention_decode_priority", "retention_decode_duration_ms", dims=(1,)),
    *_ragged("STRING", "guided_decoding_guide_type", "guided_decoding_guide", dims=(1,)),
    *_ragged("INT32", "lookahead_window_size", "lookahead_ngram_size", dims=(1,)),
    *_ragged("INT32", "lookahead_verification_set_size", dims=(1,)),
)
_GENERATION_OUTPUTS = (
    *_required("FP32", "cum_log_probs", dims=(-1,)),
    *_required("FP32", "output_log_probs", dims=(-1, -1)),
    *_required("FP32", "context_logits", dims=(-1, -1)),
    *_required("FP32", "generation_logits", dims=(-1, -1, -1)),
    *_required("INT32", "batch_index", "sequence_index"),
    *_required("INT32", "kv_cache_alloc_new_blocks", "kv_cache_reused_blocks"),
    *_required("INT32", "kv_cache_alloc_total_blocks"),
    *_required("INT64", "arrival_time_ns", "first_scheduled_time_ns"),
    *_required("INT64", "first_token_time_ns", "last_token_time_ns"),
    *_required("FP32", "acceptance_rate"),
    *_required("INT32", "total_accepted_draft_tokens", "total_draft_tokens"),
    *_required("INT32", "num_input_tokens", "num_output_tokens"),
    *_own(*_required("STRING", "finish_reason")),
)
TENSORRT_LLM_OUTPUTS = (
    *_required("INT32", "output_ids", dims=(-1, -1)),
    *_required("INT32", "sequence_length", dims=(-1,)),
    *_GENERATION_OUTPUTS,
    *_required("UINT8", "context_phase_params", dims=(-1,)),
    *_own(*_required("STRING", "OUTPUT_TEXT", dims=(-1,)), *_required("STRING", "STOP_ID")),
)

_TEXT_INPUTS = (
    *_required("STRING", "text_input"),
    *_optional("STRING", "decoder_text_input"),
    *_required("INT32", "max_tokens"),
    *_optional("STRING", "bad_words", "stop_words", dims=(-1,)),
    *_optional("BOOL", "exclude_input_in_output"),
    *_optional("INT32", "end_id", "pad_id", "top_k"),
    *_optional("FP32", "top_p", "temperature", "length_penalty", "repetition_penalty"),
    *_own(*_optional("FP32", "min_p"), *_optional("BOOL", "apply_chat_template")),
    *_optional("INT32", "min_tokens"),
    *_optional("FP32", "presence_penalty", "frequency_penalty"),
    *_optional("UINT64", "seed"),
    *_optional("INT32", "beam_width"),
    *_optional("BOOL", "stream"),
    *_optional("FP16", "prompt_embedding_table", dims=(-1, -1)),
    *_optional("INT32", "prompt_vocab_size"),
    *_optional("UINT64", "prompt_table_extra_id"),
    *_optional("STRING", "embedding_bias_words", dims=(-1,)),
    *_optional("FP32", "embedding_bias_weights", dims=(-1,)),
    *_ragged("FP16", "lora_weights", dims=(-1, -1)),
    *_ragged("INT32", "lora_config", dims=(-1, 3)),
)
ENSEMBLE_INPUTS = (
    *_TEXT_INPUTS,
    *_optional("INT32", "num_return_sequences"),
    *_optional("BOOL", "return_log_probs", "return_context_logits", "return_generation_logits"),
    *_optional(
        "BOOL", "return_perf_metrics", "return_num_input_tokens", "return_num_output_tokens"
    ),
    *_optional("UINT64", "lora_task_id"),
    *_ragged("STRING", "guided_decoding_guide_type", "guided_decoding_guide", dims=(1,)),
)
TENSORRT_LLM_BLS_INPUTS = (
    *_TEXT_INPUTS,
    *_scalar("INT32", "num_return_sequences"),
    *_scalar("BOOL", "return_log_probs", "return_context_logits", "return_generation_logits"),
    *_scalar("BOOL", "return_perf_metrics", "return_num_input_tokens", "return_num_output_tokens"),
    *_scalar("UINT64", "lora_task_id"),
    *_optional("STRING", "guided_decoding_guide_type", "guided_decoding_guide"),
    *_optional("FP16", "image_input", dims=(-1, 3, -1, -1)),
    *_optional("UINT8", "image_bytes_input", "video_bytes_input", dims=(-1, -1, -1, -1)),
    *_optional("STRING", "image_url_input"),
    *_optional("INT32", "num_draft_tokens"),
    *_scalar("BOOL", "use_draft_logits"),
)
TEXT_OUTPUTS = (*_required("STRING", "text_output", dims=(-1,)), *_GENERATION_OUTPUTS)

PREPROCESSING_FROM_TEXT = {
    "QUERY": "text_input",
    "DECODER_QUERY": "decoder_text_input",
    "REQUEST_OUTPUT_LEN": "max_tokens",
    "BAD_WORDS_DICT": "bad_words",
    "STOP_WORDS_DICT": "stop_words",
    "EMBEDDING_BIAS_WORDS": "embedding_bias_words",
    "EMBEDDING_BIAS_WEIGHTS": "embedding_bias_weights",
    "END_ID": "end_id",
    "PAD_ID": "pad_id",
    "PROMPT_TABLE_EXTRA_ID": "prompt_table_extra_id",
    "APPLY_CHAT_TEMPLATE": "apply_chat_template",
}
"""preprocessing's input → the input of ensemble and tensorrt_llm_bls it comes from."""

TENSORRT_LLM_FROM_PREPROCESSING = {
    "input_ids": "INPUT_ID",
    "decoder_input_ids": "DECODER_INPUT_ID",
    "input_lengths": "REQUEST_INPUT_LEN",
    "decoder_input_lengths": "REQUEST_DECODER_INPUT_LEN",
    "request_output_len": "REQUEST_OUTPUT_LEN",
    "end_id": "OUT_END_ID",
    "pad_id": "OUT_PAD_ID",
    "embedding_bias": "EMBEDDING_BIAS",
    "stop_words_list": "STOP_WORDS_IDS",
    "bad_words_list": "BAD_WORDS_IDS",
    "prompt_table_extra_ids": "OUT_PROMPT_TABLE_EXTRA_IDS",
}
"""tensorrt_llm's input → the output of preprocessing it comes from."""

TENSORRT_LLM_FROM_TEXT = {
    "exclude_input_in_output": "exclude_input_in_output",
    "runtime_top_k": "top_k",
    "runtime_top_p": "top_p",
    "runtime_min_p": "min_p",
    "temperature": "temperature",
    "len_penalty": "length_penalty",
    "repetition_penalty": "repetition_penalty",
    "min_tokens": "min_tokens",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "seed": "seed",
    "return_log_probs": "return_log_probs",
    "return_context_logits": "return_context_logits",
    "return_generation_logits": "return_generation_logits",
    "return_perf_metrics": "return_perf_metrics",
    "return_num_input_tokens": "return_num_input_tokens",
    "return_num_output_tokens": "return_num_output_tokens",
    "num_return_sequences": "num_return_sequences",
    "beam_width": "beam_width",
    "streaming": "stream",
    "prompt_embedding_table": "prompt_embedding_table",
    "prompt_vocab_size": "prompt_vocab_size",
    "lora_task_id": "lora_task_id",
    "lora_weights": "lora_weights",
    "lora_config": "lora_config",
    "guided_decoding_guide_type": "guided_decoding_guide_type",
    "guided_decoding_guide": "guided_decoding_guide",
}
"""tensorrt_llm's input → the input of ensemble and tensorrt_llm_bls it comes from."""

POSTPROCESSING_FROM_TENSORRT_LLM = {
    "TOKENS_BATCH": "output_ids",
    "SEQUENCE_LENGTH": "sequence_length",
    "OUTPUT_TEXT": "OUTPUT_TEXT",
    "STOP_ID": "STOP_ID",
}
"""postprocessing's input → the output of tensorrt_llm it comes from."""

PASSED_THROUGH = tuple(tensor.name for tensor in _GENERATION_OUTPUTS)
"""Outputs that ensemble and tensorrt_llm_bls take from tensorrt_llm as they are."""

ALL = (
    PREPROCESSING_INPUTS,
    POSTPROCESSING_INPUTS,
    TENSORRT_LLM_INPUTS,
    TENSORRT_LLM_OUTPUTS,
    ENSEMBLE_INPUTS,
)

LOGITS = ("context_logits", "generation_logits", "draft_logits")
"""Tensors of the engine's logits_dtype."""

INTERNAL_NAMES = {"OUT_END_ID": "_PREPROCESSOR_END_ID", "OUT_PAD_ID": "_PREPROCESSOR_PAD_ID"}
"""Tensor of the ensemble's own for an output of preprocessing; others are the output's, with _."""
