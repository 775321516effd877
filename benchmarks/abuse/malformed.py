"""Requests that are not valid HTTP, or whose headers, hosts and paths are wrong or very long."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from benchmarks.abuse.attack import Answer, Attack, Row, Target, first_wrong, http_request, sending

_GET = "GET /v1/models HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
_POST = (
    "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n"
)
_REFUSED = range(400, 500)
NOT_HTTP = {
    "no method": "\x00\x01\x02\x03\r\n\r\n",
    "no version": "GET / HTTP/x\r\nhost: localhost\r\n\r\n",
    "no host": "GET /v1/models HTTP/1.1\r\nconnection: close\r\n\r\n",
    "a header without a name": f"{_GET}: x\r\n\r\n",
    "a space before the colon": f"{_GET}x : y\r\n\r\n",
    "a zero byte": f"{_GET}x: \x00\r\n\r\n",
    "two lengths": f"{_POST}content-length: 2\r\ncontent-length: 3\r\n\r\n{{}}",
    "a negative length": f"{_POST}content-length: -1\r\n\r\n",
    "a length and chunks": f"{_POST}content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{{}}\r\n0\r\n\r\n",
    "a chunk of no size": f"{_POST}transfer-encoding: chunked\r\n\r\nz\r\n{{}}\r\n0\r\n\r\n",
    "Transfer-Encoding: gzip": f"{_POST}transfer-encoding: gzip\r\n\r\n{{}}",
    "bytes in the path": "GET /v1/models/\xff\xfe HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "a space in the path": "GET /v1/mod els HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "a zero byte in the path": "GET /v1/\0models HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "two hosts": f"{_GET}host: rebound.example\r\n\r\n",
    "another server's address": "GET http://rebound.example/v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "a tunnel": "CONNECT 127.0.0.1:22 HTTP/1.1\r\nhost: 127.0.0.1:22\r\n\r\n",
    "a method of 20,000 letters": f"{'A' * 20_000} / HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "lengths in one line": f"{_POST}content-length: 2, 2\r\n\r\n{{}}",
    "a length with a sign": f"{_POST}content-length: +2\r\n\r\n{{}}",
    "a length above 2^64": f"{_POST}content-length: 18446744073709551618\r\n\r\n{{}}",
    "a chunk above 2^64 bytes": f"{_POST}transfer-encoding: chunked\r\n\r\n10000000000000002\r\n{{}}\r\n0\r\n\r\n",
    "a chunk of negative size": f"{_POST}transfer-encoding: chunked\r\n\r\n-2\r\n{{}}\r\n0\r\n\r\n",
    "chunks twice": f"{_POST}transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{{}}\r\n0\r\n\r\n",
    "chunks and something else": f"{_POST}transfer-encoding: chunked, identity\r\n\r\n2\r\n{{}}\r\n0\r\n\r\n",
    "lines without a carriage return": "GET /v1/models HTTP/1.1\nhost: localhost\ncontent-length: -1\n\n",
    "a TLS greeting": "\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03" + "\r\n\r\n",
}


def one_after_another(requests: Mapping[str, str]) -> Attack:
    attacks = {name: sending(text.encode("latin-1")) for name, text in requests.items()}

    async def attack(target: Target) -> Answer:
        return first_wrong({name: await send(target) for name, send in attacks.items()}, _REFUSED)

    return attack


def asking(*headers: str, path: str = "/v1/models") -> Attack:
    return sending(http_request(path, None, *headers))


def from_host(host: str) -> Attack:
    return sending(f"GET /v1/models HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n".encode())


ROWS = (
    Row(f"{len(NOT_HTTP)} kinds of malformed HTTP", partial(one_after_another, NOT_HTTP), _REFUSED),
    Row("headers of 12 KiB", partial(asking, f"x-a: {'a' * 12 * 1024}"), (200,)),
    Row("headers of 31 KiB", partial(asking, f"x-a: {'a' * 31 * 1024}"), (200,)),
    Row("headers of 33 KiB", partial(asking, f"x-a: {'a' * 33 * 1024}"), (431,)),
    Row("headers of 1 MiB", partial(asking, f"x-a: {'a' * 1024 * 1024}"), (431,)),
    Row("500 headers", partial(asking, *(f"x-{number}: 1" for number in range(500))), (431,)),
    Row("a path of 31 KiB", partial(asking, path=f"/v1/models/{'a' * 31 * 1024}"), (404,)),
    Row("a path of 33 KiB", partial(asking, path=f"/v1/models/{'a' * 33 * 1024}"), (414, 431)),
    Row("GET /v1/models/%ff%fe", partial(asking, path="/v1/models/%ff%fe"), (400,)),
    Row("a -bin header that is not base64", partial(asking, "x-data-bin: !!!"), (400,)),
    Row("grpc-timeout: x", partial(asking, "grpc-timeout: x"), (200, 400)),
    Row("Authorization: Bearer \\xff", partial(asking, "authorization: Bearer \xff"), (200, 401)),
    Row("Host: rebound.example", partial(from_host, "rebound.example"), (403, 421)),
)
