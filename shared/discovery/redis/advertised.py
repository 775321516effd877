"""The address that a part registers."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence


def advertised_address(advertise: str, listening: Sequence[str], local_host: str) -> str:
    """Returns `advertise` if it is set, else the first address that the part listens on. There, `local_host` (the
    address of this host on its way to Redis) takes the place of a wildcard."""
    address = advertise or listening[0]
    host, _, port = address.rpartition(":")
    return f"{local_host}:{port}" if host in ("0.0.0.0", "[::]", "::") else address


def is_loopback(address: str) -> bool:
    """Whether only programs on this host reach the address, a host with or without a port."""
    if address.startswith(("unix:", "localhost:", "[::1]")):
        return True
    try:
        return ipaddress.ip_address(address.partition(":")[0]).is_loopback
    except ValueError:
        return False
