"""The HTTP session that requests go through: a connection per request in progress, and those at rest are used again."""

from __future__ import annotations

from contextvars import ContextVar

import aiohttp

# Of the connection that the running task's request has got.
_was_at_rest: ContextVar[bool] = ContextVar("was_at_rest", default=False)


def open_session(key: str) -> aiohttp.ClientSession:
    """`key`: the server's, empty if it asks for none. No request waits for another's connection, and none is given up.
    Answers come as the server writes them, not compressed, and no cookie ties later requests to one of its replicas."""
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
    """As long as it meets connections that end before an answer begins and were at rest before: the server may have
    closed them as the request was on its way. The request's time runs on."""
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
