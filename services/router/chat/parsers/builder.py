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
        "_max_calls",
        "_new_id",
        "_num_calls",
        "_reasoning",
        "_space",
        "_space_after",
        "_tag",
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
        # False where the grammar allows only calls: any other text is then a call that was cut short.
        self.takes_content = True
        # Whether there was any reasoning, and whether there will be no more.
        self.has_reasoned = False
        self.reasoning_is_over = False
        # Characters that were there already when its end was read.
        self.num_left_by_reasoning = 0
        self._num_calls = 0
        # `_closing`: the tag that ends the content. `_tag`: text that may be the start of that tag. `_space`,
        # `_space_after`: the space around it, in the pieces in which it came.
        self._closing = ""
        self._tag = ""
        self._space: list[str] = []
        self._space_after: list[str] = []
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
        """Drops this tag, and the space around it, from the end of the content. The caller calls `finish` after the
        last text."""
        self._closing = closing

    def finish(self) -> None:
        """No more content comes."""
        if self._tag != self._closing:
            self._content += (*self._space, self._tag)
        self._tag = ""
        self._space, self._space_after = [], []

    def _without_closing(self, text: str) -> str:
        """Holds back what may be the tag at the content's end. Takes time in proportion to `text`, however much is
        held."""
        shown: list[str] = []
        if self._tag == self._closing:
            if not text or text.isspace():
                self._space_after.append(text)
                return ""
            shown += (*self._space, self._tag)
            self._tag = ""
            self._space, self._space_after = self._space_after, []
        text = self._tag + text
        start = text.rfind(self._closing[0])
        tail = text[start:] if start >= 0 else ""
        self._tag = tail.rstrip()
        # A partial tag followed by space is content.
        if self._tag != self._closing and not self._closing.startswith(tail):
            self._tag = tail = ""
        before = text[: len(text) - len(tail)]
        visible = before.rstrip()
        if visible:
            shown += (*self._space, visible)
            self._space = []
        self._space.append(before[len(visible) :])
        self._space_after = [tail[len(self._tag) :]]
        return "".join(shown)

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
