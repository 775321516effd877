"""What may be asked: vLLM's forms of prompts."""

from __future__ import annotations

from typing import Any

import pytest

from quire.offline.prompts import Prompt, PromptLike, parse_prompts, parse_texts


@pytest.mark.parametrize(
    ("given", "prompts"),
    [
        ("text", [Prompt(text="text")]),
        ("", [Prompt(text="")]),
        ([1, 2], [Prompt(token_ids=(1, 2))]),
        ({"prompt": "text"}, [Prompt(text="text")]),
        ({"prompt_token_ids": [3], "cache_salt": "s"}, [Prompt(token_ids=(3,), cache_salt="s")]),
        (["a", [1], {"prompt": "b"}], [Prompt(text="a"), Prompt(token_ids=(1,)), Prompt(text="b")]),
        ([[1, 2], (3,)], [Prompt(token_ids=(1, 2)), Prompt(token_ids=(3,))]),
        ([], []),
    ],
)
def test_prompts_have_many_forms(given: Any, prompts: list[Prompt]) -> None:
    assert parse_prompts(given) == prompts


def test_a_prompt_knows_its_place_in_the_call() -> None:
    several: list[PromptLike] = ["a", [1], {"prompt": "b"}]
    assert [prompt.name for prompt in parse_prompts(several)] == [
        "prompts[0]", "prompts[1]", "prompts[2]",
    ]  # fmt: skip
    assert [prompt.name for one in several for prompt in parse_prompts(one)] == ["prompts"] * 3
    assert [prompt.name for prompt in parse_texts(["a"], "data_1")] == ["data_1[0]"]
    assert [prompt.name for prompt in parse_texts("a", "data_1")] == ["data_1"]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["a", 3], r"prompts\[1\] is int: use a text"),
        ([1, -2], r"prompts\[0\] is int"),
        (["a", [1, "b"]], r"prompts\[1\] is list"),
        ({"prompt": "a", "multi_modal_data": {}}, "prompts has 'multi_modal_data', which is not supported"),
        ({"prompt": "a", "prompt_token_ids": [1]}, "prompts needs either 'prompt' or 'prompt_token_ids'"),
        ([{"cache_salt": "a"}], r"prompts\[0\] needs either"),
        ({"prompt": [1]}, r"prompts\['prompt'\] is not a text"),
        ({"prompt_token_ids": "a"}, r"prompts\['prompt_token_ids'\] is not a list of token ids"),
        ({"prompt": {"prompt": "a"}}, r"prompts\['prompt'\] is not a text"),
    ],
)
def test_what_is_no_prompt_is_told(given: Any, told: str) -> None:
    with pytest.raises((TypeError, ValueError), match=told):
        parse_prompts(given)
