"""Prompts in which some tokens have contents, and what a worker would make of them."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from services.scheduler.core.content import Content

PLACEHOLDER = 0


def _one_after_the_other(parts: list[tuple[int, int, bytes]]) -> tuple[Content, ...]:
    """`parts`: (tokens before it, its tokens, digest) of each content."""
    contents, end = [], 0
    for gap, length, digest in parts:
        start = end + gap
        end = start + length
        contents.append(Content(start, end, digest))
    return tuple(contents)


# Few digests, so that equal contents meet at equal and at different places.
CONTENTS = st.just(()) | st.lists(
    st.tuples(st.integers(0, 5), st.integers(1, 7), st.sampled_from([b"x", b"y"])), max_size=3
).map(_one_after_the_other)


def insert(prompt: list[int], contents: tuple[Content, ...]) -> tuple[list[int], tuple[Content, ...]]:
    """Returns the prompt with placeholder tokens, and the contents that fit into it."""
    fitting = tuple(content for content in contents if content.stop <= len(prompt))
    inserted = prompt.copy()
    for content in fitting:
        inserted[content.start : content.stop] = [PLACEHOLDER] * (content.stop - content.start)
    return inserted, fitting


def replace(token_ids: Sequence[int], contents: tuple[Content, ...], vocab_size: int) -> list[int]:
    """Returns ids with others in place of the placeholders. They tell the parts of all contents apart."""
    replaced = list(token_ids)
    for content in contents:
        length = content.stop - content.start
        for index in range(length):
            replaced[content.start + index] = (content.digest[0] * 31 + length * 17 + index * 7 + 1) % vocab_size
    return replaced
