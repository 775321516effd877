"""As much of the Hugging Face hub as a download takes: one private model, the files of a directory."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

NAME = "someone/tiny"
TOKEN = "hf_secret"
COMMIT = "c0ffee" + "0" * 34


class FakeHub(ThreadingHTTPServer):
    def __init__(self, directory: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}
        self.downloads: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def serving(directory: Path) -> Iterator[FakeHub]:
    with FakeHub(directory) as hub:
        thread = threading.Thread(target=hub.serve_forever)
        thread.start()
        yield hub
        hub.shutdown()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: FakeHub

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Says nothing."""

    def _answer(self, with_body: bool) -> None:
        path, files = self.path.partition("?")[0], self.server.files
        file = path.removeprefix(f"/{NAME}/resolve/{COMMIT}/")
        if self.headers["Authorization"] != f"Bearer {TOKEN}":
            self._send(401, b"", {"X-Error-Code": "RepoNotFound"})
        elif path == f"/api/models/{NAME}/revision/main":
            self._send_json({"id": NAME, "sha": COMMIT})
        elif path == f"/api/models/{NAME}/tree/{COMMIT}":
            self._send_json(
                [
                    {"type": "file", "path": name, "size": len(data), "oid": _digest(data)}
                    for name, data in files.items()
                ]
            )
        elif file in files:
            if with_body:
                self.server.downloads.append(file)
            headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{_digest(files[file])}"'}
            self._send(200, files[file], headers, with_body)
        else:
            self._send(404, b"", {})

    def _send_json(self, content: object) -> None:
        self._send(200, json.dumps(content).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, body: bytes, headers: dict[str, str], with_body: bool = True) -> None:
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)


def _digest(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()
