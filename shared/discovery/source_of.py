"""The source that belongs to a part's options."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from shared.discovery.dns_source import DnsSource, split_name
from shared.discovery.known_parts import KnownParts
from shared.discovery.named_parts import NamedParts
from shared.discovery.parts import Kind
from shared.discovery.registry import Registry
from shared.discovery.source import TimedSource
from shared.discovery.static_source import StaticSource


def source_of(
    addresses: Iterable[str], kind: Kind, registry: Registry | None = None, model_name: Callable[[], str] | None = None
) -> KnownParts:
    """Returns the source of the parts at these addresses and in the registry. Each numeric address, localhost and
    unix:/path is one part; a host name is a part at each of its addresses. A registered part is one part, except that
    a router with a host name is given by the name's addresses: gRPC looks names up by itself, and Envoy does not.
    `model_name`: returns the name of the model whose registered parts count; empty, or None: those of all models."""
    given = list(addresses)
    names = dict.fromkeys(found for address in given if (found := split_name(address)) is not None)
    sources: list[TimedSource] = [StaticSource(address for address in given if split_name(address) is None)]
    sources += [DnsSource(name, port) for name, port in names]
    registered = None if registry is None else registry.source(kind, model_name)
    if registered is not None:
        sources.append(NamedParts(registered) if kind is Kind.ROUTER else registered)
    return KnownParts(kind, sources)
