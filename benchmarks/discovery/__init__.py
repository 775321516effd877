"""Measures discovery through Redis with a fleet of a thousand parts that have no engines."""

from benchmarks.discovery.phases import measure

__all__ = ["measure"]
