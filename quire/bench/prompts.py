"""Prompts of the benchmark: random tokens, or the first questions of ShareGPT conversations."""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from string import ascii_lowercase
from typing import Any

# Without --random-vocab-size, random prompts are drawn from the tokens into which the server splits this text. These
# tokens are in the vocabulary and are not special. A random token id could be special, or not in the vocabulary.
SAMPLE_TEXT = " ".join(map("".join, product(ascii_lowercase, repeat=2)))

# vLLM's limits on the lengths of a ShareGPT conversation, in tokens.
MIN_LEN = 4  # of the question, and of the answer
MAX_PROMPT_LEN = 1024  # of the question
MAX_TOTAL_LEN = 2048  # of question and answer together


class DatasetError(Exception):
    """A dataset file that cannot be used. The message is shown to the user."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt of the benchmark. `content`: text or token ids. `num_tokens`: 0 if unknown."""

    content: str | list[int]
    num_tokens: int
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Turn:
    question: str
    answer: str


def random_prompts(
    count: int, tokens: Sequence[int], input_len: int, output_len: int, range_ratio: float, rng: random.Random
) -> list[Prompt]:
    """Draws prompts from `tokens`. The lengths of prompts and answers are uniformly distributed between
    (1 - range_ratio) and (1 + range_ratio) times `input_len` and `output_len`."""
    input_range, output_range = _range(input_len, range_ratio), _range(output_len, range_ratio)
    prompts = []
    for _ in range(count):
        num_tokens = rng.randint(*input_range)
        prompts.append(Prompt(rng.choices(tokens, k=num_tokens), num_tokens, rng.randint(*output_range)))
    return prompts


def _range(length: int, ratio: float) -> tuple[int, int]:
    return max(1, math.floor(length * (1 - ratio))), math.ceil(length * (1 + ratio))


def read_sharegpt(path: str) -> list[Turn]:
    """Reads the first question and answer of each conversation that has both. Raises DatasetError."""
    try:
        entries = json.loads(Path(path).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise DatasetError(f"{path}: {error}") from error
    turns = [turn for entry in entries if (turn := _first_turn(entry))] if isinstance(entries, list) else []
    if not turns:
        raise DatasetError(f"{path} contains no conversation in ShareGPT's format")
    return turns


def _first_turn(entry: Any) -> Turn | None:
    try:
        question, answer = (message["value"] for message in entry["conversations"][:2])
    except (LookupError, TypeError, ValueError):
        return None
    return Turn(question, answer) if isinstance(question, str) and isinstance(answer, str) else None


async def sharegpt_prompts(
    turns: Sequence[Turn],
    count: int,
    output_len: int | None,
    num_tokens: Callable[[str], Awaitable[int]] | None,
    rng: random.Random,
) -> list[Prompt]:
    """Returns `count` questions as prompts, in random order. Leaves out conversations that are too short or too long,
    and repeats questions if too few are left. A prompt's max_tokens is `output_len`, or the length of the answer in the
    file if `output_len` is None. `num_tokens` returns the number of tokens of a text; if it is None, every conversation
    is used. Raises DatasetError if no question is left."""

    async def prompt(turn: Turn) -> Prompt | None:
        if num_tokens is None:
            return Prompt(turn.question, 0, output_len or 1)
        prompt_len = await num_tokens(turn.question)
        answer_len = await num_tokens(turn.answer) if output_len is None else output_len
        fits = MIN_LEN <= prompt_len <= MAX_PROMPT_LEN and prompt_len + answer_len <= MAX_TOTAL_LEN
        is_long_enough = output_len is not None or answer_len >= MIN_LEN
        return Prompt(turn.question, prompt_len, answer_len) if fits and is_long_enough else None

    prompts: list[Prompt] = []
    shuffled = rng.sample(turns, len(turns))
    for start in range(0, len(shuffled), 64):
        prompts += filter(None, await asyncio.gather(*map(prompt, shuffled[start : start + 64])))
        if len(prompts) >= count:
            return prompts[:count]
    if not prompts:
        raise DatasetError("every conversation in the file is too short or too long")
    return prompts + rng.choices(prompts, k=count - len(prompts))


def request_body(prompt: Prompt, model: str, is_chat: bool, options: Mapping[str, object]) -> bytes:
    """Builds a request's JSON body. `options`: further fields of the body. With `is_chat`, the prompt must be a text,
    not token ids."""
    asked: dict[str, object] = (
        {"messages": [{"role": "user", "content": prompt.content}], "max_completion_tokens": prompt.max_tokens}
        if is_chat
        else {"prompt": prompt.content, "max_tokens": prompt.max_tokens}
    )
    stream = {"stream": True, "stream_options": {"include_usage": True}}
    return json.dumps({"model": model, **asked, **options, **stream}).encode()
