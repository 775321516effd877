"""A DNS server for programs that ask one themselves, not through the C library."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PORT = 53
_A, _IN = 1, 1
# Flags: this is an answer, and recursion was wanted and is available. The second one also says: no such name.
_ANSWER, _NO_SUCH_NAME = 0x8180, 0x8183
_HEADER = struct.Struct("!6H")


def may_listen() -> bool:
    """Returns whether the user may use the port."""
    with socket.socket(type=socket.SOCK_DGRAM) as one, contextlib.suppress(OSError):
        one.bind(("127.53.53.53", PORT))
        return True
    return False


@contextmanager
def serving(address: str, names: Path) -> Iterator[None]:
    """Serves on port 53 of this address. `names`: file with a name and an IPv4 address in each line, read anew for each
    question."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            query, ours = self.request
            ours.sendto(answer(query, names.read_text()), self.client_address)

    with socketserver.ThreadingUDPServer((address, PORT), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


def answer(query: bytes, names: str) -> bytes:
    """Returns the answer to a query with one question. RFC 1035, section 4."""
    labels, at = [], _HEADER.size
    while (length := query[at]) > 0:
        labels.append(query[at + 1 : at + 1 + length].decode())
        at += 1 + length
    end = at + 5  # after the empty label, the type and the class
    (kind,) = struct.unpack_from("!H", query, at + 1)
    found = [line.split()[1] for line in names.splitlines() if line.split()[0] == ".".join(labels)]
    # 0xC00C points to the name in the question.
    records = b"".join(
        struct.pack("!3HIH4B", 0xC00C, _A, _IN, 1, 4, *map(int, one.split("."))) for one in found if kind == _A
    )
    flags = _ANSWER if found else _NO_SUCH_NAME
    (id_,) = struct.unpack_from("!H", query)
    return _HEADER.pack(id_, flags, 1, len(found) * (kind == _A), 0, 0) + query[_HEADER.size : end] + records
