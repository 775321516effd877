"""The worker as a process of its own: what it tells while it starts, serves and stops."""

from __future__ import annotations

import asyncio
import re
import signal
import urllib.request
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from shared.status import parse_status
from tests.fakes.ports import free_port
from tests.fakes.waiting import HANG_S
from tests.integration.worker.client import claimed, new_sequence, rows, values
from tests.integration.worker.process import OPTIONS, statuses, worker

# Waits with the import of torch until the file GATE exists. Not while Python looks for it: meanwhile no other thread
# could import anything.
PRELUDE = """
import sys, time
from importlib.machinery import PathFinder
from pathlib import Path
class Gate:
    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        spec = PathFinder.find_spec(name, path, target)
        run = spec.loader.exec_module
        def exec_module(module):
            while not Path(GATE).exists():
                time.sleep(0.01)
            run(module)
        spec.loader.exec_module = exec_module
        return spec
sys.meta_path.insert(0, Gate())
"""

# Waits for ever instead of 10 s for a step thread that does not end.
NO_DRAIN = """
import services.worker.main
services.worker.main.DRAIN_S = None
"""


async def health(channel: grpc.aio.Channel) -> str:
    response = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), wait_for_ready=True)
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(response.status))


async def test_from_start_to_sigterm(model_directory: Path, tmp_path: Path) -> None:
    address, gate = f"unix:{tmp_path}/worker.sock", tmp_path / "gate"
    metrics = f"127.0.0.1:{free_port()}"
    arguments = (str(model_directory), "--listen", address, "--metrics-port", metrics.rpartition(":")[2], *OPTIONS)
    with worker(*arguments, prelude=PRELUDE.replace("GATE", repr(str(gate)))) as (process, reports):
        async with grpc.aio.insecure_channel(address) as channel:
            # The server is there before torch is imported.
            assert await health(channel) == "NOT_SERVING"
            scraped = await asyncio.to_thread(scrape, metrics)
            assert "quire:worker_steps_total 0.0" in scraped
            assert "quire:worker_ready 0.0" in scraped
            gate.touch()
            found = await asyncio.to_thread(statuses, reports)
            assert found[-1].state == "ready"
            assert found[-1].facts["address"] == address
            assert found[-1].facts["model"] == "tiny-llama"
            assert found[-1].facts["device"] == "cpu"
            assert "# CPU blocks: 24, # swap blocks: 0" in [status.detail for status in found if status.is_note]
            assert [status.progress for status in found if status.progress is not None][-1] == 1.0
            assert await health(channel) == "SERVING"

            stream = await claimed(channel)
            result = await stream.step(new_sequences=[new_sequence(1, 0, [5, 6], [0])], rows=rows((1, 0, 2, 0)))
            assert len(values(result.token_ids)) == 1
            assert found[-1].facts["metrics"] == metrics
            scraped = await asyncio.to_thread(scrape, metrics)
            assert "quire:worker_steps_total 1.0" in scraped
            assert 'quire:worker_tokens_total{kind="scheduled"} 2.0' in scraped
            assert "quire:worker_sequences 1.0" in scraped
            assert "quire:worker_ready 1.0" in scraped
            phases = re.findall(r'^quire:worker_start_seconds{phase="(\w+)"} (\S+)$', scraped, re.MULTILINE)
            assert [phase for phase, _ in phases] == ["start", "find", "load", "measure"]
            assert all(float(seconds) > 0 for _, seconds in phases)

            process.send_signal(signal.SIGTERM)
            with pytest.raises(grpc.aio.AioRpcError) as end:
                await stream.result()
            assert end.value.code() is grpc.StatusCode.ABORTED
        _, errors = process.communicate(timeout=HANG_S)
        assert process.returncode == 0
        log = errors.decode()
        assert "tiny-llama on cpu in float32: 24 KV blocks of 16 tokens (384 tokens)" in log
        assert "batch-invariant" in log


def scrape(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=HANG_S) as response:
        return str(response.read().decode())


