"""`quire health`: checks whether a part of the stack (gateway, router, scheduler or worker) is serving, for containers'
health checks. Exits with status 0 if the part is serving, otherwise with status 1 and an error line."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence

TIMEOUT_S = 3.0


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="quire health", description="Checks whether a part is serving.")
    parser.add_argument(
        "address", metavar="ADDRESS", help="http://host:port of a gateway; host:port or unix:/path of any other part"
    )
    address: str = parser.parse_args(argv).address
    wrong = _http(address.removeprefix("http://")) if address.startswith("http://") else _grpc(address)
    if wrong:
        print(f"quire health: {address} {wrong}", file=sys.stderr)
        return 1
    return 0


def _http(address: str) -> str:
    from quire.cli.http_probe import ask

    try:
        answer = asyncio.run(ask(address, "/health", timeout_s=TIMEOUT_S))
    except OSError as error:
        return f"is not reachable: {error}"
    return "" if answer.status == 200 else f"answers {answer.status}"


def _grpc(address: str) -> str:
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    from shared.grpc_server import CHANNEL_OPTIONS

    with grpc.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            return f"is not reachable: {error.details()}"
    return "" if answer.status == health_pb2.HealthCheckResponse.SERVING else "is not serving"
