"""Discovery: which parts of the fleet are known, and where they listen."""

from shared.discovery.following import follow
from shared.discovery.known_parts import KnownParts
from shared.discovery.metrics import DiscoveryCollector
from shared.discovery.options import DiscoveryOptions, PartOptions
from shared.discovery.parts import Kind, Part, Parts
from shared.discovery.registry import Registry
from shared.discovery.source import Source
from shared.discovery.source_of import source_of
from shared.discovery.static_source import StaticSource

__all__ = [
    "DiscoveryCollector",
    "DiscoveryOptions",
    "Kind",
    "KnownParts",
    "Part",
    "PartOptions",
    "Parts",
    "Registry",
    "Source",
    "StaticSource",
    "follow",
    "source_of",
]
