"""The compiled functions under `torch.cuda`, for one simulated device.

torch's own Python (`set_device`, `synchronize`, `Stream`, `Event`, `graph`, `memory_allocated` and the others) runs
unchanged above them, so it checks its arguments as it does on a real GPU. A function that is missing here raises
AttributeError; none is answered silently. Checks that torch does in C++ are repeated here where our code could fail
them: the device's index, and what a graph, a stream and an event must be before they are used.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from threading import local
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
import torch._dynamo.device_interface  # before torch.cuda seems to be compiled: it looks for more than is simulated

from tests.simulated_gpu.graphs import Graph

if TYPE_CHECKING:
    import pytest

    from tests.simulated_gpu.gpu import SimulatedGPU

CUDA_DEVICE_TYPE = 1  # c10::DeviceType
DEFAULT_STREAM = 0
CAPTURE_MODES = ("global", "thread_local", "relaxed")


def device_properties(capability: tuple[int, int], name: str, total_bytes: int) -> SimpleNamespace:
    """Those of torch's `_CudaDeviceProperties` that are used; any other raises AttributeError."""
    return SimpleNamespace(
        name=name, major=capability[0], minor=capability[1], multi_processor_count=4, total_memory=total_bytes
    )


def pretend_properties(monkeypatch: pytest.MonkeyPatch, *capabilities: tuple[int, int], name: str = "a GPU") -> None:
    """torch answers for so many devices, and checks what it is asked for as on a GPU. Nothing can be launched there."""

    def get_properties(device: Any = None) -> SimpleNamespace:
        index = torch.cuda._utils._get_device_index(device, optional=True)
        if not 0 <= index < len(capabilities):
            raise AssertionError("Invalid device id")
        return device_properties(capabilities[index], name, 1 << 34)

    monkeypatch.setattr(torch.cuda, "get_device_properties", get_properties)


@contextmanager
def installed(gpu: SimulatedGPU) -> Iterator[None]:
    """torch finds the device, as the only one."""
    current = local()

    def check_index(index: int) -> int:
        if index != 0:
            raise torch.AcceleratorError(f"CUDA error: invalid device ordinal: {index}")
        return index

    def exchange_device(index: int) -> int:
        return -1 if index < 0 else check_index(index)

    def get_properties(index: int) -> SimpleNamespace:
        check_index(index)
        return device_properties(gpu.capability, gpu.name, gpu.total_bytes)

    def memory_stats(index: int) -> Mapping[str, Any]:
        check_index(index)
        return {"allocated_bytes": {"all": {"current": gpu.allocated, "peak": gpu.peak}}}

    def reset_peak(index: int) -> None:
        check_index(index)
        gpu.peak = gpu.allocated

    def memory_info(index: int) -> tuple[int, int]:
        check_index(index)
        gpu.require_alive()
        return gpu.total_bytes - gpu.allocated, gpu.total_bytes

    def current_stream(index: int) -> tuple[int, int, int]:
        return getattr(current, "stream", DEFAULT_STREAM), check_index(index), CUDA_DEVICE_TYPE

    def set_stream(*, stream_id: int, device_index: int, device_type: int) -> None:
        check_index(device_index)
        current.stream = stream_id

    functions = {
        "_cuda_init": lambda: None,
        "_cuda_isInBadFork": lambda: False,
        "_cuda_getArchFlags": lambda: f"sm_{gpu.capability[0]}{gpu.capability[1]}",
        "_cuda_getDeviceCount": lambda: 1,
        "_cuda_getDevice": lambda: 0,
        "_cuda_setDevice": check_index,
        "_cuda_synchronize": gpu.wait,
        "_cuda_emptyCache": gpu.require_alive,
        "_host_emptyCache": gpu.require_alive,
        "_cuda_memoryStats": memory_stats,
        "_cuda_resetPeakMemoryStats": reset_peak,
        "_cuda_getCurrentStream": current_stream,
        "_cuda_getDefaultStream": lambda index: (DEFAULT_STREAM, check_index(index), CUDA_DEVICE_TYPE),
        "_cuda_setStream": set_stream,
        "_has_cuda": True,
    }
    in_cuda = {
        "_initialized": True,
        "_cached_device_count": None,
        "_cudart": SimpleNamespace(
            cudaMemGetInfo=memory_info,
            cudaError=SimpleNamespace(success=0),
            cudaHostRegister=gpu.register,
            cudaHostUnregister=gpu.unregister,
        ),
        "_exchange_device": exchange_device,
        "_maybe_exchange_device": exchange_device,
        "_get_device_properties": get_properties,
    }
    with ExitStack() as stack:
        for name, stand_in in functions.items():
            stack.enter_context(patch.object(torch._C, name, stand_in, create=True))
        for name, stand_in in in_cuda.items():
            stack.enter_context(patch.object(torch.cuda, name, stand_in, create=True))
        stack.enter_context(patch.object(torch.cuda.graphs, "_graph_pool_handle", lambda: (0, 1)))
        stack.enter_context(patch.object(torch.cuda.graph, "default_capture_stream", None))
        for base, stand_in in (
            (torch._C._CudaStreamBase, _stream_base()),
            (torch._C._CudaEventBase, _event_base(gpu)),
            (torch._C._CUDAGraph, _graph_base(gpu)),
        ):
            for name, member in stand_in.items():
                stack.enter_context(patch.object(base, name, member, create=True))
        yield


