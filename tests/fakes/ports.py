"""Free TCP ports for servers that cannot choose a port themselves."""

from __future__ import annotations

import random
import socket
from collections import deque

# These ports are below those that the kernel uses for outgoing connections (from 32,768). So no connection of another
# test can take the port during the seconds until the server listens.
PORTS = range(12_000, 32_000)


# Ports that this process was given lately: their servers may not listen yet. Of 200 random ports, two are probably the
# same.
_given: deque[int] = deque(maxlen=2_000)


def free_port() -> int:
    """Returns a random port on which nothing listens. Parallel tests very probably get different ports."""
    return free_ports(1)[0]


def free_ports(number: int) -> list[int]:
    """Returns consecutive ports, each chosen as in free_port."""
    while True:
        first = random.SystemRandom().choice(PORTS)
        ports = list(range(first, first + number))
        if all(port not in _given and _is_free(port) for port in ports):
            _given.extend(ports)
            return ports


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
