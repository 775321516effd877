"""The routers that Envoy uses: a file in the form of Envoy's endpoint discovery service (EDS), which Envoy watches."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.envoy.config import endpoint_kind, split_host_port
from shared.config import ConfigError

# Name of the cluster in envoy.yaml.j2.
CLUSTER = "routers"


def envoy_address(address: str) -> dict[str, Any]:
    """Returns an address of the form unix:/path or host:port as Envoy writes it. Raises ConfigError."""
    if address.startswith("unix:"):
        return {"pipe": {"path": address.removeprefix("unix:")}}
    host, port = split_host_port(address)
    return {"socket_address": {"address": host, "port_value": port}}


def router_address(address: str) -> dict[str, Any]:
    """Returns the address of a router as Envoy accepts it in the file. Raises ConfigError for an address that Envoy
    would refuse: it refuses the whole file for one such address."""
    kind = endpoint_kind(address)
    if kind == "pipe":
        return envoy_address(address)
    host, port = split_host_port(address)
    if kind == "name":
        if host.rstrip(".").lower() != "localhost":
            raise ConfigError(f"{address!r} has a host name, and Envoy takes IP addresses only")
        host = "127.0.0.1"
    if "%" in host:
        raise ConfigError(f"{address!r} has an interface, and Envoy takes IP addresses without one only")
    return envoy_address(f"{ipaddress.ip_address(host)}:{port}")


@dataclass(slots=True)
class EndpointFile:
    """The file. Its directory must contain nothing else, because Envoy reads the file again after every rename in the
    directory."""

    path: Path
    _version: int = 0

    def write(self, addresses: Iterable[str]) -> None:
        """Replaces the file's routers. The addresses must be ones that `router_address` accepts. Raises OSError; the
        file then keeps what it had."""
        self._version += 1
        endpoints = [{"endpoint": {"address": router_address(address)}} for address in addresses]
        assignment = {
            "@type": "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
            "cluster_name": CLUSTER,
            "endpoints": [{"lb_endpoints": endpoints}] if endpoints else [],
        }
        content = {"version_info": str(self._version), "resources": [assignment]}
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(content, indent=1))
        new.rename(self.path)
