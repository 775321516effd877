"""`quire serve` stops as docs/operations.md says: in view of balancers, and without an answer lost."""

from __future__ import annotations

import os
import signal
import urllib.error
import urllib.request

import grpc
import openai
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.e2e.conftest import Server, serving
from tests.fakes.waiting import HANG_S, wait_until

LONG_S = "3600"


def client_of(server: Server) -> openai.OpenAI:
    url = f"http://127.0.0.1:{server.direct_port}/v1"
    return openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=HANG_S)


def health(server: Server) -> int | None:
    """The status of a new connection's answer; None if there is no connection."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.direct_port}/health", timeout=HANG_S) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return None


def test_balancers_see_that_it_drains_while_it_still_serves() -> None:
    with serving("--drain-delay", LONG_S, model="quire-chat") as server:
        assert health(server) == 200
        os.kill(server.pid, signal.SIGTERM)
        wait_until(lambda: health(server) == 503)
        with grpc.insecure_channel(f"127.0.0.1:{server.direct_port}") as channel:
            answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=HANG_S)
        assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING
        answer = client_of(server).chat.completions.create(
            model="quire-chat", messages=[{"role": "user", "content": "What is 7 plus 5?"}], temperature=0
        )
        assert "12" in (answer.choices[0].message.content or "")
        # At its end, `serving` sends the second SIGTERM, which ends the long wait.


def test_an_answer_under_way_is_completed() -> None:
    with serving("--drain-timeout", LONG_S, model="quire-chat") as server:
        stream = client_of(server).completions.create(
            model="quire-chat", prompt="Once", max_tokens=1500, stream=True, extra_body={"ignore_eos": True}
        )
        next(stream)
        os.kill(server.pid, signal.SIGTERM)
        wait_until(lambda: health(server) is None)
        assert [chunk.choices[0].finish_reason for chunk in stream][-1] == "length"