def _stream_base() -> Mapping[str, Any]:
    """Of `torch._C._CudaStreamBase`. Streams have names only: all work is in the order of its launch."""
    count = DEFAULT_STREAM

    def new(
        cls: Any, *, priority: int = 0, stream_id: int | None = None, device_index: int = 0, device_type: int = 1
    ) -> Any:
        nonlocal count
        if stream_id is None:
            count += 1
            stream_id = count
        stream = object.__new__(cls)
        stream.stream_id, stream.device_index, stream.device_type = stream_id, device_index, device_type
        stream.device, stream.cuda_stream = torch.device("cuda", device_index), stream_id
        return stream

    def equal(stream: Any, other: Any) -> bool:
        same: bool = stream.stream_id == other.stream_id
        return same

    return {"__new__": staticmethod(new), "__init__": _accept_anything, "__eq__": equal}


def _event_base(gpu: SimulatedGPU) -> Mapping[str, Any]:
    """Of `torch._C._CudaEventBase`. An event has come to pass by the second time that it is asked, or once it is
    waited for."""

    def new(cls: Any, *, enable_timing: bool, blocking: bool, interprocess: bool, external: bool) -> Any:
        event = object.__new__(cls)
        event.enable_timing, event.recorded_at, event.num_copies, event.asked = enable_timing, None, 0, False
        event.cuda_event = 0
        return event

    def record(event: Any, stream: torch.cuda.Stream) -> None:
        gpu.require_alive()
        event.recorded_at, event.num_copies, event.asked = time.perf_counter(), gpu.num_copies, False

    def wait(event: Any, stream: torch.cuda.Stream) -> None:
        gpu.require_alive()

    def query(event: Any) -> bool:
        gpu.require_alive()
        if event.asked:
            synchronize(event)
        event.asked = True
        num_copies: int = event.num_copies
        return gpu.num_arrived >= num_copies

    def synchronize(event: Any) -> None:
        gpu.require_alive()
        gpu.arrive(event.num_copies)

    def elapsed_time(event: Any, end: Any) -> float:
        if not (event.enable_timing and end.enable_timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if event.recorded_at is None or end.recorded_at is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        if gpu.num_arrived < end.num_copies:
            raise ValueError("Both events must be completed before calculating elapsed time.")
        return float(1e3 * (end.recorded_at - event.recorded_at))

    members = {"record": record, "wait": wait, "query": query, "synchronize": synchronize, "elapsed_time": elapsed_time}
    return {"__new__": staticmethod(new), "__init__": _accept_anything, **members}


def _graph_base(gpu: SimulatedGPU) -> Mapping[str, Any]:
    """Of `torch._C._CUDAGraph`."""

    def new(cls: Any, keep_graph: bool = False) -> Any:
        graph = object.__new__(cls)
        graph.recorded, graph.is_complete = None, False
        return graph

    def capture_begin(graph: Any, *, pool: object = None, capture_error_mode: str = "global") -> None:
        if graph.recorded is not None:
            raise RuntimeError("This CUDAGraph instance already owns a captured graph.")
        if capture_error_mode not in CAPTURE_MODES:
            raise RuntimeError(f"Unknown capture error mode. Expected one of {CAPTURE_MODES}, got {capture_error_mode}")
        if torch.cuda.current_stream() == torch.cuda.default_stream():
            raise RuntimeError("CUDA graphs must be captured on a non-default stream.")
        graph.recorded = Graph()
        gpu.begin_recording(graph.recorded)

    def capture_end(graph: Any) -> None:
        gpu.end_recording(graph.recorded)
        graph.is_complete = True

    def replay(graph: Any) -> None:
        if not graph.is_complete:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
        gpu.require_alive()
        graph.recorded.replay()

    members = {"capture_begin": capture_begin, "capture_end": capture_end, "replay": replay}
    return {"__new__": staticmethod(new), "__init__": _accept_anything, **members}


def _accept_anything(self: Any, *args: Any, **kwargs: Any) -> None:
    """`__new__` has taken the arguments."""
