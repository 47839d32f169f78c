"""Where requests wait in Triton: batching, limits, priorities, timeouts."""

from collections.abc import Iterator

from llmc.model_repo.options import RepositoryOptions
from llmc.model_repo.specs import DynamicBatching, QueuePolicy


def batch_only(options: RepositoryOptions, max_batch_size: int) -> DynamicBatching:
    """Return how a model groups requests that nobody sorts; its queue has the recipe's limit."""
    return DynamicBatching(
        preferred_batch_size=max_batch_size,
        max_queue_delay_microseconds=options.max_queue_delay_microseconds,
        queue=QueuePolicy(max_queue_size=options.max_queue_size),
    )


def queue_reasons(options: RepositoryOptions) -> Iterator[str]:
    """Yield every priority that does not fit the levels."""
    levels, default = options.priority_levels, options.default_priority_level
    if default is not None and default > levels:
        yield f"default_priority_level: {default}, expected 1 to {levels}"
    for name in ("priority_max_queue_sizes", "priority_timeouts_microseconds"):
        values = getattr(options, name)
        if values is not None and len(values) != levels:
            yield f"{name}: {len(values)} values, expected one for each of {levels} priority_levels"


def batch_by_priority(options: RepositoryOptions, max_batch_size: int) -> DynamicBatching:
    """Return the queue of the model that requests wait for: with timeouts and priorities."""
    levels, default = options.priority_levels, options.default_priority_level
    return DynamicBatching(
        preferred_batch_size=max_batch_size,
        max_queue_delay_microseconds=options.max_queue_delay_microseconds,
        queue=_policy(options, options.max_queue_size, options.queue_timeout_microseconds),
        priority_levels=levels,
        # A request that names no priority gets the lowest one.
        default_priority_level=levels if default is None else default,
        priority_queues=_priority_queues(options),
    )


def _priority_queues(options: RepositoryOptions) -> tuple[QueuePolicy, ...]:
    sizes, timeouts = options.priority_max_queue_sizes, options.priority_timeouts_microseconds
    if sizes is None and timeouts is None:
        return ()
    levels = options.priority_levels
    return tuple(
        _policy(options, size, timeout)
        for size, timeout in zip(
            sizes or (options.max_queue_size,) * levels,
            timeouts or (options.queue_timeout_microseconds,) * levels,
            strict=True,
        )
    )


def _policy(options: RepositoryOptions, max_queue_size: int, timeout: int) -> QueuePolicy:
    return QueuePolicy(
        max_queue_size=max_queue_size,
        timeout_microseconds=timeout,
        timeout_action=options.queue_timeout_action,
        allow_timeout_override=options.allow_timeout_override,
    )
