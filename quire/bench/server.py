"""Queries that a server answers before the benchmark: which model is its first, and the tokenization and
detokenization of prompts."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp

from quire.bench.measurement import error_message, error_text

# Maximum number of concurrent queries.
_MAX_CONCURRENCY = 64


class ServerError(Exception):
    """A query that failed. The message is shown to the user."""


class NotServedError(ServerError):
    """A query that the server answered with an error, or without the expected field."""


class Server:
    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url
        self._turn = asyncio.Semaphore(_MAX_CONCURRENCY)

    async def first_model(self) -> str:
        """Returns the id of the server's first model. Raises ServerError."""
        models = await self._ask("GET", "/v1/models", "data")
        if not models:
            raise ServerError(f"the server at {self._url} has no model")
        return str(models[0]["id"])

    async def tokenize(self, model: str, text: str, *, special: bool = True) -> list[int]:
        """Returns the token ids of `text`. `special`: add the model's special tokens, such as BOS. Raises
        ServerError."""
        body = {"model": model, "prompt": text, "add_special_tokens": special}
        return [int(token) for token in await self._ask("POST", "/tokenize", "tokens", body)]

    async def detokenize(self, model: str, tokens: list[int]) -> str:
        """Returns the text of `tokens`. Raises ServerError."""
        return str(await self._ask("POST", "/detokenize", "prompt", {"model": model, "tokens": tokens}))

    async def _ask(self, method: str, path: str, key: str, body: dict[str, object] | None = None) -> Any:
        """Sends a query and returns the value of `key` in the answer. Raises ServerError."""
        url = self._url + path
        try:
            async with self._turn, self._session.request(method, url, json=body, allow_redirects=False) as response:
                text = await response.read()
        except OSError:
            raise ServerError(f"no server answers at {self._url}; start one with: quire serve") from None
        except aiohttp.ClientError as error:
            raise ServerError(f"{url}: {error_text(error)}") from error
        if response.status != 200:
            raise NotServedError(f"{url} answers {response.status}: {error_message(text)}")
        try:
            return json.loads(text)[key]
        except (ValueError, LookupError, TypeError):
            raise NotServedError(f"{url} answers without {key!r}: {error_message(text)}") from None
