"""What is asked of a server before it is measured: its model, and what its tokens are."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from quire.bench.http import AnswerError, Client
from quire.bench.measurement import error_message

# Questions at once, at most.
_MAX_CONCURRENCY = 64


class ServerError(Exception):
    """The server cannot be asked; the message is meant for the person who named it."""


class NotServedError(ServerError):
    """It answers, but not to that."""


class Server:
    def __init__(self, client: Client, url: str) -> None:
        self._client = client
        self._url = url
        self._turn = asyncio.Semaphore(_MAX_CONCURRENCY)

    async def first_model(self) -> str:
        """Raises ServerError."""
        models = await self._ask("GET", "/v1/models", "data")
        if not models:
            raise ServerError(f"the server at {self._url} has no model")
        return str(models[0]["id"])

    async def tokenize(self, model: str, text: str, *, special: bool = True) -> list[int]:
        """`special`: with what the model puts in front of a text. Raises ServerError."""
        body = {"model": model, "prompt": text, "add_special_tokens": special}
        return [int(token) for token in await self._ask("POST", "/tokenize", "tokens", body)]

    async def detokenize(self, model: str, tokens: list[int]) -> str:
        """Raises ServerError."""
        return str(await self._ask("POST", "/detokenize", "prompt", {"model": model, "tokens": tokens}))

    async def _ask(self, method: str, path: str, key: str, body: dict[str, object] | None = None) -> Any:
        """What is under `key` in the answer."""
        pieces: list[bytes] = []
        request = self._client.request(method, path, b"" if body is None else json.dumps(body).encode())
        try:
            async with self._turn:
                status = await self._client.send(request, lambda _status, piece, _now: pieces.append(piece))
        except OSError:
            raise ServerError(f"no server answers at {self._url}; start one with: quire serve") from None
        except AnswerError as error:
            raise ServerError(f"{self._url}{path}: {error}") from error
        text = b"".join(pieces)
        if status != 200:
            raise NotServedError(f"{self._url}{path} answers {status}: {error_message(text)}")
        try:
            return json.loads(text)[key]
        except (ValueError, LookupError, TypeError):
            raise NotServedError(f"{self._url}{path} answers without {key!r}: {error_message(text)}") from None
