"""What a model of the repository is, as plain data; how Triton spells it is pbtxt.py's part."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """An input or output. `dtype` is Triton's without TYPE_; `dims` leave the batch dimension out.

    `scalar` is one value per request that the model sees without the dimension of size one.
    """

    name: str
    dtype: str
    dims: tuple[int, ...] = (1,)
    optional: bool = False
    ragged: bool = False
    scalar: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicBatching:
    """How Triton groups requests of a model before it hands them over."""

    preferred_batch_size: int | None = None
    max_queue_delay_microseconds: int = 0
    max_queue_size: int = 0
    priority_levels: int = 0


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
    instance_count: int | None = None
    decoupled: bool = False
    dynamic_batching: DynamicBatching | None = None
    parameters: dict[str, str] = field(default_factory=dict)
    steps: tuple[EnsembleStep, ...] = ()
