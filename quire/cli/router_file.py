"""Keeps Envoy's file of routers equal to what discovery knows."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from pathlib import Path

from deploy.envoy.endpoints import EndpointFile, router_address
from shared.config import ConfigError
from shared.discovery import Parts

logger = logging.getLogger(__name__)


class RouterFile:
    """Writes the file at `path` for each set of routers that `apply` gets. Creates the file, without routers.

    An empty set takes no router away. A router that is missing from any other set leaves the file. Envoy
    uses it as long as its health check succeeds, and then lets its requests end: see envoy.yaml.j2.
    """

    def __init__(self, path: Path) -> None:
        self._file = EndpointFile(path)
        self._file.write(())
        self._addresses: tuple[str, ...] = ()
        self._refused: frozenset[str] = frozenset()
        self._was_empty = False
        # Set once a source has answered, or knows a router without having answered.
        self.is_known = asyncio.Event()

    @property
    def path(self) -> Path:
        return self._file.path

    @property
    def addresses(self) -> tuple[str, ...]:
        """The routers in the file."""
        return self._addresses

    def apply(self, parts: Parts) -> None:
        """Raises OSError if the file cannot be written; it then keeps the routers that it has."""
        found = self._accepted(parts.addresses)
        if not found and not parts.is_stale and self._addresses and not self._was_empty:
            logger.warning("discovery knows no router; keeping %s", ", ".join(self._addresses))
        self._was_empty = not found
        if not found:
            found = set(self._addresses)
        addresses = tuple(sorted(found))
        if addresses != self._addresses:
            self._file.write(addresses)
            logger.info("using the routers %s", ", ".join(addresses))
            self._addresses = addresses
        if addresses or not parts.is_stale:
            self.is_known.set()

    def _accepted(self, addresses: Iterable[str]) -> set[str]:
        """Returns the addresses that Envoy accepts. Logs each other one when it appears."""
        accepted: set[str] = set()
        refused: dict[str, ConfigError] = {}
        for address in addresses:
            try:
                router_address(address)
                accepted.add(address)
            except ConfigError as error:
                refused[address] = error
        for address in sorted(refused.keys() - self._refused):
            reason = str(refused[address]).removeprefix("--router ")
            logger.error("not using a router that discovery knows: %s", reason)
        self._refused = frozenset(refused)
        return accepted
