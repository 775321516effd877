"""Prompts: random ones of the lengths that were asked for, and ShareGPT's questions."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from quire.bench.prompts import (
    DatasetError,
    Prompt,
    Turn,
    random_prompts,
    read_sharegpt,
    request_body,
    sharegpt_prompts,
)


def test_random_prompts_have_the_lengths_and_tokens_asked_for() -> None:
    prompts = random_prompts(20, [3, 5, 7], 12, 6, 0.0, random.Random(0))

    assert {(len(prompt.content), prompt.num_tokens, prompt.max_tokens) for prompt in prompts} == {(12, 12, 6)}
    assert {token for prompt in prompts for token in prompt.content} == {3, 5, 7}
    assert len({str(prompt.content) for prompt in prompts}) == 20


def test_a_range_reaches_both_its_ends() -> None:
    prompts = random_prompts(2000, range(100), 10, 4, 0.5, random.Random(0))

    assert {prompt.num_tokens for prompt in prompts} == set(range(5, 16))
    assert {prompt.max_tokens for prompt in prompts} == set(range(2, 7))
    assert all(len(prompt.content) == prompt.num_tokens for prompt in prompts)


def test_no_prompt_and_no_answer_is_empty() -> None:
    prompts = random_prompts(200, range(100), 1, 1, 0.9, random.Random(0))

    assert {prompt.num_tokens for prompt in prompts} == {prompt.max_tokens for prompt in prompts} == {1, 2}


def test_a_seed_repeats_itself_and_more_prompts_begin_with_the_same() -> None:
    few = random_prompts(5, range(100), 10, 4, 0.5, random.Random(7))

    assert random_prompts(9, range(100), 10, 4, 0.5, random.Random(7))[:5] == few
    assert random_prompts(5, range(100), 10, 4, 0.5, random.Random(8)) != few


def save(path: Path, *lengths: tuple[int, int]) -> str:
    """Conversations whose questions and answers have so many words."""
    entries = [
        {
            "id": str(number),
            "conversations": [
                {"from": "human", "value": " ".join([f"q{number}"] * question)},
                {"from": "gpt", "value": " ".join([f"a{number}"] * answer)},
                {"from": "human", "value": "and then?"},
            ],
        }
        for number, (question, answer) in enumerate(lengths)
    ]
    path.write_text(json.dumps(entries))
    return str(path)


async def num_words(text: str) -> int:
    return len(text.split())


def test_a_file_s_first_turns_are_read_and_what_has_none_is_left_out(tmp_path: Path) -> None:
    entries = [
        {"conversations": [{"value": "one"}, {"value": "two"}, {"value": "three"}]},
        {"conversations": [{"value": "alone"}]},
        {"conversations": [{"value": "no"}, {"value": None}]},
        {"conversations": [{"text": "no"}, {"text": "no"}]},
        {"conversations": None},
        {"messages": []},
        "no",
        {"conversations": [{"value": "five"}, {"value": "six"}]},
    ]
    (tmp_path / "file").write_text(json.dumps(entries))

    assert read_sharegpt(str(tmp_path / "file")) == [Turn("one", "two"), Turn("five", "six")]


@pytest.mark.parametrize(
    "data", [b"", b"[{]", b"\xff\xfe[]", b"{}", b"[]", b"3", b'[{"conversations": []}]', b"[" * 200_000]
)
def test_a_broken_file_is_told(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "file").write_bytes(data)

    with pytest.raises(DatasetError, match="file"):
        read_sharegpt(str(tmp_path / "file"))


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="No such file"):
        read_sharegpt(str(tmp_path / "none"))
    with pytest.raises(DatasetError, match="directory"):
        read_sharegpt(str(tmp_path))


async def test_questions_too_short_or_too_long_are_left_out(tmp_path: Path) -> None:
    lengths = [(4, 4), (3, 10), (10, 3), (1024, 1024), (1025, 10), (1000, 1049)]
    turns = read_sharegpt(save(tmp_path / "file", *lengths))

    prompts = await sharegpt_prompts(turns, 2, None, num_words, random.Random(0))

    assert {(prompt.num_tokens, prompt.max_tokens) for prompt in prompts} == {(4, 4), (1024, 1024)}
    assert {str(prompt.content).split()[0] for prompt in prompts} == {"q0", "q3"}


async def test_an_output_length_takes_the_answer_s_place(tmp_path: Path) -> None:
    turns = read_sharegpt(save(tmp_path / "file", (10, 3), (1000, 2000)))

    prompts = await sharegpt_prompts(turns, 2, 2, num_words, random.Random(0))

    assert {(prompt.num_tokens, prompt.max_tokens) for prompt in prompts} == {(10, 2), (1000, 2)}


async def test_without_a_way_to_tell_lengths_every_question_is_taken(tmp_path: Path) -> None:
    turns = read_sharegpt(save(tmp_path / "file", (1, 1), (3000, 1)))

    prompts = await sharegpt_prompts(turns, 2, 8, None, random.Random(0))

    assert {(prompt.num_tokens, prompt.max_tokens) for prompt in prompts} == {(0, 8)}
    assert {prompt.content for prompt in prompts} == {turn.question for turn in turns}


async def test_a_file_with_fewer_questions_is_asked_again(tmp_path: Path) -> None:
    turns = read_sharegpt(save(tmp_path / "file", *[(5, 5)] * 70))

    prompts = await sharegpt_prompts(turns, 100, None, num_words, random.Random(0))

    assert len(prompts) == 100
    assert len({prompt.content for prompt in prompts[:70]}) == 70
    assert prompts == await sharegpt_prompts(turns, 100, None, num_words, random.Random(0))
    assert prompts != await sharegpt_prompts(turns, 100, None, num_words, random.Random(1))


async def test_a_file_without_a_fitting_question_is_told(tmp_path: Path) -> None:
    turns = read_sharegpt(save(tmp_path / "file", (1, 1)))

    with pytest.raises(DatasetError, match="every conversation in the file is too short or too long"):
        await sharegpt_prompts(turns, 1, None, num_words, random.Random(0))


def test_bodies_are_openai_s() -> None:
    options = {"ignore_eos": True, "temperature": 0.0}

    assert json.loads(request_body(Prompt([1, 2], 2, 8), "m", False, options)) == {
        "model": "m", "prompt": [1, 2], "max_tokens": 8, "ignore_eos": True, "temperature": 0.0,
        "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    assert json.loads(request_body(Prompt("hi", 0, 8), "m", True, {})) == {
        "model": "m", "messages": [{"role": "user", "content": "hi"}], "max_completion_tokens": 8,
        "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
