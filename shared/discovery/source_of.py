"""The source that belongs to a part's options."""

from __future__ import annotations

from collections.abc import Iterable

from shared.discovery.dns_source import DnsSource, split_name
from shared.discovery.known_parts import KnownParts
from shared.discovery.parts import Kind
from shared.discovery.source import TimedSource
from shared.discovery.static_source import StaticSource


def source_of(addresses: Iterable[str], kind: Kind) -> KnownParts:
    """Returns the source of the parts at these addresses: each numeric address, localhost and unix:/path as it is, and
    every address of each host name."""
    given = list(addresses)
    names = dict.fromkeys(found for address in given if (found := split_name(address)) is not None)
    sources: list[TimedSource] = [StaticSource(address for address in given if split_name(address) is None)]
    sources += [DnsSource(name, port) for name, port in names]
    return KnownParts(kind, sources)
