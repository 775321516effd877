"""The benchmark's HTTP session. Each running request has its own connection, and idle connections are reused."""

from __future__ import annotations

from contextvars import ContextVar

import aiohttp

# Whether the current task's request reuses an idle connection. False if a connection was opened for the request.
_was_at_rest: ContextVar[bool] = ContextVar("was_at_rest", default=False)


def open_session(key: str) -> aiohttp.ClientSession:
    """Opens an HTTP session. `key`: the server's API key, empty for none. The number of connections is unlimited, and
    requests have no timeout. Answers are not compressed. Cookies are not stored, so that no cookie ties later requests
    to one replica."""
    headers = {"User-Agent": "quire-bench", "Accept-Encoding": "identity"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers=headers,
        timeout=aiohttp.ClientTimeout(total=None),
        middlewares=(_send_again,),
        trace_configs=[_tell_connections_apart()],
    )


async def _send_again(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Retries a request if a reused connection closes before the answer begins. In this case, the server might have
    closed the idle connection while the request was on its way. The request's latency includes the retries."""
    while True:
        try:
            return await handler(request)
        except aiohttp.ClientConnectionError:
            if not _was_at_rest.get():
                raise


def _tell_connections_apart() -> aiohttp.TraceConfig:
    async def reused(*_: object) -> None:
        _was_at_rest.set(True)

    async def opened(*_: object) -> None:
        _was_at_rest.set(False)

    trace = aiohttp.TraceConfig()
    trace.on_connection_reuseconn.append(reused)
    trace.on_connection_create_start.append(opened)
    return trace
