"""`python -m tests.chaos.fake_worker`: a fake worker as a process, without a model, so that it starts fast."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import secrets
import signal

from quire.worker.v1 import worker_pb2_grpc
from shared.grpc_server import GrpcServer
from shared.status import StatusReporter
from tests.fakes.fake_model import FakeModel
from tests.fakes.fake_worker import FakeWorker, Script
from tests.integration.router.fake_scheduler import bundle_of
from tests.integration.router.small_tokenizers import byte_level, tokenizer_config

# So long that streams last for some seconds and meet the changes of the fleet.
_STEP_S = 0.05
# Longest time that the owner gets to move its sequences elsewhere after SIGTERM.
_DRAIN_S = 2.0


async def serve(address: str, status: StatusReporter) -> None:
    """Serves until SIGTERM."""
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    bundle, _ = bundle_of(byte_level().to_str(), json.dumps(tokenizer_config()))
    worker = FakeWorker(
        make_model=lambda: FakeModel(num_blocks=512, max_num_seqs=16, max_num_batched_tokens=256),
        script=Script(step_seconds=_STEP_S),
        tokenizer_bundle=bundle,
    )
    worker.boot_id = secrets.randbits(63) + 1  # so that an exit is told from a cut connection
    server = GrpcServer(["quire.worker.v1.WorkerService"])
    server.add(worker_pb2_grpc.add_WorkerServiceServicer_to_server, worker)
    await server.start([address])
    await server.set_serving(True)
    status.ready()
    await stopping.wait()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_DRAIN_S):
            await worker.drain()
    await server.stop(0.5)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.fake_worker", description=__doc__)
    parser.add_argument("--listen", required=True, help="address to serve gRPC on")
    parser.add_argument("--status-fd", type=int, help="file descriptor for status lines")
    arguments = parser.parse_args()
    asyncio.run(serve(arguments.listen, StatusReporter(arguments.status_fd)))
