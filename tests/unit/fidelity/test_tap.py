"""The tap passes bytes on as they are and looks at every answer."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.fakes.waiting import HANG_S
from tests.fidelity.tap import Tap


class Gateway(BaseHTTPRequestHandler):
    """Right on /health; a wrong field on /v1/models; chunks of a stream on a POST, cut off where the body says so."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = b'{"status":"ok"}' if self.path.startswith("/health") else b'{"object":"list","data":[],"more":1}'
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        asked = self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for piece in (b"data: {}\n", b"\ndata: [DONE]\n\n"):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            if asked == b"cut":
                self.close_connection = True
                return
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Nothing."""


@pytest.fixture
def tap() -> Iterator[Tap]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Gateway) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        with Tap(server.server_port) as tap:
            yield tap
        server.shutdown()
        thread.join()


def ask(connection: http.client.HTTPConnection, verb: str, path: str, body: bytes | None = None) -> bytes:
    connection.request(verb, path, body)
    return connection.getresponse().read()


def test_answers_on_one_connection_are_told_apart(tap: Tap) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", tap.port, timeout=HANG_S)
    assert ask(connection, "GET", "/health?x=1") == b'{"status":"ok"}'
    assert tap.take_problems() == []
    assert ask(connection, "GET", "/v1/models") == b'{"object":"list","data":[],"more":1}'
    (problem,) = tap.take_problems()
    assert "GET /v1/models 200" in problem
    assert "more" in problem
    assert ask(connection, "POST", "/v1/chat/completions", b"whole") == b"data: {}\n\ndata: [DONE]\n\n"
    assert any("POST /v1/chat/completions 200" in found for found in tap.take_problems())
    assert ask(connection, "GET", "/health") == b'{"status":"ok"}'
    assert tap.take_problems() == []
    assert tap.num_checked == 4
    connection.close()


def test_an_answer_that_is_cut_off_is_looked_at_as_far_as_it_came(tap: Tap) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", tap.port, timeout=HANG_S)
    with pytest.raises(http.client.IncompleteRead):
        ask(connection, "POST", "/v1/chat/completions", b"cut")
    assert tap.num_checked == 1
    # Half of an event came: there is nothing to say of it.
    assert tap.take_problems() == []


def test_what_is_no_http1_passes_unread(tap: Tap) -> None:
    with socket.create_connection(("127.0.0.1", tap.port), timeout=HANG_S) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        assert connection.recv(100)
    assert tap.num_checked == 0
