"""What parsers write: one choice's message, as what is new of it."""

from __future__ import annotations

from collections.abc import Callable

from services.router.chat.message import ToolCallDelta

Ids = Callable[[], str]


class MessageBuilder:
    """Owned by one choice; parsers write to it, and whoever pushes the text takes what they wrote."""

    __slots__ = (
        "_arguments",
        "_calls",
        "_closing",
        "_content",
        "_held",
        "_max_calls",
        "_new_id",
        "_num_calls",
        "_reasoning",
        "has_reasoned",
        "hidden_tokens",
        "num_left_by_reasoning",
        "reasoning_is_over",
        "takes_content",
    )

    def __init__(self, new_id: Ids, max_calls: int | None = None, hidden_tokens: tuple[str, ...] = ()) -> None:
        """`new_id`: names a call. `max_calls`: further ones are dropped. `hidden_tokens`: special tokens that the text
        shows for the parsers' sake alone."""
        self._new_id = new_id
        self._max_calls = max_calls
        self.hidden_tokens = hidden_tokens
        # Not where a grammar leaves nothing but calls: what is none is the beginning of one that was cut.
        self.takes_content = True
        # Whether there was any reasoning, and whether there will be no more.
        self.has_reasoned = False
        self.reasoning_is_over = False
        # Characters that were there already when its end was read.
        self.num_left_by_reasoning = 0
        self._num_calls = 0
        # What ends content and is no part of it, and text that may be its beginning, with the space around it.
        self._closing = ""
        self._held = ""
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[ToolCallDelta] = []
        # Of the last one of `_calls`.
        self._arguments: list[str] = []

    @property
    def has_calls(self) -> bool:
        return self._num_calls > 0

    def content(self, text: str) -> None:
        if self.takes_content:
            self._content.append(self._without_closing(text) if self._closing else text)

    def content_ends_with(self, closing: str) -> None:
        """From here on, content may end with a tag that is dropped, and the space around it. `finish` follows."""
        self._closing = closing

    def finish(self) -> None:
        """No more content comes."""
        if self._held.strip() != self._closing:
            self._content.append(self._held)
        self._held = ""

    def _without_closing(self, text: str) -> str:
        """Holds back what may be the tag at the content's end."""
        text = self._held + text
        start = text.rfind(self._closing[0])
        tail = text[start:].rstrip() if start >= 0 else ""
        # Half of the tag with space behind it is other text.
        is_tag = tail == self._closing or (bool(tail) and self._closing.startswith(text[start:]))
        shown = (text[:start] if is_tag else text).rstrip()
        self._held = text[len(shown) :]
        return shown

    def reasoning(self, text: str) -> None:
        self._reasoning.append(text)

    def no_call(self, text: str) -> None:
        """Content that looked like a call for a while."""
        for token in self.hidden_tokens:
            text = text.replace(token, "")
        self.content(text)

    def begin_call(self, name: str) -> None:
        self._num_calls += 1
        if not self._is_dropped:
            self._join_arguments()
            self._calls.append(ToolCallDelta(self._num_calls - 1, id=self._new_id(), name=name))

    def arguments(self, text: str) -> None:
        """More of the last call's arguments."""
        if not text or self._is_dropped:
            return
        if not self._calls:
            self._calls.append(ToolCallDelta(self._num_calls - 1))
        self._arguments.append(text)

    @property
    def _is_dropped(self) -> bool:
        return self._max_calls is not None and self._num_calls > self._max_calls

    def take(self) -> tuple[str, str, list[ToolCallDelta]]:
        """Content, reasoning and calls that were written since the last time."""
        self._join_arguments()
        taken = "".join(self._content), "".join(self._reasoning), self._calls
        self._content.clear()
        self._reasoning.clear()
        self._calls = []
        return taken

    def _join_arguments(self) -> None:
        if self._arguments:
            self._calls[-1].arguments = "".join(self._arguments)
            self._arguments.clear()
