"""What may be asked: vLLM's forms of prompts."""

from __future__ import annotations

from typing import Any

import pytest

from quire.offline.prompts import Prompt, parse_prompts


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


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["a", 3], r"prompts\[1\] is int: use a text"),
        ([1, -2], r"prompts\[0\] is int"),
        (["a", [1, "b"]], r"prompts\[1\] is list"),
        ({"prompt": "a", "multi_modal_data": {}}, "prompts has 'multi_modal_data', which is not supported"),
        ({"prompt": "a", "prompt_token_ids": [1]}, "prompts needs either 'prompt' or 'prompt_token_ids'"),
        ([{"cache_salt": "a"}], r"prompts\[0\] needs either"),
        ({"prompt": [1]}, r"prompts\['prompt'\] is no text"),
        ({"prompt_token_ids": "a"}, r"prompts\['prompt_token_ids'\] is no list of token ids"),
        ({"prompt": {"prompt": "a"}}, r"prompts\['prompt'\] is no text"),
    ],
)
def test_what_is_no_prompt_is_told(given: Any, told: str) -> None:
    with pytest.raises((TypeError, ValueError), match=told):
        parse_prompts(given)
