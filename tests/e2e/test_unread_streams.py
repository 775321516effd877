"""A client that does not read its streams, through the real gateway: it holds no slots, and misses nothing."""

from __future__ import annotations

import json
import re
import socket
import urllib.request
from typing import Any

from tests.e2e.conftest import Server
from tests.fakes.waiting import HANG_S, wait_until

NUM_CHOICES, NUM_TOKENS = 6, 1000
# Many more bytes than fit in the buffers of the gateway and the kernel. Log probabilities fill these within few tokens.
# Special tokens are shown, because the bundled model soon writes nothing else, and a token without text adds no bytes.
BODY = {
    "prompt": "What is Quire?", "n": NUM_CHOICES, "max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True,
    "skip_special_tokens": False, "logprobs": 20, "stream": True,
}  # fmt: skip


def texts(events: bytes) -> list[str]:
    """The choices' texts in a body of server-sent events."""
    found = [""] * NUM_CHOICES
    lines = events.decode().split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    for line in lines[:-2]:
        for choice in json.loads(line.removeprefix("data: "))["choices"]:
            found[choice["index"]] += choice["text"]
    return found


def metric(server: Server, name: str) -> float:
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=HANG_S) as answer:
        values = re.findall(rf"^{name}{{[^}}]*}} (.+)$", answer.read().decode(), re.MULTILINE)
    return sum(map(float, values))


def post(server: Server, body: Any) -> bytes:
    url, content = f"http://127.0.0.1:{server.direct_port}/v1/completions", json.dumps(body).encode()
    request = urllib.request.Request(url, content, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=HANG_S) as answer:
        return bytes(answer.read())


def test_unread_streams_pause_and_lose_nothing(server: Server) -> None:
    expected = texts(post(server, BODY))
    pauses = metric(server, "quire:slow_client_pauses_total")
    content = json.dumps(BODY).encode()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(HANG_S)
        client.connect(("127.0.0.1", server.direct_port))
        client.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
            b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(content), content)
        )
        wait_until(lambda: metric(server, "quire:slow_client_pauses_total") >= pauses + NUM_CHOICES, 0.1)
        # While the client does not read, others have all slots. It must read again within a minute.
        wait_until(lambda: metric(server, "vllm:num_requests_running") == 0, 0.1)
        answer = client.makefile("rb")
        head = b"".join(iter(answer.readline, b"\r\n"))
        assert head.startswith(b"HTTP/1.1 200")
        body = b""
        while size := int(answer.readline(), 16):
            body += answer.read(size)
            answer.readline()
    assert texts(body) == expected
