"""The recipe's part `serve`: what the repository is told, in the words of NVIDIA's templates."""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from llmc.recipes.part import Part

Fraction = Annotated[float, Field(ge=0, le=1)]
Ids = Annotated[
    tuple[Annotated[tuple[NonNegativeInt, ...], Field(strict=False)], ...], Field(strict=False)
]
"""A list of lists: of each instance of the model, or of each path of a tree."""


class TensorrtLlmServe(Part):
    """Parameters of TensorRT-LLM's backend alone; none: not given, its own default holds."""

    batching_strategy: Literal["inflight_fused_batching", "inflight_batching", "V1"] = Field(
        default="inflight_fused_batching", description="V1 waits for a batch to end."
    )
    max_beam_width: PositiveInt | None = Field(
        default=None, description="Most beams of a request; none: 1."
    )
    max_attention_window_size: tuple[PositiveInt, ...] | None = Field(
        default=None,
        strict=False,
        description="Tokens attended to, one number or one for each layer in turn; none: all.",
    )
    sink_token_length: NonNegativeInt | None = Field(
        default=None, description="First tokens that stay in the window; none: 0."
    )
    kv_cache_host_memory_bytes: NonNegativeInt | None = Field(
        default=None, description="Host memory that KV blocks are offloaded to, in bytes; none: 0."
    )
    kv_cache_onboard_blocks: bool | None = Field(
        default=None, description="Copy offloaded blocks back before they are read; none: true."
    )
    cross_kv_cache_fraction: Fraction | None = Field(
        default=None, description="Share of the KV cache for cross attention; none: 0.5."
    )
    recv_poll_period_ms: NonNegativeInt | None = Field(
        default=None, description="orchestrator: sleep of the receiving thread, in ms; none: 0."
    )
    iter_stats_max_iterations: NonNegativeInt | None = Field(
        default=None, description="Iterations whose statistics are kept; none: the executor's."
    )
    request_stats_max_iterations: NonNegativeInt | None = Field(
        default=None,
        description="Iterations whose statistics by request are kept; none: the executor's.",
    )
    normalize_log_probs: bool | None = Field(
        default=None, description="Divide log probabilities by the length; none: true."
    )
    gpu_device_ids: Ids | None = Field(
        default=None,
        description="GPUs of each instance, e.g. [[0, 1], [2, 3]] for two; none: one, all GPUs.",
    )
    participant_ids: Ids | None = Field(
        default=None, description="MPI ranks of each instance; none: all."
    )
    num_nodes: PositiveInt | None = Field(default=None, description="Hosts; none: 1.")
    lora_cache_optimal_adapter_size: PositiveInt | None = Field(
        default=None, description="LoRA rank that fills a page of the cache; none: 8."
    )
    lora_cache_max_adapter_size: PositiveInt | None = Field(
        default=None, description="Largest LoRA rank; none: 64."
    )
    lora_cache_gpu_memory_fraction: Fraction | None = Field(
        default=None,
        description="Share of the GPU memory that engine and KV cache leave; none: 0.05.",
    )
    lora_cache_host_memory_bytes: NonNegativeInt | None = Field(
        default=None, description="Host memory of the LoRA cache, in bytes; none: 1 GiB."
    )
    lora_prefetch_dir: str | None = Field(
        default=None,
        description="Directory of adapters loaded at the start, one folder for each task id.",
    )
    decoding_mode: (
        Literal[
            "top_k",
            "top_p",
            "top_k_top_p",
            "beam_search",
            "medusa",
            "redrafter",
            "lookahead",
            "eagle",
        ]
        | None
    ) = Field(default=None, description="none: top_k_top_p, with beams beam_search.")
    lookahead_window_size: PositiveInt | None = Field(
        default=None, description="lookahead: tokens of the window."
    )
    lookahead_ngram_size: PositiveInt | None = Field(
        default=None, description="lookahead: tokens of an n-gram."
    )
    lookahead_verification_set_size: PositiveInt | None = Field(
        default=None, description="lookahead: n-grams verified in a step."
    )
    medusa_choices: Ids | None = Field(
        default=None,
        description="medusa: paths of the tree, e.g. [[0], [0, 0]]; none: mc_sim_7b_63.",
    )
    eagle_choices: Ids | None = Field(
        default=None,
        description="eagle: paths of the tree, e.g. [[0], [0, 0]]; none: mc_sim_7b_63.",
    )
    speculative_decoding_fast_logits: bool | None = Field(
        default=None,
        description="Draft logits go from model to model; for ranks in participant_ids; none:"
        " false.",
    )
    gpu_weights_percent: Fraction | None = Field(
        default=None, description="Share of the weights kept on the GPU; none: 1.0."
    )
    enable_context_fmha_fp32_acc: bool | None = Field(
        default=None, description="Sum attention over prompts in float32; none: false."
    )
    multi_block_mode: bool | None = Field(
        default=None, description="Several blocks of threads for one long sequence; none: true."
    )
    enable_trt_overlap: bool | None = Field(
        default=None, description="Overlap two steps, with cuda_graph_mode; none: false."
    )
    cuda_graph_mode: bool | None = Field(
        default=None, description="Replay decoding steps as CUDA graphs; none: false."
    )
    cuda_graph_cache_size: NonNegativeInt | None = Field(
        default=None, description="CUDA graphs kept; none: 0."
    )
    guided_decoding_backend: Literal["xgrammar"] | None = Field(
        default=None, description="Answers by schema or grammar; needs the path below."
    )
    xgrammar_tokenizer_info_path: str | None = Field(
        default=None, description="JSON of the tokenizer for xgrammar, as the server sees it."
    )


