"""The parsers' output: one choice's message, collected as deltas."""

from __future__ import annotations

from collections.abc import Callable

from services.router.chat.message import ToolCallDelta

Ids = Callable[[], str]


class MessageBuilder:
    """Collects what the parsers write for one choice. `take` returns what was added since the last `take`."""

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
        """`new_id` returns an id for a new call. Only the first `max_calls` calls are kept; None: all calls.
        `hidden_tokens`: special tokens that the parsers need as text, but that the client must not see."""
        self._new_id = new_id
        self._max_calls = max_calls
        self.hidden_tokens = hidden_tokens
        # Whether text outside of calls is content. If False, the grammar allows only calls: other text is then the
        # start of a truncated call, and is dropped.
        self.takes_content = True
        # `has_reasoned`: the message has reasoning. `reasoning_is_over`: no more reasoning can follow, because it has
        # ended or because the message began without it.
        self.has_reasoned = False
        self.reasoning_is_over = False
        # Number of characters that the feed had received, but the parser had not read yet, when the reasoning ended.
        self.num_left_by_reasoning = 0
        self._num_calls = 0
        # `_closing`: the tag that ends the content. `_tag`: text that is held back because it can be the start of that
        # tag. `_space` and `_space_after`: pieces of the space before and after `_tag`.
        self._closing = ""
        self._tag = ""
        self._space: list[str] = []
        self._space_after: list[str] = []
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[ToolCallDelta] = []
        # Pieces of the last call's arguments.
        self._arguments: list[str] = []

    @property
    def has_calls(self) -> bool:
        return self._num_calls > 0

    def content(self, text: str) -> None:
        if self.takes_content:
            self._content.append(self._without_closing(text) if self._closing else text)

    def content_ends_with(self, closing: str) -> None:
        """Makes `content` remove the tag `closing`, and the space around it, from the end of the content. Call `finish`
        after the last text."""
        self._closing = closing

    def finish(self) -> None:
        """Ends the content: adds the text that was held back, unless it is the closing tag."""
        if self._tag != self._closing:
            self._content += (*self._space, self._tag)
        self._tag = ""
        self._space, self._space_after = [], []

    def _without_closing(self, text: str) -> str:
        """Returns the part of the text so far that is certainly content and was not returned before. Holds back a
        possible closing tag at the end, and the space around it. Takes time in proportion to `text`, however much is
        held back."""
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
        """Adds `text`, which at first looked like a call, to the content, without the hidden tokens."""
        for token in self.hidden_tokens:
            text = text.replace(token, "")
        self.content(text)

    def begin_call(self, name: str) -> None:
        self._num_calls += 1
        if not self._is_dropped:
            self._join_arguments()
            self._calls.append(ToolCallDelta(self._num_calls - 1, id=self._new_id(), name=name))

    def arguments(self, text: str) -> None:
        """Adds to the last call's arguments."""
        if not text or self._is_dropped:
            return
        if not self._calls:
            self._calls.append(ToolCallDelta(self._num_calls - 1))
        self._arguments.append(text)

    @property
    def _is_dropped(self) -> bool:
        return self._max_calls is not None and self._num_calls > self._max_calls

    def take(self) -> tuple[str, str, list[ToolCallDelta]]:
        """Returns the content, reasoning and calls that were written since the last `take`."""
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
