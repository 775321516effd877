from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import pytest
import pytest_asyncio
import torch
from tokenizers import Tokenizer, models

from quire.worker.v1 import worker_pb2_grpc
from services.worker.config import WorkerConfig
from services.worker.service.servicer import WorkerServicer
from services.worker.service.step_thread import StepThread
from services.worker.startup.load import LoadedWorker, load_worker
from shared.grpc_server import GrpcServer
from tests.fakes.waiting import HANG_S
from tests.unit.worker.tiny_models import VOCAB_SIZE, make_model

# A token whose embedding is NaN, so that every token that attends to it computes NaN.
POISON = 13


def save_with_tokenizer(directory: Path) -> None:
    model = make_model("Llama")
    with torch.no_grad():
        model.get_input_embeddings().weight[POISON] = torch.nan
    model.save_pretrained(directory)
    vocabulary = {f"t{index}": index for index in range(VOCAB_SIZE)}
    Tokenizer(models.WordLevel(vocabulary, unk_token="t0")).save(str(directory / "tokenizer.json"))
    # Larger than one chunk of GetTokenizer, as chat models' tokenizers are.
    (directory / "tokenizer_config.json").write_text('{"bos_token": "t1", "padding": "' + "x" * 1_200_000 + '"}')


@pytest.fixture(scope="session")
def model_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("worker") / "tiny-llama"
    save_with_tokenizer(directory)
    return directory


@pytest.fixture(scope="session")
def worker_config(model_directory: Path) -> WorkerConfig:
    return WorkerConfig(
        model=str(model_directory), num_gpu_blocks_override=24, block_size=8, max_num_seqs=4,
        max_num_batched_tokens=64, num_threads=1,
    )  # fmt: skip


@pytest.fixture(scope="session")
def loaded(worker_config: WorkerConfig) -> LoadedWorker:
    return load_worker(worker_config, lambda _detail, _progress: None)


@pytest.fixture
def engine(loaded: LoadedWorker) -> LoadedWorker:
    """An engine in a new epoch, without sequences and with empty pages. All tests share the loaded weights."""
    loaded.runner.reset()
    return loaded


@pytest.fixture
def steps(engine: LoadedWorker) -> Iterator[StepThread]:
    thread = StepThread(lambda: engine)
    thread.start()
    yield thread
    thread.stop(timeout=HANG_S)


@pytest_asyncio.fixture
async def servicer(steps: StepThread, engine: LoadedWorker) -> WorkerServicer:
    servicer = WorkerServicer(steps)
    servicer.open(engine)
    return servicer


@pytest_asyncio.fixture
async def address(servicer: WorkerServicer, tmp_path: Path) -> AsyncIterator[str]:
    """Address of a worker that listens on a Unix socket."""
    server = GrpcServer(["quire.worker.v1.WorkerService"])
    server.add(worker_pb2_grpc.add_WorkerServiceServicer_to_server, servicer)
    address = f"unix:{tmp_path}/worker.sock"
    await server.start([address])
    yield address
    await server.stop(0)


@pytest_asyncio.fixture
async def channel(address: str) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(address) as channel:
        yield channel
