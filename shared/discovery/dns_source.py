"""Parts behind a host name: every address that the name has."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import re
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from shared.discovery.parts import Part, Parts
from shared.discovery.rhythm import until_lookup

logger = logging.getLogger(__name__)

# After this long without an answer, the known addresses count as stale. The lookup goes on.
LOOKUP_TIMEOUT_S = 2.0

_NAME_AND_PORT = re.compile(r"(?P<name>[A-Za-z0-9_.-]+):(?P<port>[0-9]{1,5})")

# Returns the numeric addresses of a host name and a port, as host:port. Raises OSError if the lookup fails.
Resolve = Callable[[str, int], Awaitable[frozenset[str]]]


def split_name(address: str) -> tuple[str, int] | None:
    """Returns name and port of an address whose name must be looked up. Returns None for all other addresses: numeric
    ones, localhost, unix:/path, and those with one of gRPC's schemes."""
    found = _NAME_AND_PORT.fullmatch(address)
    if found is None or found["name"].rstrip(".").lower() == "localhost":
        return None
    try:
        ipaddress.ip_address(found["name"])
    except ValueError:
        # `unix:1` is a path.
        return None if found["name"] == "unix" else (found["name"], int(found["port"]))
    return None


async def resolve(name: str, port: int) -> frozenset[str]:
    """Looks up a name through the event loop's resolver. Returns its IPv4 addresses, or its IPv6 addresses if it has
    no others, as the gateway does. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(name, port, type=socket.SOCK_STREAM)
    hosts = {
        family: {str(where[0]) for each, _, _, _, where in found if each == family}
        for family in (socket.AF_INET, socket.AF_INET6)
    }
    if ipv4 := hosts[socket.AF_INET]:
        return frozenset(f"{host}:{port}" for host in ipv4)
    return frozenset(f"[{host}]:{port}" for host in hosts[socket.AF_INET6])


class DnsSource:
    """Knows every address of one host name, and looks the name up again about every second.

    If a lookup fails, takes too long or finds no address, the last known addresses stay and are marked as stale. An
    empty answer is no evidence that all parts are gone: a DNS server that has just started gives it, too.
    """

    def __init__(self, name: str, port: int, resolve: Resolve = resolve) -> None:
        self._name = name
        self._port = port
        self._resolve = resolve
        self._parts = Parts({}, is_stale=True)
        self._answered_at = time.monotonic()
        # Why the known addresses are stale; empty if they are not.
        self._trouble = ""

    def seconds_since_answer(self) -> float:
        return time.monotonic() - self._answered_at

    async def watch(self) -> AsyncIterator[Parts]:
        last: Parts | None = None
        lookup: asyncio.Future[frozenset[str]] | None = None
        try:
            while True:
                # A lookup occupies a thread of the loop's resolver until it ends. So there is one at a time, however
                # long it takes.
                lookup = lookup or asyncio.ensure_future(self._resolve(self._name, self._port))
                await asyncio.wait((lookup,), timeout=LOOKUP_TIMEOUT_S)
                if lookup.done():
                    self._apply(lookup)
                    lookup = None
                else:
                    self._keep("the resolver does not answer")
                if self._parts != last:
                    last = self._parts
                    yield last
                await asyncio.sleep(until_lookup())
        finally:
            if lookup is not None:
                lookup.cancel()

    def _apply(self, lookup: asyncio.Future[frozenset[str]]) -> None:
        try:
            addresses = lookup.result()
        except (OSError, UnicodeError) as error:  # UnicodeError: a label of the name is too long
            self._keep(getattr(error, "strerror", None) or str(error))
            return
        if not addresses:
            self._keep("it has no address")
            return
        self._answered_at = time.monotonic()
        if self._trouble or addresses != self._parts.addresses:
            logger.info("%s has the addresses %s", self._name, ", ".join(sorted(addresses)))
        self._trouble = ""
        self._parts = Parts({address: Part(address) for address in sorted(addresses)})

    def _keep(self, trouble: str) -> None:
        known = self._parts.by_address
        if trouble != self._trouble:
            text = ", ".join(known) or "none"
            logger.warning("cannot look up %s: %s; keeping the last known addresses: %s", self._name, trouble, text)
        self._trouble = trouble
        self._parts = Parts(known, is_stale=True)