def test_a_model_that_cannot_be_loaded_ends_the_process_with_one_sentence(tmp_path: Path) -> None:
    with worker("/nowhere/model", "--listen", f"unix:{tmp_path}/worker.sock") as (process, reports):
        last = statuses(reports)[-1]
        _, errors = process.communicate(timeout=HANG_S)
    assert (last.state, last.detail) == ("failed", "there is no directory /nowhere/model")
    assert process.returncode == 1
    assert errors.decode().splitlines()[-1] == "quire worker: there is no directory /nowhere/model"


async def test_a_step_thread_that_dies_ends_the_process(model_directory: Path, tmp_path: Path) -> None:
    dying = (
        "from services.worker.step.model_runner import ModelRunner\n"
        "def broken(_): raise RuntimeError('device lost')\n"
        "ModelRunner.close = broken\n"  # the first thing that a new epoch asks of it
    )
    address = f"unix:{tmp_path}/worker.sock"
    with worker(str(model_directory), "--listen", address, *OPTIONS, prelude=dying) as (process, reports):
        assert (await asyncio.to_thread(statuses, reports))[-1].state == "ready"
        async with grpc.aio.insecure_channel(address) as channel:
            await (await claimed(channel)).close()
            _, errors = await asyncio.to_thread(process.communicate, timeout=HANG_S)
    assert process.returncode == 1
    log = errors.decode()
    assert "the step thread has died" in log
    assert (
        log.splitlines()[-1] == "quire worker: the thread that runs the steps has died of RuntimeError('device lost')"
    )


LOSES_ITS_DEVICE = """
import services.worker.main as main
main.DRAIN_S = 1000.0  # a process that waited for work under way would outlast the test
main.WATCH_INTERVAL_S = 1000.0
from services.worker.startup import device
from services.worker.step import model_runner
from services.worker.step.device_check import CudaDeviceCheck
import torch
def lost(*_):
    raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered" + chr(10) + "Advice.")
torch.cuda.synchronize = lost
device.create_device_check = CudaDeviceCheck
forward, steps = model_runner.ModelRunner._run, []
def faulty(runner, batch):
    steps.append(batch.token_ids.tolist())
    return lost() if [66] in steps or [66, 66] in steps else forward(runner, batch)
model_runner.ModelRunner._run = faulty
"""


async def test_a_lost_device_ends_the_process_at_once_with_the_reason(model_directory: Path, tmp_path: Path) -> None:
    """Neither the step that lost it nor the one behind it is answered, nor is the stream drained."""
    address = f"unix:{tmp_path}/worker.sock"
    with worker(str(model_directory), "--listen", address, *OPTIONS, prelude=LOSES_ITS_DEVICE) as (process, reports):
        assert (await asyncio.to_thread(statuses, reports))[-1].state == "ready"
        async with grpc.aio.insecure_channel(address) as channel:
            stream = await claimed(channel)
            first = await stream.step(new_sequences=[new_sequence(1, 0, [5, 6], [0])], rows=rows((1, 0, 2, 0)))
            assert len(values(first.token_ids)) == 1
            await stream.plan(new_sequences=[new_sequence(2, 1, [66, 66], [1])], rows=rows((2, 1, 2, 0)))
            with pytest.raises(grpc.aio.AioRpcError):
                await stream.result()
            _, errors = await asyncio.to_thread(process.communicate, timeout=HANG_S)
        last = [parse_status(line) for line in reports][-1]
    assert process.returncode == 1
    reason = "CUDA error: an illegal memory access was encountered"
    sentence = f"cpu is lost: {reason}; the first error was: {reason}"
    assert errors.decode().splitlines()[-1] == f"quire worker: {sentence}"
    assert (last.state, last.detail) == ("failed", sentence)


LOSES_ITS_DEVICE_WHILE_LOADING = """
import torch
from services.worker.startup import load
from services.worker.step.device_check import CudaDeviceCheck
def lost(*_):
    raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered" + chr(10) + "Advice.")
torch.cuda.is_initialized = lambda: True
torch.cuda.synchronize = load.measure_steps = lost
load.create_device_check = CudaDeviceCheck
load.find_gpu = lambda: (None, "this GPU is too old")
import atexit
atexit.register(print, "an ordinary exit")
print("written before")
"""


