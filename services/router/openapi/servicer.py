"""quire.documents.v1.DocumentService: serves the OpenAPI document and its HTML page. The first request creates both."""

from __future__ import annotations

import json
from typing import Any

from google.api.httpbody_pb2 import HttpBody

from quire.documents.v1 import documents_pb2 as pb
from services.router.http import JSON
from services.router.openapi.document import document
from services.router.openapi.page import page
from services.router.openapi.paths import OPERATIONS
from services.router.rpc import Calls, public
from services.router.text import TextThreads

# Clients may cache the document and the page for five minutes, because both change only with a new release.
_CACHED = (("cache-control", "public, max-age=300"),)


class DocumentServicer:
    """Serves the OpenAPI document and the page that shows it. Clients need no API key for them, because they contain
    nothing about the models or their users."""

    def __init__(self, calls: Calls, threads: TextThreads, version: str, root_path: str = "") -> None:
        self.calls = calls
        self._threads = threads
        self._version = version
        self._root_path = root_path
        self._written: tuple[bytes, bytes] | None = None

    @public
    async def GetOpenApi(self, request: pb.GetOpenApiRequest, context: Any) -> HttpBody:  # noqa: N802
        as_json, _ = await self._documents(context)
        return HttpBody(content_type=JSON, data=as_json)

    @public
    async def GetDocs(self, request: pb.GetDocsRequest, context: Any) -> HttpBody:  # noqa: N802
        _, as_page = await self._documents(context)
        return HttpBody(content_type="text/html; charset=utf-8", data=as_page)

    async def _documents(self, context: Any) -> tuple[bytes, bytes]:
        """Returns the document as JSON and as a page."""
        if self._written is None:
            # `_write` takes tens of milliseconds. Requests that arrive before its end run it again, with the same
            # result.
            self._written = await self._threads.run_beside(self._write)
        await context.send_initial_metadata(_CACHED)
        return self._written

    def _write(self) -> tuple[bytes, bytes]:
        described = document(OPERATIONS, self._version, self._root_path)
        return json.dumps(described, ensure_ascii=False).encode(), page(described).encode()
