"""Measures how long streams stand still when a worker or a scheduler is lost."""

from benchmarks.pauses.rounds import measure

__all__ = ["measure"]
