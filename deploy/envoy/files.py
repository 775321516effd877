"""The files and Unix sockets that a gateway shares with its Envoy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from deploy.envoy.config import GatewayConfig


@dataclass(frozen=True, slots=True)
class SharedFiles:
    """`directory`: a private one. Its path must leave room for a socket's name: see MAX_SOCKET_PATH_BYTES."""

    directory: Path

    @property
    def drain(self) -> Path:
        """Contains 0, and 1 once the gateway drains."""
        return self.directory / "drain"

    @property
    def routers(self) -> Path:
        """The file of routers (endpoints.py), in a directory of its own."""
        return self.directory / "routers" / "routers.json"

    @property
    def large_bodies(self) -> Path:
        """The socket of the server that refuses large bodies (quire/cli/large_bodies.py)."""
        return self.directory / "large.sock"

    def admin(self, config: GatewayConfig) -> str:
        """Returns the address of Envoy's admin interface, `unix:/path` or `host:port` on loopback."""
        return f"127.0.0.1:{config.admin_port}" if config.admin_port else f"unix:{self.directory}/admin.sock"
