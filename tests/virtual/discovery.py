"""What discovery tells a part of the simulated fleet."""

from __future__ import annotations

from collections.abc import Collection

from shared.discovery import Kind, KnownParts
from tests.fakes.changing_source import TimedChangingSource


class View:
    """The addresses that discovery gives a part, across restarts of its process. The nemesis hides some of them for a
    while."""

    def __init__(self, kind: Kind, addresses: Collection[str]) -> None:
        self.addresses = tuple(addresses)
        self._kind = kind
        self._is_stale = False
        self._shown = self.addresses
        self._source = TimedChangingSource(*self.addresses)

    def open(self) -> KnownParts:
        """Returns the source of a new process. The process before it learns of no further change."""
        self._source = TimedChangingSource()
        self._tell()
        return KnownParts(self._kind, [self._source])

    def hide(self, hidden: Collection[str], is_stale: bool) -> None:
        self._shown = tuple(address for address in self.addresses if address not in hidden)
        self._is_stale = is_stale
        self._tell()

    def show_all(self) -> None:
        self.hide((), is_stale=False)

    def _tell(self) -> None:
        self._source.set(*self._shown, is_stale=self._is_stale)
