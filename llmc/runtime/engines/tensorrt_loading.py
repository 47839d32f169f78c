"""From an engine directory to an engine: finds the plan for this machine's GPU and loads it."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from llmc.errors import CheckpointError, ToolchainError, UnsupportedError
from llmc.runtime.engine import Engine, EngineLimits, KvCacheConfig, read_engine_config
from llmc.runtime.engines.tensorrt_device import Device, Plan
from llmc.runtime.engines.tensorrt_engine import SlotEngine
from llmc.runtime.engines.tensorrt_slots import SlotCaches
from llmc.runtime.engines.tensorrt_weights import open_weights, refit, upload_inputs

log = logging.getLogger(__name__)


def check(engine_dir: Path, rank: int) -> str | None:
    """Return the build of rank `rank`'s plans, if it says. Raises: CheckpointError without any."""
    own = read_engine_config(engine_dir)["llmc"]
    files = [str(plan["file"]) for plan in own.get("plans", ()) if plan["rank"] == rank]
    missing = [file for file in files if not (engine_dir / file).is_file()]
    if missing or not files:
        raise CheckpointError(f"{engine_dir}: no plan of rank {rank}: {', '.join(missing)}")
    build: str | None = own.get("build")
    return build


def lacking(engine_dir: Path, import_trt: Callable[[], Any]) -> str | None:
    """Return what this machine lacks to run the plans; None if it has a GPU that one is for."""
    try:
        _, gpu = _import_all(import_trt)
        plans = read_engine_config(engine_dir)["llmc"]["plans"]
        choose_plan(plans, 0, gpu.compute_capability(0))
    except (ToolchainError, UnsupportedError) as error:
        return error.message
    return None


def load(
    engine_dir: Path,
    import_trt: Callable[[], Any],
    *,
    rank: int = 0,
    kv: KvCacheConfig,
    comm: Any | None = None,
    threads: int | None = None,
) -> Engine:
    """Load rank `rank`'s plan for GPU number `rank`, modulo the GPUs of this machine.

    `import_trt` imports the TensorRT of the engine's target. `threads` is for engines that run on
    the CPU. Raises: ToolchainError without a GPU, that TensorRT or torch; UnsupportedError when no
    plan is for this GPU or no slot fits its memory; CheckpointError for a broken directory.
    """
    trt, gpu = _import_all(import_trt)
    config = read_engine_config(engine_dir)
    own = config["llmc"]
    index = rank % max(1, gpu.torch.cuda.device_count())
    capability = gpu.compute_capability(index)
    file = choose_plan(own["plans"], rank, capability)
    device = gpu.CudaDevice(index)
    cache = engine_dir.with_name(f"{engine_dir.name}.runtime_cache") / f"{file}.bin"
    plan = gpu.GpuPlan(trt, device, engine_dir / file, cache=cache)
    weight_inputs: dict[str, int] = {}
    if own.get("weights") == "refit":
        weights = open_weights(engine_dir, rank)
        refit(trt, plan, weights)
        weight_inputs = upload_inputs(own["bindings"], weights, device)
    plan.communicator = _communicator(gpu, index, comm)
    limits = plan_limits(config, kv, device, plan)
    slots, length = limits.num_blocks, limits.max_seq_len
    log.info("%s: GPU %d, %d slots of %d tokens", file, index, slots, length)
    return SlotEngine(device, plan, limits, weight_inputs)


def choose_plan(plans: list[dict[str, Any]], rank: int, capability: int) -> str:
    """Return the file of the plan for a rank and compute capability. Raises: UnsupportedError."""
    own = [plan for plan in plans if plan["rank"] == rank]
    for plan in own:
        if capability in plan["capabilities"]:
            return str(plan["file"])
    built = sorted({number for plan in own for number in plan["capabilities"]})
    raise UnsupportedError(
        f"GPU of compute capability {capability}: the engine has plans for {built}",
        hint=f"build it with --compute-capability {capability}, where TensorRT has that one",
    )


def plan_limits(
    config: dict[str, Any], kv: KvCacheConfig, device: Device, plan: Plan
) -> EngineLimits:
    """Return the limits of an engine with as many slots as its profile and memory allow.

    Raises: UnsupportedError when there is not memory for one.
    """
    build, slot_bytes = config["build_config"], SlotCaches.slot_bytes(plan.tensors)
    max_seq_len = int(build["max_seq_len"])
    fitting = int(device.free_bytes * kv.free_memory_fraction) // slot_bytes
    if kv.max_tokens is not None:
        fitting = min(fitting, kv.max_tokens // max_seq_len)
    slots = min(int(build["max_batch_size"]), fitting)
    if slots < 1:
        raise UnsupportedError(
            f"KV cache: no slot of {max_seq_len} tokens ({slot_bytes / 2**30:.2f} GiB) fits into"
            f" {device.free_bytes / 2**30:.1f} GiB of free GPU memory and max_tokens"
            f" {kv.max_tokens}",
            hint="build with a smaller max_seq_len",
        )
    if slots < int(build["max_batch_size"]):
        log.warning("%d slots fit, max_batch_size is %s", slots, build["max_batch_size"])
    return EngineLimits(
        max_batch_size=slots,
        max_num_tokens=int(build["max_num_tokens"]),
        max_input_len=int(build["max_input_len"]),
        max_seq_len=max_seq_len,
        vocab_size=int(config["pretrained_config"]["vocab_size"]),
        tokens_per_block=max_seq_len,
        num_blocks=slots,
    )


def _communicator(gpu: Any, index: int, comm: Any | None) -> Any | None:
    if comm is None:
        return None
    from llmc.runtime.engines.tensorrt_nccl import open_nccl

    with gpu.torch.cuda.device(index):
        return open_nccl(comm)


def _import_all(import_trt: Callable[[], Any]) -> tuple[Any, Any]:
    """Return TensorRT and the GPU border. Raises: ToolchainError naming what is missing."""
    try:
        from llmc.runtime.engines import tensorrt_gpu
    except ImportError as error:
        raise ToolchainError(
            f"torch cannot be imported: {error}; it holds the memory of tensorrt engines",
            hint="pip install 'llmc[torch]'",
        ) from error
    tensorrt_gpu.compute_capability(0)
    return import_trt(), tensorrt_gpu
