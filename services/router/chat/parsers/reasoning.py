"""Reasoning between tags that models write before their answer.

    <think>
    Köln is in Germany.
    </think>

    The weather there is fine.

The line breaks beside the tags belong neither to the reasoning nor to the answer. Some models also put the answer
between tags. Some templates write the begin tag in the prompt; the model's output then begins inside the reasoning.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from services.router.chat.parsers.builder import MessageBuilder
from services.router.chat.parsers.feed import SPACE, Feed, Reading

_LINE_BREAKS = re.compile(r"\n+")


@dataclass(frozen=True, slots=True)
class ReasoningForm:
    begin: str
    end: str
    # Other spellings of `begin` and `end`.
    other_begins: tuple[str, ...] = ()
    other_ends: tuple[str, ...] = ()
    # Whether the answer begins with reasoning even if neither the prompt nor the answer has the begin tag.
    starts_inside: bool = False
    # Texts besides the begin tags that leave reasoning open if the prompt ends with one of them.
    opens: tuple[str, ...] = ()
    # Text that the model writes directly after `begin` and that is not part of the reasoning.
    label: str = ""
    # Tags around the answer. They are not part of the answer.
    answer: tuple[str, str] | None = None

    @property
    def begins(self) -> tuple[str, ...]:
        return (self.begin, *self.other_begins)

    @property
    def ends(self) -> tuple[str, ...]:
        return (self.end, *self.other_ends)

    @property
    def tokens(self) -> tuple[str, ...]:
        return (*self.begins, *self.ends)

    def is_open(self, prompt: str) -> bool | None:
        """Returns True if the prompt ends with a tag that begins reasoning, False if it ends with a tag that ends
        reasoning, and None otherwise. Tags before the prompt's end do not count, because messages can contain tags,
        too."""
        text = prompt.rstrip()
        return True if text.endswith((*self.begins, *self.opens)) else False if text.endswith(self.ends) else None


def read_reasoning(feed: Feed, builder: MessageBuilder, form: ReasoningForm, is_inside: bool) -> Reading[None]:
    """Reads the reasoning, if there is any, and the space around it. `is_inside`: the text begins inside the reasoning,
    without its begin tag."""
    feed.record()
    yield from feed.all(SPACE)
    has_tag = bool((yield from feed.one_of(form.begins)))
    space = feed.recorded()
    if not (has_tag or is_inside):
        builder.reasoning_is_over = True
        feed.put_back(space)
        return
    builder.has_reasoned = True
    if has_tag:
        yield from feed.word(form.label)
    if has_tag or not space.strip("\n"):
        yield from feed.all(_LINE_BREAKS)
    else:
        builder.reasoning(space)
    firsts = "".join({end[0] for end in form.ends})
    plain = re.compile(rf"[^\n{re.escape(firsts)}]+")
    held = ""
    while character := (yield from feed.peek()):
        if character == "\n":
            held += feed.here(_LINE_BREAKS)
            continue
        if character in firsts and (yield from feed.one_of(form.ends)):
            builder.reasoning_is_over, builder.num_left_by_reasoning = True, feed.num_left
            yield from feed.all(_LINE_BREAKS)
            if form.answer is not None and (yield from feed.word(form.answer[0])):
                yield from feed.all(_LINE_BREAKS)
                builder.content_ends_with(form.answer[1])
            return
        builder.reasoning(held + (feed.here(plain) or feed.take()))
        held = ""
    builder.reasoning(held)
