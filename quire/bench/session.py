"""The HTTP session that requests go through: a connection per request in progress, and those at rest are used again."""

from __future__ import annotations

import aiohttp


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
    )


async def _send_again(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Once, where a connection ends before an answer begins: the server may have closed it at rest, as the request was
    on its way. The request's time runs on."""
    try:
        return await handler(request)
    except aiohttp.ClientConnectorError:
        raise
    except aiohttp.ClientConnectionError:
        return await handler(request)
