"""One request in flight, as the scheduler, the sampler and the batch see it."""

from dataclasses import dataclass, field

from llmc.runtime.kv_blocks import block_digest
from llmc.runtime.request import Request
from llmc.runtime.sampling import SamplerState
from llmc.runtime.text import TextStream


@dataclass(slots=True, kw_only=True, eq=False)
class Sequence:
    """`tokens` is the prompt and every token generated so far; the KV of the first `num_computed`
    of them is in `blocks`. What is left to compute is the whole difference: a prompt, a chunk of
    one, the one token sampled last, or (after preemption) all of it again."""

    request_id: int
    request: Request
    sampler: SamplerState
    stream: TextStream
    tokens: list[int]
    num_prompt: int
    salt: bytes = b""
    """what keys depend on beside the tokens before them (EngineLimits.prompt_salt)"""
    num_computed: int = 0
    blocks: list[int] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    """of the full blocks of `tokens`, as far as they were needed"""
    num_published: int = 0
    slot: int | None = None
    """row of the block-table array while running"""
    num_tabled: int = 0
    """blocks written into that row so far"""
    num_reported: int = 0
    """output tokens the client was told of"""
    text: str = ""
    """text of a request with stop strings, not delivered yet"""
    cum_log_prob: float = 0.0
    log_probs: list[float] = field(default_factory=list)

    @property
    def key(self) -> tuple[float, int]:
        """Order of service: higher priority first, then arrival."""
        return (-self.request.priority, self.request_id)

    @property
    def num_left(self) -> int:
        """Tokens whose KV is still to be computed; 1 for a sequence in its generation phase."""
        return len(self.tokens) - self.num_computed

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def max_cached_tokens(self) -> int:
        """Tokens in the KV cache of the longest output allowed; the last is never fed back."""
        return self.num_prompt + self.request.max_tokens - 1

    def extend_digests(self, count: int, tokens_per_block: int) -> list[bytes]:
        """Return the digests of the first `count` full blocks, computing those not known yet."""
        while len(self.digests) < count:
            start = len(self.digests) * tokens_per_block
            parent = self.digests[-1] if self.digests else self.salt
            self.digests.append(block_digest(parent, self.tokens[start : start + tokens_per_block]))
        return self.digests[:count]
