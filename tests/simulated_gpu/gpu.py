"""The device: what it runs, what it has memory for, and when the host may go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from threading import RLock
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.attention import SDPBackend
from torch.utils._pytree import tree_leaves, tree_map
from triton.runtime.interpreter import InterpretedFunction

from tests.simulated_gpu.graphs import Graph, repeat, written_by
from tests.simulated_gpu.hooks import Dispatch, HostGenerator, NamedDevice, guard_that_does_nothing
from tests.simulated_gpu.kernel_forms import form_of
from tests.simulated_gpu.registered import ILLEGAL_ADDRESS, RegisteredMemory
from tests.simulated_gpu.runtime import installed
from tests.simulated_gpu.tensors import Allocation, DeviceTensor, RefusedError, bytes_of, held, is_host, spoil

aten = torch.ops.aten
CAPABILITY = (9, 0)
MAX_GRID = (2**31 - 1, 65535, 65535)
# Operations that answer a question about values, or whose result is as large as values say: the host waits for them.
WAITING_TAGS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
# With indices of the device they do not wait, unless it is a mask, whose result is as large as it has ones.
INDEXING = {aten.index.Tensor, aten.index_put_.default, aten.index_put.default, aten._index_put_impl_.default}


@dataclass(slots=True)
class Copy:
    """On its way. To the device: `source` is what it was. To the host: `destination` shows `value` once it is there."""

    source: Tensor | None
    destination: Tensor | None
    value: Tensor


class SimulatedGPU:
    name = "a simulated GPU"
    capability = CAPABILITY

    def __init__(self, total_bytes: int = 1 << 28) -> None:
        self.total_bytes = total_bytes
        self.allocated = self.peak = 0  # bytes
        self.graphs: list[Graph] = []
        self.num_copies = self.num_arrived = 0  # that nobody waited for, in the order of their launch
        self._copies: list[Copy] = []  # those that have not arrived
        self._pinned: dict[int, StorageWeakRef] = {}  # by address, which is nobody else's while this refers to it
        self._pinned_bytes: dict[int, int] = {}  # by the same
        self.registered = RegisteredMemory()
        self._last_error: str | None = None  # of a call that returned it: torch finds it after its next launch
        self._forms: set[str] = set()
        self._recorded: Graph | None = None
        self._serving = False
        self._faults: list[str] = []
        self._num_launches_left: int | None = None  # until one faults; None: none does
        self._is_dead = False
        self._lock = RLock()

    @contextmanager
    def running(self) -> Iterator[SimulatedGPU]:
        """torch and Triton find it, as the only device."""
        run, submit = InterpretedFunction.run, ThreadPoolExecutor.submit

        def on_a_thread(pool: ThreadPoolExecutor, task: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            def with_device() -> Any:
                with self.on_this_thread():
                    return task(*args, **kwargs)

            return submit(pool, with_device)

        def launch(kernel: InterpretedFunction, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
            self._launch(kernel, args, kwargs, grid, partial(run, kernel, grid=grid, warmup=warmup))

        with ExitStack() as stack:
            stack.enter_context(guard_that_does_nothing())
            stack.enter_context(installed(self))
            stack.enter_context(patch.object(torch, "Generator", HostGenerator))
            stack.enter_context(patch.object(InterpretedFunction, "run", launch))
            stack.enter_context(patch.object(ThreadPoolExecutor, "submit", on_a_thread))
            stack.enter_context(self.on_this_thread())
            yield self

    def join_thread(self) -> None:
        """As `on_this_thread`, for as long as the thread lives."""
        NamedDevice().__enter__()  # type: ignore[no-untyped-call]
        Dispatch(self.dispatch).__enter__()  # type: ignore[no-untyped-call]

    @contextmanager
    def on_this_thread(self) -> Iterator[None]:
        """What a thread of its own needs besides `running`; those of executors have it."""
        with NamedDevice(), Dispatch(self.dispatch):
            yield

    @contextmanager
    def rules_of_serving(self) -> Iterator[None]:
        """Raises what was refused meanwhile, whoever may have caught it."""
        self._serving, self._faults = True, []
        try:
            yield
        finally:
            self._serving = False
            if self._faults:
                raise RefusedError("; ".join(dict.fromkeys(self._faults)))

    def refuse(self, why: str) -> None:
        self._faults.append(why)
        raise RefusedError(why)

    def die_in(self, num_launches: int) -> None:
        """So many launches from now, one makes an illegal access. It returns as others do; whatever touches the device
        after it raises, for good (a sticky error), and no copy arrives any more."""
        self._num_launches_left = num_launches

    def require_alive(self) -> None:
        """Raises what CUDA answers to any call once its context is lost."""
        if self._is_dead:
            raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    def _count_launch(self) -> None:
        if self._last_error is not None:
            error, self._last_error = self._last_error, None
            raise torch.AcceleratorError(error)
        if self._num_launches_left is not None:
            self._num_launches_left -= 1
            self._is_dead = self._num_launches_left <= 0

    def wait(self, what: str = "torch.cuda.synchronize") -> None:
        """The host waits until all is done."""
        self.require_alive()
        if self._recorded is not None:
            self.refuse(f"{what} waits for the device while a graph is recorded")
        if self._serving:
            self.refuse(f"{what} waits for the device")
        self.arrive(self.num_copies)

    @torch.inference_mode()  # in which tensors may be written to whatever mode they are of
    def arrive(self, count: int) -> None:
        """The first `count` copies have run."""
        while self.num_arrived < count:
            copy = self._copies.pop(0)
            self.num_arrived += 1
            if copy.source is not None and not torch.equal(bytes_of(copy.source), bytes_of(copy.value)):
                self.refuse("memory was written to before its copy to the device had run")
            if copy.destination is not None:
                copy.destination.copy_(copy.value)

    def grow(self, num_bytes: int) -> None:
        with self._lock:
            if num_bytes > 0 and self.allocated + num_bytes > self.total_bytes:
                raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {num_bytes} bytes.")
            self.allocated += num_bytes
            self.peak = max(self.peak, self.allocated)

    def register(self, address: int, num_bytes: int, flags: int) -> int:
        """cudaHostRegister. Returns CUDA's error code."""
        return self._keep(ILLEGAL_ADDRESS if self._is_dead else self.registered.add(address, num_bytes, flags))

    def unregister(self, address: int) -> int:
        """cudaHostUnregister. Returns CUDA's error code."""
        return self._keep(ILLEGAL_ADDRESS if self._is_dead else self.registered.remove(address))

    def _keep(self, code: int) -> int:
        if code:
            self._last_error = f"CUDA error: {code}"
        return code

    @property
    def pinned_bytes(self) -> int:
        """Of the host's memory: what is registered, and blocks of torch's allocator, which are powers of two."""
        alive = [at for at, storage in self._pinned.items() if not storage.expired()]  # type: ignore[no-untyped-call]
        blocks = sum(1 << (self._pinned_bytes[at] - 1).bit_length() for at in alive if self._pinned_bytes[at])
        return blocks + self.registered.num_bytes

    def begin_recording(self, graph: Graph) -> None:
        self.require_alive()
        if self._recorded is not None:
            self.refuse("a graph is recorded while another is")
        self._recorded = graph
        self.graphs.append(graph)

    def end_recording(self, graph: Graph | None) -> None:
        if graph is None or self._recorded is not graph:
            self.refuse("the recording of a graph ends that has not begun")
        self._recorded = None

    def _launch(
        self, kernel: InterpretedFunction, args: Sequence[Any], kwargs: Mapping[str, Any], grid: Sequence[int],
        run: Callable[..., None],
    ) -> None:  # fmt: skip
        self.require_alive()
        name = kernel.__name__
        for leaf in tree_leaves((args, kwargs)):
            if isinstance(leaf, Tensor) and not isinstance(leaf, DeviceTensor) and not self._is_pinned(leaf):
                self.refuse(f"{name} is given memory of the host that is not pinned")
        if any(size > limit for size, limit in zip(grid, MAX_GRID, strict=False)):
            self.refuse(f"{name} is launched on a grid of {grid}")
        args, kwargs = tree_map(held, (tuple(args), dict(kwargs)))
        form = form_of(kernel, args, kwargs, CAPABILITY)
        if form not in self._forms and (self._serving or self._recorded is not None):
            self.refuse(f"{form} is compiled, as it has not come before")
        self._forms.add(form)
        self._do(partial(run, *args, **kwargs))
        self._count_launch()

    def _do(self, launch: Callable[[], object]) -> None:
        if self._recorded is None:
            launch()
        else:
            self._recorded.launches.append(launch)

    def dispatch(self, func: Any, args: Any, kwargs: Any) -> Any:
        """An operation of torch's."""
        if func is aten.copy_.default:
            return self._copy(*args, **kwargs)
        of_device = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, DeviceTensor)]
        target = None if kwargs.get("device") is None else torch.device(kwargs["device"]).type
        if func is aten._to_copy.default and target is not None and (target == "cuda") != bool(of_device):
            return self._move(args[0], kwargs, target)
        if of_device or target == "cuda":
            if func._can_decompose():  # into what has kernels, which inference mode does not do before
                with Dispatch(self.dispatch):
                    return func.decompose(*args, **kwargs)
            return self._on_device(func, args, kwargs, of_device)
        if func is aten.is_pinned.default:
            return self._is_pinned(args[0])
        return self._on_host(func, args, kwargs)

    def _on_host(self, func: Any, args: Any, kwargs: Any) -> Any:
        pinned = kwargs.pop("pin_memory", False) or func is aten._pin_memory.default
        out = args[0].clone() if func is aten._pin_memory.default else func(*args, **kwargs)
        if pinned:
            self._pin(out)
        return out

    def _on_device(self, func: Any, args: Any, kwargs: Any, of_device: list[DeviceTensor]) -> Any:
        if func is aten._fused_sdp_choice.default:
            return SDPBackend.MATH.value
        self.require_alive()
        self._check(func, args, kwargs)
        arguments, options = tree_map(held, (args, kwargs))
        options.pop("pin_memory", None)
        if options.get("device") is not None:
            options["device"] = torch.device("cpu")
        # An operation that is recorded does not run: what it has written is taken back.
        written = written_by(func, arguments, options) if self._recorded is not None else []
        before = [tensor.clone() for tensor in written]
        out = func(*arguments, **options)
        for tensor, was in zip(written, before, strict=True):
            tensor.copy_(was)
        fresh, wrapped = self._wrap(out, of_device)
        if not func.is_view:
            self._count_launch()
        if func._schema.name.removeprefix("aten::").removeprefix("new_").startswith("empty"):
            for tensor in fresh:
                self._do(partial(spoil, tensor))
        elif self._recorded is not None and (written or fresh):
            self._recorded.launches.append(partial(repeat, func, arguments, options, fresh, of_device))
        return wrapped

    def _check(self, func: Any, args: Any, kwargs: Any) -> None:
        """Raises for what a GPU refuses or waits for."""
        indices = args[1] if func in INDEXING else []
        others = [args[0], *args[2:]] if func in INDEXING else args
        if any(is_host(leaf) and leaf.dim() for leaf in tree_leaves((others, kwargs))):
            self.refuse(f"{func} is given tensors on the device and on the host")
        if any(is_host(index) or index.dtype in (torch.bool, torch.uint8) for index in indices if index is not None):
            self.wait(f"{func} with a mask, or with indices of the host's,")
        elif func not in INDEXING and WAITING_TAGS & {*func.tags}:
            self.wait(str(func))

    def _wrap(self, out: Any, of_device: list[DeviceTensor]) -> tuple[list[Tensor], Any]:
        """The values that are no part of a tensor given, and all as tensors of the device."""
        same = {id(tensor.held): tensor for tensor in of_device}
        memory = {tensor.held.untyped_storage()._cdata: tensor.memory for tensor in of_device}
        fresh: list[Tensor] = []

        def wrap(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor) or id(leaf) in same:
                return same.get(id(leaf), leaf)
            storage = leaf.untyped_storage()
            if storage._cdata not in memory:
                memory[storage._cdata] = Allocation(self.grow, storage.nbytes())
                fresh.append(leaf)
            return DeviceTensor(leaf, memory[storage._cdata])

        return fresh, tree_map(wrap, out)

    def _move(self, tensor: Tensor, kwargs: Mapping[str, Any], target: str) -> Tensor:
        """To the other side, to memory of its own: torch's `_to_copy`."""
        dtype, non_blocking = kwargs.get("dtype") or tensor.dtype, kwargs.get("non_blocking", False)
        # To the host without waiting, torch takes pinned memory.
        pinned = non_blocking and target == "cpu"
        out = torch.empty_like(held(tensor), dtype=dtype, device="cpu", memory_format=kwargs.get("memory_format"))
        if target == "cuda":
            out = DeviceTensor(out, Allocation(self.grow, out.untyped_storage().nbytes()))
        elif pinned:
            self._pin(out)
        return self._copy(out, tensor, non_blocking)

    def _copy(self, to: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
        if is_host(to) and is_host(source):
            return to.copy_(source, non_blocking)
        if not is_host(to) and not is_host(source):
            copied: Tensor = self._on_device(aten.copy_.default, (to, source), {}, [to, source])  # type: ignore[list-item]
            return copied
        self.require_alive()
        host = to if is_host(to) else source
        value = held(source).to(to.dtype).expand(to.shape).clone()
        # Another type or layout goes through memory that torch takes for it, which is not pinned.
        alike = to.dtype == source.dtype and host.is_contiguous()
        if not (non_blocking and alike and self._is_pinned(host)):
            self.wait("a copy between the device and memory of the host that is not pinned, or that is waited for,")
            held(to).copy_(value)
            return to
        if self._recorded is not None:
            self.refuse("a graph would repeat a copy between the device and the host")
        if host is to:
            spoil(to)
            self._copies.append(Copy(None, to, value))
        else:
            held(to).copy_(value)
            self._copies.append(Copy(source, None, source.clone()))
        self.num_copies += 1
        return to

    def _pin(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        self._pinned[storage._cdata] = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        self._pinned_bytes[storage._cdata] = storage.nbytes()

    def _is_pinned(self, tensor: Tensor) -> bool:
        storage = tensor.untyped_storage()
        start, end = storage.data_ptr(), storage.data_ptr() + storage.nbytes()
        return storage._cdata in self._pinned or self.registered.holds(start, end)
