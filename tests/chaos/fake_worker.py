"""`python -m tests.chaos.fake_worker`: a fake worker as a process, without a model, so that it starts fast."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import secrets
import signal

from quire.worker.v1 import worker_pb2_grpc
from shared.discovery import DiscoveryOptions, Kind, Registry
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


# KV blocks and the tokens of each.
_NUM_BLOCKS, _BLOCK_SIZE = 512, 16


async def serve(address: str, registry: Registry, status: StatusReporter) -> None:
    """Serves until SIGTERM."""
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    bundle, _ = bundle_of(byte_level().to_str(), json.dumps(tokenizer_config()))
    worker = FakeWorker(
        make_model=lambda: FakeModel(num_blocks=_NUM_BLOCKS, max_num_seqs=16, max_num_batched_tokens=256),
        script=Script(step_seconds=_STEP_S),
        tokenizer_bundle=bundle,
    )
    worker.boot_id = secrets.randbits(63) + 1  # so that an exit is told from a cut connection
    server = GrpcServer(["quire.worker.v1.WorkerService"])
    server.add(worker_pb2_grpc.add_WorkerServiceServicer_to_server, worker)
    await server.start([address])
    await server.set_serving(True)
    registry.join(Kind.WORKER, [address], model="fake", kv_tokens=_NUM_BLOCKS * _BLOCK_SIZE)
    status.ready()
    await stopping.wait()
    await registry.leave()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_DRAIN_S):
            await worker.drain()
    await registry.close()
    await server.stop(0.5)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.fake_worker", description=__doc__)
    parser.add_argument("--listen", required=True, help="address to serve gRPC on")
    parser.add_argument("--status-fd", type=int, help="file descriptor for status lines")
    parser.add_argument("--advertise", default="", help="address to register in Redis")
    parser.add_argument("--redis", default="", help="URL of Redis; empty: the worker does not register")
    parser.add_argument("--redis-sentinel-password", default="", help="password of the Sentinels")
    arguments = parser.parse_args()
    options = DiscoveryOptions(redis=arguments.redis, redis_sentinel_password=arguments.redis_sentinel_password)
    registry = Registry(options, advertise=arguments.advertise)
    asyncio.run(serve(arguments.listen, registry, StatusReporter(arguments.status_fd)))
