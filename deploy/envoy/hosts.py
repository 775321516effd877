"""Which hosts requests may name (ADR 22).

A web page can make its own host's name mean 127.0.0.1 (DNS rebinding). The browser then takes a server on loopback for
the page's own and lets the page read its answers, but still names the page's host in the Host header.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from typing import Any

from deploy.envoy.config import ANY, GatewayConfig

# A browser names an address only where the user, or a page, asked for this address: no name stands between.
_ADDRESS = r"[0-9.]+|\[[0-9A-Fa-f:.]+\]"
# Names that the public DNS never has: RFC 6761 and 6762, and ICANN's resolution 2024.07.29.06.
_PRIVATE_NAME = r"(.+\.)?localhost|.+\.(local|internal)"


def foreign_host(config: GatewayConfig) -> tuple[dict[str, Any], ...]:
    """Matchers of headers, all of which hold for a request that names a host it may not; none where every host may be
    named."""
    allowed = config.allowed_hosts
    if allowed is None:
        allowed = () if _is_loopback(config) else (ANY,)
    if ANY in allowed:
        return ()
    # A matcher each, as Envoy bounds the size of a pattern.
    patterns = (_ADDRESS, _PRIVATE_NAME, *(_pattern(name) for name in (socket.gethostname(), *allowed)))
    return tuple(_unlike(pattern) for pattern in dict.fromkeys(patterns))


def _is_loopback(config: GatewayConfig) -> bool:
    """Whether it listens where only programs of this machine reach it by TCP. No browser speaks to Unix sockets."""
    if config.listen:
        return False
    try:
        return ipaddress.ip_address(config.host).is_loopback
    except ValueError:
        return config.host == "localhost"


def _pattern(host: str) -> str:
    return rf".+\.{re.escape(host[2:])}" if host.startswith("*.") else re.escape(host)


def _unlike(pattern: str) -> dict[str, Any]:
    matcher = {"safe_regex": {"regex": rf"(?i)({pattern})\.?(:[0-9]*)?"}}
    return {"name": ":authority", "string_match": matcher, "invert_match": True, "treat_missing_header_as_empty": True}
