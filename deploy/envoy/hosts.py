"""Checks the Host header of requests against DNS rebinding (ADR 22).

A web page can make its own host name resolve to 127.0.0.1. The browser then treats a server on loopback as the page's
own origin, so that the page can read the server's answers. The Host header still has the page's host name, by which the
gateway detects the attack.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from typing import Any

from deploy.envoy.config import ANY, GatewayConfig

# A Host header with an IP address is safe. A browser sends it only if the URL contains the address, but the attack
# needs a URL with a DNS name.
_ADDRESS = r"[0-9.]+|\[[0-9A-Fa-f:.]+\]"
# Names that the public DNS never resolves: RFC 6761 and 6762, and ICANN's resolution 2024.07.29.06.
_PRIVATE_NAME = r"(.+\.)?localhost|.+\.(local|internal)"


def foreign_host(config: GatewayConfig) -> tuple[dict[str, Any], ...]:
    """Returns header matchers that together match a request for a host that is not allowed. Returns no matchers if
    every host is allowed."""
    allowed = config.allowed_hosts
    if allowed is None:
        allowed = () if _is_loopback(config) else (ANY,)
    if ANY in allowed:
        return ()
    # One matcher per pattern, because Envoy limits a pattern's size.
    patterns = (_ADDRESS, _PRIVATE_NAME, *(_pattern(name) for name in (socket.gethostname(), *allowed)))
    return tuple(_unlike(pattern) for pattern in dict.fromkeys(patterns))


def _is_loopback(config: GatewayConfig) -> bool:
    """Returns whether the gateway listens on a loopback address. Returns False for a Unix socket, to which no browser
    can connect."""
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
