"""The GPU border of TensorRT engines: memory, streams, plans and contexts of a real device.

The only module that needs one, and thin for that reason: all above it runs without
(`tensorrt_device`). `trt` is the module of whichever TensorRT is used.
"""

import logging
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from llmc.errors import CheckpointError, ServeError, ToolchainError
from llmc.runtime.engines.tensorrt_device import Phase, PlanTensor

log = logging.getLogger(__name__)

PROFILES: dict[Phase, int] = {"context": 0, "generation": 1}
"""The order the target adds its optimization profiles in."""


def compute_capability(index: int) -> int:
    """Return a GPU's compute capability, 89 for 8.9. Raises: ToolchainError without that GPU."""
    if not torch.cuda.is_available():
        raise ToolchainError(
            "no CUDA GPU on this machine, or no driver for it; engines of the tensorrt targets run"
            " on one",
            hint="copy the engine to the GPU host, or build with --target cpu to run it here",
        )
    if index >= torch.cuda.device_count():
        raise ToolchainError(f"GPU {index}: this machine has {torch.cuda.device_count()}")
    major, minor = torch.cuda.get_device_capability(index)
    return int(major) * 10 + int(minor)


class CudaDevice:
    """One GPU (tensorrt_device.Device)."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.stream: Any = torch.cuda.Stream(index)  # type: ignore[no-untyped-call]
        self._memory: dict[int, torch.Tensor] = {}
        self._bases: list[int] = []

    @property
    def free_bytes(self) -> int:
        free, _ = torch.cuda.mem_get_info(self.index)
        return int(free)

    def allocate(self, num_bytes: int) -> int:
        memory = torch.zeros(num_bytes, dtype=torch.uint8, device=f"cuda:{self.index}")
        torch.cuda.synchronize(self.index)
        self._memory[memory.data_ptr()] = memory
        self._bases = sorted(self._memory)
        return memory.data_ptr()

    def upload(self, address: int, array: npt.NDArray[Any]) -> None:
        with self._on_stream():
            self._at(address, array.nbytes).copy_(_bytes(array))

    def download(self, array: npt.NDArray[Any], address: int) -> None:
        with self._on_stream():
            _bytes(array).copy_(self._at(address, array.nbytes))

    def copy(self, target: int, source: int, num_bytes: int) -> None:
        with self._on_stream():
            self._at(target, num_bytes).copy_(self._at(source, num_bytes))

    def close(self) -> None:
        torch.cuda.synchronize(self.index)
        self._memory.clear()
        self._bases.clear()

    def _at(self, address: int, num_bytes: int) -> torch.Tensor:
        base = self._bases[bisect_right(self._bases, address) - 1]
        return self._memory[base][address - base :][:num_bytes]

    @contextmanager
    def _on_stream(self) -> Iterator[None]:
        with torch.cuda.device(self.index), torch.cuda.stream(self.stream):
            yield


def _bytes(array: npt.NDArray[Any]) -> torch.Tensor:
    assert array.flags.c_contiguous
    return torch.from_numpy(array.reshape(-1).view(np.uint8))


class GpuPlan:
    """A plan deserialized on a GPU (tensorrt_device.Plan)."""

    def __init__(self, trt: Any, device: CudaDevice, path: Path, *, cache: Path) -> None:
        """Load `path`; kernels it compiled for this GPU before are in `cache`.

        Raises: CheckpointError when TensorRT does not take the plan.
        """
        self._trt, self._device, self._path, self._cache_path = trt, device, path, cache
        self.communicator: Any | None = None
        self._logger = trt.Logger(trt.Logger.WARNING)
        self._runtime = trt.Runtime(self._logger)
        with torch.cuda.device(device.index):
            self.engine = self._runtime.deserialize_cuda_engine(path.read_bytes())
            if self.engine is None:
                raise CheckpointError(
                    f"{path}: TensorRT {trt.__version__} cannot load this plan on GPU"
                    f" {device.index}",
                    hint="the log above says why; build it again with this version's builder",
                )
            self._cache = self._open_cache()
        self.tensors = tuple(map(self._tensor, range(self.engine.num_io_tensors)))

    def _tensor(self, index: int) -> PlanTensor:
        engine, name = self.engine, self.engine.get_tensor_name(index)
        is_input = engine.get_tensor_mode(name) == self._trt.TensorIOMode.INPUT
        return PlanTensor(
            name=name,
            is_input=is_input,
            shape=tuple(engine.get_tensor_shape(name)),
            itemsize=int(engine.get_tensor_dtype(name).itemsize),
            aliases=None if is_input else engine.get_aliased_input_tensor(name) or None,
        )

    def refit(self, weights: Callable[[str], npt.NDArray[Any]], dtypes: dict[str, Any]) -> None:
        """Give every weight the plan was built without its values.

        `weights` reads one by name, `dtypes` has its trt.DataType. Raises: CheckpointError.
        """
        refitter = self._trt.Refitter(self.engine, self._logger)
        kept = []
        for name in refitter.get_all_weights():
            if name not in dtypes:
                raise CheckpointError(f"{self._path}: wants the weight {name}, which is not there")
            array = np.ascontiguousarray(weights(name))
            kept.append(array)
            count = refitter.get_weights_prototype(name).size
            given = self._trt.Weights(dtypes[name], array.ctypes.data, count)
            if not refitter.set_named_weights(name, given):
                raise CheckpointError(f"{self._path}: refuses the weight {name}, {array.shape}")
        if not refitter.refit_cuda_engine():
            missing = ", ".join(refitter.get_missing_weights()[:3])
            raise CheckpointError(f"{self._path}: the refit failed; missing: {missing or 'none'}")

    def max_shape(self, name: str, phase: Phase) -> tuple[int, ...]:
        return tuple(self.engine.get_tensor_profile_shape(name, PROFILES[phase])[2])

    def context(self, phase: Phase) -> "GpuContext":
        """Make a context of a profile; generation's steps, all alike, are CUDA graphs."""
        trt = self._trt
        config = self.engine.create_runtime_config()
        if self._cache is not None:
            config.set_runtime_cache(self._cache)
        # TensorRT itself captures nothing; its steps are launched one by one.
        if phase == "generation" and hasattr(trt, "CudaGraphStrategy"):
            config.cuda_graph_strategy = trt.CudaGraphStrategy.WHOLE_GRAPH_CAPTURE
        with torch.cuda.device(self._device.index):
            context = self.engine.create_execution_context(config)
        stream = self._device.stream
        if context is None or not context.set_optimization_profile_async(
            PROFILES[phase], stream.cuda_stream
        ):
            raise ServeError(f"{self._path}: no context for the {phase} profile; is memory left?")
        stream.synchronize()
        if self.communicator is not None and not context.set_communicator(self.communicator):
            raise ServeError(f"{self._path}: TensorRT does not take the NCCL communicator")
        return GpuContext(context, self._device, f"{self._path} ({phase})")

    def close(self) -> None:
        """Keep the kernels compiled so far, so that the next start need not compile them."""
        if self._cache is None:
            return
        try:
            self._cache_path.parent.mkdir(parents=True, exist_ok=True)
            self._cache_path.write_bytes(bytes(self._cache.serialize()))
        except OSError as error:
            log.warning("%s: not kept, the next start compiles again: %s", self._cache_path, error)

    def _open_cache(self) -> Any:
        """Return TensorRT for RTX's cache of compiled kernels; TensorRT has none and needs none."""
        config = self.engine.create_runtime_config()
        if not hasattr(config, "create_runtime_cache"):
            return None
        cache = config.create_runtime_cache()
        if self._cache_path.is_file() and not cache.deserialize(self._cache_path.read_bytes()):
            log.info("%s: of another GPU or version, made anew", self._cache_path)
        return cache


class GpuContext:
    """An execution context of one profile (tensorrt_device.PlanContext)."""

    def __init__(self, context: Any, device: CudaDevice, where: str) -> None:
        self.context, self._device, self._where = context, device, where

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> None:
        if not self.context.set_input_shape(name, shape):
            raise ServeError(f"{self._where}: {name} of {shape} is outside its profile")

    def set_tensor_address(self, name: str, address: int) -> None:
        if not self.context.set_tensor_address(name, address):
            raise ServeError(f"{self._where}: {name} cannot be bound")

    def execute(self) -> None:
        with torch.cuda.device(self._device.index):
            if not self.context.execute_async_v3(self._device.stream.cuda_stream):
                raise ServeError(f"{self._where}: the step failed; the log above says why")