class ServeRecipe(Part):
    """What the Triton repository is told."""

    max_batch_size: PositiveInt | None = Field(
        default=None, description="Triton's max_batch_size; none: build.max_batch_size."
    )
    decoupled: bool = Field(default=True, description="Let a request stream its answer.")
    engine_dir: str | None = Field(
        default=None,
        description="The engine as the server sees it, e.g. in its container; none: where it lies.",
    )
    tokenizer_dir: str | None = Field(
        default=None,
        description="The tokenizer as the server sees it; none: engine_dir, or where it lies.",
    )
    llmc_tensors: bool | None = Field(
        default=None,
        description="Have the tensors TensorRT-LLM's models do not: chat templates, min_p, reasons"
        " of an end; none: with llmc's engines.",
    )
    kv_cache_free_gpu_mem_fraction: float = Field(
        default=0.9, gt=0, le=1, description="Share of the free memory given to the KV cache."
    )
    max_tokens_in_paged_kv_cache: PositiveInt | None = Field(
        default=None, description="Size of the KV cache in tokens; none: by memory fraction."
    )
    batch_scheduler_policy: Literal["max_utilization", "guaranteed_no_evict"] = Field(
        default="max_utilization",
        description="Out of blocks: preempt and recompute, or never start what may not finish.",
    )
    enable_chunked_context: bool = Field(
        default=True, description="Split long prompts over several steps."
    )
    enable_kv_cache_reuse: bool = Field(
        default=False, description="Share KV blocks of equal prompt beginnings."
    )
    exclude_input_in_output: bool = Field(
        default=False, description="Leave the prompt's tokens out of the answer by default."
    )
    cancellation_check_period_ms: PositiveInt = Field(
        default=100, description="How often a request is asked whether its client is gone, in ms."
    )
    stats_check_period_ms: PositiveInt = Field(
        default=100, description="How often metrics are published, in ms."
    )
    add_special_tokens: bool = Field(
        default=True, description="Let the tokenizer add its special tokens to a prompt."
    )
    skip_special_tokens: bool = Field(
        default=True, description="Leave special tokens out of the text of an answer."
    )
    accumulate_tokens: bool = Field(
        default=False,
        description="tensorrt_llm_bls: each streamed response has the whole text so far.",
    )
    preprocessing_instance_count: PositiveInt = Field(
        default=1, description="Tokenizing processes."
    )
    postprocessing_instance_count: PositiveInt = Field(
        default=1, description="Detokenizing processes; more than 1 needs decoupled false."
    )
    bls_instance_count: PositiveInt = Field(
        default=1, description="Processes of tensorrt_llm_bls, each serving many requests at once."
    )
    launch_mode: Literal["leader", "orchestrator"] = Field(
        default="leader",
        description="Engines of several ranks: a tritonserver in each, or ranks that the model"
        " starts.",
    )
    rank_timeout_s: PositiveFloat = Field(
        default=30.0, description="How long a rank may be silent before all end, in s."
    )
    max_rank_restarts: NonNegativeInt = Field(
        default=3, description="orchestrator: how often lost ranks are started again."
    )
    max_queue_delay_microseconds: NonNegativeInt = Field(
        default=0, description="How long Triton may wait to form a batch, in µs."
    )
    max_queue_size: NonNegativeInt = Field(
        default=0, description="Most requests Triton queues; 0: no limit."
    )
    queue_timeout_microseconds: NonNegativeInt = Field(
        default=0, description="How long a request may be queued, in µs; 0: no limit."
    )
    queue_timeout_action: Literal["REJECT", "DELAY"] = Field(
        default="REJECT", description="After that: an error, or behind all that are in time."
    )
    allow_timeout_override: bool = Field(
        default=False, description="Let a request's own timeout shorten that."
    )
    priority_levels: NonNegativeInt = Field(
        default=0, description="Number of request priorities; 0: off."
    )
    default_priority_level: PositiveInt | None = Field(
        default=None, description="Priority of requests without one; none: the lowest."
    )
    priority_max_queue_sizes: tuple[NonNegativeInt, ...] | None = Field(
        default=None,
        strict=False,
        description="max_queue_size of each priority, the highest first.",
    )
    priority_timeouts_microseconds: tuple[NonNegativeInt, ...] | None = Field(
        default=None,
        strict=False,
        description="queue_timeout_microseconds of each priority, the highest first.",
    )
    warmup_prompt_tokens: PositiveInt | None = Field(
        default=None,
        description="Tokens of a prompt answered before the server is ready; none: none is.",
    )
    warmup_requests: PositiveInt = Field(
        default=1, description="How many such prompts are answered at once."
    )
    tensorrt_llm: TensorrtLlmServe = Field(
        default=TensorrtLlmServe(), description="Parameters of TensorRT-LLM's backend alone."
    )
