"""A port for a server that cannot be told to choose one itself."""

from __future__ import annotations

import random
import socket

# Below the ports that the kernel gives to outgoing connections (from 32,768): until the server listens, which takes
# seconds, no connection of another test can take the port.
PORTS = range(12_000, 32_000)


def free_port() -> int:
    """Nothing listens there. Other tests that ask at the same time get another, unless chance is much against it."""
    return free_ports(1)[0]


def free_ports(number: int) -> list[int]:
    """Ports that follow each other. The same holds for each."""
    while True:
        first = random.SystemRandom().choice(PORTS)
        ports = list(range(first, first + number))
        if all(map(_is_free, ports)):
            return ports


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
