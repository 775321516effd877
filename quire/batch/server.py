"""Sends a request to a server, with retries while the server is overloaded or unreachable."""

from __future__ import annotations

import asyncio
import random
import time

import aiohttp
from yarl import URL

from quire.batch.format import Answer, BatchRequest, RequestError

# Statuses that are retried: the server is overloaded, or one of its parts is unreachable. With any other status, a
# retry would get the same answer.
RETRIED = frozenset({429, 502, 503})
FIRST_DELAY_S = 0.25
LONGEST_DELAY_S = 30.0
MAX_ANSWER_BYTES = 64 * 1024 * 1024
_CONNECT_TIMEOUT_S = 10.0


def open_session(address: str, key: str | None) -> tuple[aiohttp.ClientSession, str]:
    """Opens a session for `address` (http://… or unix:/path). Returns the session and the base URL of requests. Each
    running request has its own connection."""
    connector: aiohttp.BaseConnector
    if address.startswith("unix:"):
        connector, url = aiohttp.UnixConnector(address.removeprefix("unix:"), limit=0), "http://quire"
    else:
        connector, url = aiohttp.TCPConnector(limit=0), address
    headers = {"User-Agent": "quire-run-batch", "Content-Type": "application/json"}
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    session = aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        headers=headers,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT_S),
    )
    return session, url


class Server:
    """Client of one server. `request_timeout`: maximum seconds of one attempt. `retry_timeout`: maximum seconds from
    the start of the first attempt to the start of the last."""

    def __init__(
        self, session: aiohttp.ClientSession, url: str, *, request_timeout: float, retry_timeout: float
    ) -> None:
        self._session = session
        self._url = url
        self._request_timeout = request_timeout
        self._retry_timeout = retry_timeout

    async def ask(self, request: BatchRequest) -> Answer:
        """Sends a request and returns the answer. Retries while the server is unreachable or answers with a status in
        RETRIED. When `retry_timeout` is over, returns the last attempt's answer. Raises RequestError if that attempt
        got no answer, if an attempt takes longer than `request_timeout`, or if an answer is too large."""
        deadline = time.monotonic() + self._retry_timeout
        delay = FIRST_DELAY_S
        while True:
            answer, problem, wanted = None, "", 0.0
            limit = asyncio.timeout(self._request_timeout)
            try:
                async with limit:
                    answer, wanted = await self._try(request)
            except (aiohttp.ClientError, OSError) as error:
                if limit.expired():
                    message = f"no answer came within {self._request_timeout:g} s"
                    raise RequestError("timeout", message) from None
                problem = str(error) or type(error).__name__
            if answer is not None and answer.status not in RETRIED:
                return answer
            # Add jitter, so that requests refused together are not retried together.
            pause = max(delay * random.uniform(0.5, 1.0), min(wanted, LONGEST_DELAY_S))
            if time.monotonic() + pause > deadline:
                if answer is not None:
                    return answer
                raise RequestError("unavailable", f"the server did not answer: {problem}")
            await asyncio.sleep(pause)
            delay = min(2 * delay, LONGEST_DELAY_S)

    async def _try(self, request: BatchRequest) -> tuple[Answer, float]:
        """Sends the request once. Returns the answer and the seconds of its Retry-After header, 0 without one."""
        url = URL(self._url + request.url, encoded=True)
        pieces, size = [], 0
        async with self._session.post(url, data=request.body, allow_redirects=False) as response:
            async for piece in response.content.iter_any():
                pieces.append(piece)
                size += len(piece)
                if size > MAX_ANSWER_BYTES:
                    raise RequestError("answer_too_large", f"the answer has more than {MAX_ANSWER_BYTES} bytes")
            request_id = response.headers.get("x-request-id", "")
            wanted = response.headers.get("retry-after", "")
        return Answer(response.status, request_id, b"".join(pieces)), float(wanted) if wanted.isdecimal() else 0.0
