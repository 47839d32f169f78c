"""What a model of the repository is, as plain data; how Triton spells it is pbtxt.py's part."""

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """An input or output. `dtype` is Triton's without TYPE_; `dims` leave the batch dimension out.

    `scalar` is one value per request that the model sees without the dimension of size one. `own`
    is a tensor that only llmc's models have.
    """

    name: str
    dtype: str
    dims: tuple[int, ...] = (1,)
    optional: bool = False
    ragged: bool = False
    scalar: bool = False
    own: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePolicy:
    """What becomes of requests that wait; 0 is no limit."""

    max_queue_size: int = 0
    timeout_microseconds: int = 0
    timeout_action: Literal["REJECT", "DELAY"] = "REJECT"
    allow_timeout_override: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicBatching:
    """How Triton groups requests of a model before it hands them over.

    `queue` None leaves everything to Triton. `priority_queues`: of each level from 1 on, the
    highest; empty: all have `queue`.
    """

    preferred_batch_size: int | None = None
    max_queue_delay_microseconds: int = 0
    queue: QueuePolicy | None = None
    priority_levels: int = 0
    default_priority_level: int = 0
    priority_queues: tuple[QueuePolicy, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Warmup:
    """A request that Triton runs before the model is ready. `inputs`: name → values, batch first.

    Triton reads the values from the model's folder `warmup`, a file for each input.
    """

    name: str
    batch_size: int
    inputs: dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnsembleStep:
    """One model of an ensemble. Both maps go from the model's tensor to the ensemble's."""

    model: str
    inputs: dict[str, str]
    outputs: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """One model. An ensemble has `steps` and neither instances nor a backend."""

    name: str
    max_batch_size: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    backend: str = "python"
    instance_count: int | None = None
    decoupled: bool | None = None
    dynamic_batching: DynamicBatching | None = None
    parameters: dict[str, str] = field(default_factory=dict)
    steps: tuple[EnsembleStep, ...] = ()
    warmup: Warmup | None = None
