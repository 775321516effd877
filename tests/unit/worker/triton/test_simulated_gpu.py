"""The rules of the simulated GPU: what each lets pass, and what it refuses."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from services.worker.ops.triton.activation import activation_kernel
from services.worker.ops.triton.segments import add_segments
from services.worker.ops.triton.token_ids import fill_last_tokens
from services.worker.transfers.copies import Download, upload
from services.worker.transfers.packed import PackedArrays
from tests.simulated_gpu import RefusedError, SimulatedGPU
from tests.unit.worker.triton.conftest import HAS_GPU

pytestmark = pytest.mark.skipif(HAS_GPU, reason="there is a real one")
CUDA = torch.device("cuda")


@pytest.fixture
def gpu() -> Iterator[SimulatedGPU]:
    with SimulatedGPU().running() as gpu:
        yield gpu


def test_host_and_device_do_not_mix(gpu: SimulatedGPU) -> None:
    on_device = torch.ones(3, device="cuda")
    assert (on_device + torch.ones(())).tolist() == [2, 2, 2]
    with pytest.raises(RefusedError, match="on the device and on the host"):
        on_device + torch.ones(3)
    with pytest.raises(RefusedError, match="on the device and on the host"):
        torch.ones(3).add_(on_device)
    with pytest.raises((TypeError, RuntimeError), match="numpy"):
        on_device.numpy()


def pinned(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float32).pin_memory()


@pytest.mark.parametrize(
    "wait",
    [
        lambda tensor: tensor.sum().item(),
        lambda tensor: bool((tensor > 0).all()),
        lambda tensor: tensor.tolist(),
        lambda tensor: tensor.cpu(),
        lambda tensor: tensor.nonzero(),
        lambda tensor: torch.equal(tensor, tensor),
        lambda tensor: tensor[tensor > 0],
        lambda tensor: tensor[torch.tensor([0])],
        lambda tensor: tensor.__setitem__(tensor > 0, tensor[0]),
        lambda tensor: tensor.copy_(torch.ones(3)),
        lambda tensor: tensor.copy_(pinned(1, 2, 3)),
        lambda tensor: tensor.copy_(torch.ones(3), non_blocking=True),
        lambda tensor: tensor.copy_(pinned(1, 2, 3).int(), non_blocking=True),
        lambda tensor: torch.ones(3).copy_(tensor, non_blocking=True),
        lambda tensor: torch.ones(3).to("cuda", non_blocking=True),
        lambda tensor: torch.tensor([1, 2], device="cuda"),
        lambda tensor: torch.cuda.synchronize(),
        lambda tensor: torch.cuda.graph(torch.cuda.CUDAGraph()).__enter__(),
    ],
)
def test_whatever_waits_is_refused_while_serving(gpu: SimulatedGPU, wait: Callable[[Tensor], object]) -> None:
    with pytest.raises(RefusedError, match="waits for the device"), gpu.rules_of_serving():
        wait(torch.ones(3, device="cuda"))
    wait(torch.ones(3, device="cuda"))


def test_what_does_not_wait_is_let_pass(gpu: SimulatedGPU) -> None:
    with gpu.rules_of_serving():
        tensor = torch.arange(3.0, device="cuda")
        tensor[1:2] = 5
        tensor[1:] += tensor[torch.zeros(2, dtype=torch.int64, device="cuda")]
        tensor.copy_(pinned(1, 2, 3), non_blocking=True)
        late = tensor.masked_fill(tensor > 2, 0).to("cpu", non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        event.synchronize()
    assert late.tolist() == [1, 2, 0]


def test_what_was_refused_is_told_in_the_end_though_somebody_caught_it(gpu: SimulatedGPU) -> None:
    with pytest.raises(RefusedError, match="_local_scalar_dense"), gpu.rules_of_serving(), pytest.raises(RefusedError):
        torch.ones((), device="cuda").item()


def test_results_arrive_with_their_event(gpu: SimulatedGPU) -> None:
    first, second = (Download([torch.full((4,), value, device="cuda")], CUDA) for value in (3, 4))
    assert first._host[0].tolist() != [3] * 4
    assert not first.arrived()
    assert first.wait()[0].tolist() == [3] * 4
    assert first.arrived()
    assert second._host[0].tolist() != [4] * 4
    assert [second.arrived(), second.arrived()] == [False, True]
    assert second._host[0].tolist() == [4] * 4


def test_memory_that_is_still_being_sent_must_not_change(gpu: SimulatedGPU) -> None:
    arrays = PackedArrays({"a": (torch.int32, 4)}, CUDA)
    host = arrays.blank()
    host["a"] = np.array([1, 2, 3, 4])
    arrays.send(host)
    assert arrays.on_device("a").tolist() == [1, 2, 3, 4]
    host["a"] = np.array([9])
    torch.cuda.synchronize()  # it has been sent by now
    arrays.send(host)
    host["a"] = np.array([8])
    with pytest.raises(RefusedError, match="before its copy"):
        torch.cuda.synchronize()


def test_a_graph_repeats_launches_and_nothing_of_the_host_s(gpu: SimulatedGPU) -> None:
    source, out = torch.ones(3, device="cuda"), torch.zeros(3, device="cuda")
    token_ids, last = torch.tensor([-1, 7], device="cuda"), torch.tensor([5], device="cuda")
    fill_last_tokens(token_ids.clone(), last)
    graph, ran = torch.cuda.CUDAGraph(), []
    with torch.cuda.graph(graph):
        ran.append(1)
        out.copy_(source * 2)
        out += 1
        fill_last_tokens(token_ids, last)
    assert out.tolist() == [0, 0, 0]
    assert token_ids.tolist() == [-1, 7]
    source.fill_(5)
    for _ in range(2):
        graph.replay()
    assert out.tolist() == [11, 11, 11]
    assert token_ids.tolist() == [5, 7]
    assert ran == [1]


@pytest.mark.parametrize("use", [lambda: upload(np.ones(3), CUDA), lambda: torch.ones(3, device="cuda").sum().item()])
def test_a_graph_has_no_copies_to_the_host_or_from_there(gpu: SimulatedGPU, use: Callable[[], object]) -> None:
    use()
    with pytest.raises(RefusedError, match="graph"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        use()


def test_what_is_allocated_holds_rubbish_also_in_a_graph(gpu: SimulatedGPU) -> None:
    kept, graph = torch.zeros(2, device="cuda"), torch.cuda.CUDAGraph()
    assert torch.empty(2, device="cuda").isnan().all()
    assert torch.ones(2, device="cuda").new_empty(2, dtype=torch.int32).min() > 1 << 30
    with torch.cuda.graph(graph):
        scratch = torch.empty(2, device="cuda")
        kept.copy_(scratch)
        scratch.fill_(1)
    for _ in range(2):
        graph.replay()
        assert kept.isnan().all()


def test_memory_is_limited_and_lasts_as_long_as_a_view_of_it() -> None:
    with SimulatedGPU(total_bytes=1000).running() as gpu:
        view = torch.zeros(200, device="cuda")[10:20]
        gc.collect()
        assert gpu.allocated == 800
        with pytest.raises(torch.OutOfMemoryError):
            torch.zeros(100, device="cuda")
        del view
        torch.zeros(200, device="cuda")
    assert (gpu.allocated, gpu.peak) == (0, 800)


def test_a_kernel_takes_tensors_of_the_device_in_forms_that_have_come_before(gpu: SimulatedGPU) -> None:
    def add(features: int, starts: int = 2) -> None:
        add_segments(torch.zeros(starts - 1, features, device="cuda"), torch.zeros(4, features, device="cuda"),
                     np.arange(starts))  # fmt: skip

    add(48)
    with gpu.rules_of_serving():
        add(64, starts=4)
    for other in (40, 1):  # no multiple of 16; the constant 1
        with pytest.raises(RefusedError, match="compiled"), gpu.rules_of_serving():
            add(other)
    tokens = torch.zeros(3, dtype=torch.int64, device="cuda")
    fill_last_tokens(tokens, tokens)
    with pytest.raises(RefusedError, match="compiled"), gpu.rules_of_serving():
        fill_last_tokens(tokens[1:], tokens)  # not aligned
    with pytest.raises(RefusedError, match="not pinned"):
        fill_last_tokens(torch.zeros(3, dtype=torch.int64), tokens)
    fill_last_tokens(torch.zeros(3, dtype=torch.int64, pin_memory=True), tokens)


def test_a_grid_has_bounds(gpu: SimulatedGPU) -> None:
    x = torch.zeros(2, device="cuda")
    with pytest.raises(RefusedError, match="grid"):
        activation_kernel[(1, 65536)](x, x, 1, KIND=0, GATED=True, BLOCK=1, PDL=False, num_warps=4)


def test_another_thread_has_no_device(gpu: SimulatedGPU) -> None:
    tensor, raised = torch.ones(2, device="cuda"), []

    def use() -> None:
        try:
            tensor.add_(1)
        except RefusedError as error:
            raised.append(error)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert raised


def test_torch_s_own_python_checks_the_arguments(gpu: SimulatedGPU) -> None:
    """As on a real GPU: the simulation stands below `torch.cuda`, not in its place."""
    assert torch.device("cuda").index is None, "torch adds no index to a device that is made without one"
    assert torch.ones(1, device="cuda").device == torch.device("cuda", 0)
    for refuse in (
        lambda: torch.cuda.set_device(torch.device("cuda")),
        lambda: torch.cuda.set_device("cpu"),
        lambda: torch.cuda.get_device_properties("cpu"),
    ):
        with pytest.raises(ValueError, match="Expected a "):
            refuse()
    with pytest.raises(AssertionError, match="Invalid device id"):
        torch.cuda.get_device_capability(1)
    for no_such_device in (
        lambda: torch.cuda.set_device(1),
        lambda: torch.cuda.synchronize(1),
        lambda: torch.cuda.mem_get_info("cuda:1"),
        lambda: torch.cuda.memory_allocated(1),
        lambda: torch.cuda.Stream(1),
    ):
        with pytest.raises(torch.AcceleratorError, match="invalid device ordinal"):
            no_such_device()
    with pytest.raises(TypeError, match="unexpected keyword"):
        torch.cuda.Event(timing=True)  # type: ignore[call-arg]
    with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator"):
        torch.randn(2, device="cuda", generator=torch.Generator())
    with pytest.raises(RuntimeError, match="Expected a 'cpu' device type for generator"):
        torch.randn(2, generator=torch.Generator("cuda"))
    assert torch.randn(2, device="cuda", generator=torch.Generator(torch.device("cuda", 0))).is_cuda


def test_streams_events_and_graphs_are_used_in_their_order(gpu: SimulatedGPU) -> None:
    side = torch.cuda.Stream("cuda")
    with torch.cuda.stream(side):
        assert torch.cuda.current_stream() == side
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    plain = torch.cuda.Event()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for one, other, problem in ((start, plain, "enable_timing=True"), (start, end, "must be recorded")):
        with pytest.raises(ValueError, match=problem):
            one.elapsed_time(other)
    start.record()
    end.record()
    assert start.elapsed_time(end) >= 0
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        graph.replay()
    with pytest.raises(RuntimeError, match="non-default stream"):
        graph.capture_begin()
    with pytest.raises(RuntimeError, match="Unknown capture error mode"), torch.cuda.stream(side):
        graph.capture_begin(capture_error_mode="strict")
    with torch.cuda.graph(graph, pool=torch.cuda.graph_pool_handle(), stream=side):
        torch.ones(1, device="cuda")
    with pytest.raises(RuntimeError, match="already owns a captured graph"), torch.cuda.stream(side):
        graph.capture_begin()


def test_a_lost_device_answers_nothing_any_more(gpu: SimulatedGPU) -> None:
    """The launch that loses it returns as others do: what comes after raises, and no result arrives."""
    tensor, event = torch.ones(3, device="cuda"), torch.cuda.Event()
    gpu.die_in(2)
    twice = tensor + tensor
    results = Download([twice], CUDA)
    event.record()
    lost = twice + tensor
    for touch in (
        lambda: torch.cuda.synchronize(),
        lambda: lost + lost,
        lambda: results.wait(),
        lambda: results.arrived(),
        lambda: event.record(),
        lambda: lost.tolist(),
        lambda: upload(np.ones(3), CUDA),
        lambda: torch.cuda.mem_get_info(),
        lambda: torch.cuda.synchronize(),
    ):
        with pytest.raises(torch.AcceleratorError, match="illegal memory access"):
            touch()
