"""Finds stop strings across token boundaries, and holds back only text that can be the start of a stop string.

All stop strings of a request share one Aho-Corasick automaton (Aho and Corasick, "Efficient string matching", 1975).
Its state is the longest suffix of the text that is a prefix of a stop string. The state's depth is therefore the number
of characters to hold back. The stop string that is complete first ends the text, no matter into which pieces the text
is split.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable


class StopStrings:
    """Aho-Corasick automaton of a request's stop strings. Immutable; all choices share it."""

    __slots__ = ("children", "depth", "fallback", "match_length")

    def __init__(self, stops: Iterable[str]) -> None:
        """`stops`: stop strings, none of them empty."""
        self.children: list[dict[str, int]] = [{}]
        self.depth = [0]
        self.fallback = [0]
        # For each state: length of the longest stop string that is a suffix of the state's text; 0 if there is none.
        self.match_length = [0]
        for stop in stops:
            self._insert(stop)
        self._link()

    def _insert(self, stop: str) -> None:
        state = 0
        for character in stop:
            following = self.children[state].get(character)
            if following is None:
                following = len(self.children)
                self.children[state][character] = following
                self.children.append({})
                self.depth.append(self.depth[state] + 1)
                self.fallback.append(0)
                self.match_length.append(0)
            state = following
        self.match_length[state] = len(stop)

    def _link(self) -> None:
        queue = deque(self.children[0].values())
        while queue:
            state = queue.popleft()
            for character, following in self.children[state].items():
                fallback = self.fallback[state]
                while fallback and character not in self.children[fallback]:
                    fallback = self.fallback[fallback]
                self.fallback[following] = self.children[fallback].get(character, 0)
                queue.append(following)
            if not self.match_length[state]:
                self.match_length[state] = self.match_length[self.fallback[state]]


class StopMatcher:
    """Finds the stop strings in one choice's text."""

    __slots__ = ("_held", "_includes_stop", "_state", "_stops", "found", "stopped")

    def __init__(self, stops: StopStrings, includes_stop: bool = False) -> None:
        """`includes_stop`: whether the text ends after the stop string instead of before it."""
        self._stops = stops
        self._includes_stop = includes_stop
        self._state = 0
        self._held = ""
        self.stopped = False
        # The stop string that ended the text.
        self.found = ""

    def push(self, text: str, may_stop: bool = True) -> str:
        """Adds `text` to the choice's text, and returns the text that can be sent now. Once a stop string is found,
        `stopped` is True and the caller must push no more. If `may_stop` is False, stop strings that end within `text`
        are ignored."""
        stops = self._stops
        children, fallback = stops.children, stops.fallback
        state = self._state
        for position, character in enumerate(text):
            while state and character not in children[state]:
                state = fallback[state]
            state = children[state].get(character, 0)
            if may_stop and stops.match_length[state]:
                self.stopped = True
                whole = self._held + text[: position + 1]
                self._held = ""
                end = len(whole) - stops.match_length[state]
                self.found = whole[end:]
                return whole if self._includes_stop else whole[:end]
        self._state = state
        whole = self._held + text
        sendable = len(whole) - stops.depth[state]
        self._held = whole[sendable:]
        return whole[:sendable]

    def flush(self) -> str:
        """Returns the text that was held back. Call it at the end of the output."""
        held, self._held = self._held, ""
        return held
