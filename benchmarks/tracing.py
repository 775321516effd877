"""Measures what an OTLP endpoint costs that is down: five fleets answer the same greedy completions in turn. Two have
no endpoint. In the others, nothing listens at it, or it takes connections and never answers, or it takes all spans."""

from __future__ import annotations

import http.client
import random
import socket
import statistics
import sys
from collections.abc import Iterator, Sequence
from concurrent import futures
from contextlib import ExitStack, contextmanager
from urllib.parse import urlsplit

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from benchmarks.http import stream_completion
from benchmarks.overhead import per_token_s
from benchmarks.stack import command, free_port, parts

NUM_CLIENTS = 8
# Short answers, so that a large part of the work is spans: each request has five.
REQUESTS_PER_CLIENT = 40
TOKENS_PER_SHORT_ANSWER = 2
QUANTITIES = ("first_token", "per_token", "short_answers")


class _Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Takes all spans."""

    def Export(  # noqa: N802 - gRPC's name
        self, request: trace_service_pb2.ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        return trace_service_pb2.ExportTraceServiceResponse()


@contextmanager
def silent() -> Iterator[str]:
    """Listens, so that connections are made, and reads nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


class _Fleet:
    def __init__(self, url: str) -> None:
        self._url = url
        self._connections = [http.client.HTTPConnection(urlsplit(url).netloc) for _ in range(NUM_CLIENTS)]
        self._threads = futures.ThreadPoolExecutor(NUM_CLIENTS)

    def stream_s(self) -> Sequence[float]:
        """Seconds to the first token of a lone stream, and per further token."""
        timing = stream_completion(self._url, 201, self._connections[0])
        return timing.first_token_s, per_token_s([timing])

    def short_answers_s(self) -> float:
        """Seconds in which NUM_CLIENTS clients get REQUESTS_PER_CLIENT answers each."""
        return max(self._threads.map(self._ask, self._connections))

    def _ask(self, connection: http.client.HTTPConnection) -> float:
        return sum(
            stream_completion(self._url, TOKENS_PER_SHORT_ANSWER, connection).whole_s
            for _ in range(REQUESTS_PER_CLIENT)
        )


def measure(rounds: int = 16) -> dict[str, float]:
    """Returns the medians of ratios to the fleet without an endpoint, each of two measurements of one round; over 1 is
    slower."""
    with ExitStack() as stack:
        collector = f"127.0.0.1:{free_port()}"
        # A process of its own, as a collector is: its work must not hold up the clients.
        stack.enter_context(command("benchmarks.tracing", collector))
        # The second fleet without an endpoint shows how far equal fleets differ.
        endpoints = {"no_endpoint": "", "no_endpoint_again": "", "refused": f"http://127.0.0.1:{free_port()}"}
        endpoints |= {"silent": stack.enter_context(silent()), "answering": f"http://{collector}"}
        fleets = {
            name: _Fleet(stack.enter_context(parts(environment={"OTEL_EXPORTER_OTLP_ENDPOINT": address})).http)
            for name, address in endpoints.items()
        }
        samples: dict[str, list[float]] = {}
        for round_number in range(rounds + 2):
            # What one fleet still does in the background must not always hold up the same other one.
            for name in random.Random(round_number).sample([*fleets], len(fleets)):
                fleet = fleets[name]
                taken = (*fleet.stream_s(), fleet.short_answers_s())
                if round_number >= 2:  # the first two rounds are warm-up
                    for quantity, seconds in zip(QUANTITIES, taken, strict=True):
                        samples.setdefault(f"{name}_{quantity}", []).append(seconds)
    num_answers = NUM_CLIENTS * REQUESTS_PER_CLIENT
    base = {quantity: samples[f"no_endpoint_{quantity}"] for quantity in QUANTITIES}
    figures = {
        "no_endpoint_first_token_ms": 1e3 * statistics.median(base["first_token"]),
        "no_endpoint_per_token_ms": 1e3 * statistics.median(base["per_token"]),
        "no_endpoint_requests_per_s": num_answers / statistics.median(base["short_answers"]),
    }
    for name in [*endpoints][1:]:
        for quantity, base_s in base.items():
            ratios = [own_s / other_s for own_s, other_s in zip(samples[f"{name}_{quantity}"], base_s, strict=True)]
            figures[f"{name}_{quantity}_ratio"] = statistics.median(ratios)
    return figures


def collect(address: str) -> None:
    """Is the endpoint that answers, until the process is stopped."""
    server = grpc.server(futures.ThreadPoolExecutor(4))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(_Collector(), server)  # type: ignore[no-untyped-call]
    server.add_insecure_port(address)
    server.start()
    server.wait_for_termination()


if __name__ == "__main__":
    collect(sys.argv[1])