def test_a_device_that_is_lost_while_loading_ends_the_process_with_the_reason(
    model_directory: Path, tmp_path: Path
) -> None:
    """Not by an ordinary exit, and not before what was printed is written."""
    arguments = (str(model_directory), "--listen", f"unix:{tmp_path}/worker.sock", *OPTIONS)
    with worker(*arguments, prelude=LOSES_ITS_DEVICE_WHILE_LOADING) as (process, reports):
        last = statuses(reports)[-1]
        output, errors = process.communicate(timeout=HANG_S)
    assert process.returncode == 1
    reason = "CUDA error: an illegal memory access was encountered"
    sentence = f"cpu is lost: {reason}; the first error was: {reason}"
    assert (last.state, last.detail) == ("failed", sentence)
    assert errors.decode().splitlines()[-1] == f"quire worker: {sentence}"
    assert "Traceback" not in errors.decode()
    assert errors.decode().count("this GPU is too old: running on the CPU") == 1, "the device is resolved once"
    assert output.decode() == "written before\n"


LOSES_ITS_DEVICE_WHILE_DRAINING = (
    LOSES_ITS_DEVICE
    + """
from services.worker.service.servicer import WorkerServicer
watch = main.watch
async def watch_and_tell(*arguments):
    await watch(*arguments)
    print("drains", flush=True)
main.watch = watch_and_tell
close = WorkerServicer.close
async def close_later(servicer):
    import asyncio
    await asyncio.to_thread(lost_in.wait)
    await close(servicer)
WorkerServicer.close = close_later
import threading
lost_in = threading.Event()
def faulty_while_draining(runner, batch):
    try:
        return faulty(runner, batch)
    except torch.AcceleratorError:
        lost_in.set()
        raise
model_runner.ModelRunner._run = faulty_while_draining
"""
)


async def test_a_device_that_is_lost_while_the_worker_drains_is_reported(model_directory: Path, tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/worker.sock"
    arguments = (str(model_directory), "--listen", address, *OPTIONS)
    with worker(*arguments, prelude=LOSES_ITS_DEVICE_WHILE_DRAINING) as (process, reports):
        assert (await asyncio.to_thread(statuses, reports))[-1].state == "ready"
        assert process.stdout is not None
        async with grpc.aio.insecure_channel(address) as channel:
            stream = await claimed(channel)
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.stdout.readline) == b"drains\n"
            await stream.plan(new_sequences=[new_sequence(2, 1, [66, 66], [1])], rows=rows((2, 1, 2, 0)))
            with pytest.raises(grpc.aio.AioRpcError):
                await stream.result()
            _, errors = await asyncio.to_thread(process.communicate, timeout=HANG_S)
        last = [parse_status(line) for line in reports][-1]
    assert process.returncode == 1
    assert last.state == "failed"
    assert last.detail.startswith("cpu is lost: CUDA error: an illegal memory access was encountered; ")
    assert errors.decode().splitlines()[-1] == f"quire worker: {last.detail}"


def test_sigterm_while_loading_does_not_wait_for_the_load(model_directory: Path, tmp_path: Path) -> None:
    """Which would never end."""
    arguments = (str(model_directory), "--listen", f"unix:{tmp_path}/worker.sock", *OPTIONS)
    never = PRELUDE.replace("GATE", repr(str(tmp_path / "never")))
    with worker(*arguments, prelude=never + NO_DRAIN) as (process, reports):
        assert parse_status(reports.readline()).state == "starting"
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=HANG_S)
    assert process.returncode == 0


def test_a_taken_address_is_named(model_directory: Path, tmp_path: Path) -> None:
    with worker(str(model_directory), "--listen", "256.0.0.1:1") as (process, reports):
        assert statuses(reports)[-1].detail == "cannot listen on 256.0.0.1:1: is another program using it?"
        process.communicate(timeout=HANG_S)
    assert process.returncode == 1
