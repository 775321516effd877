"""What may be asked: vLLM's forms of prompts and conversations."""

from __future__ import annotations

from typing import Any

import pytest

from quire.offline.prompts import Message, Prompt, parse_conversations, parse_prompts


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


def test_a_conversation_or_several() -> None:
    one: Message = {"role": "user", "content": "Hello", "name": "x"}
    parts: Message = {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}

    assert parse_conversations([one]) == [Prompt(messages=(one,))]
    assert parse_conversations([[one], [one, parts]]) == [
        Prompt(messages=(one,)),
        Prompt(messages=(one, {"role": "user", "content": "a\nb"})),
    ]
    assert parse_conversations([]) == []


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([[]], r"messages\[0\] is no list of messages"),
        (["Hello"], r"messages\[0\] is no list of messages"),
        ([{"content": "x"}], r"messages\[0\] is no message"),
        ([[{"role": "user"}]], r"messages\[0\]\[0\]\['content'\] is NoneType"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
            r"messages\[0\]\['content'\]\[0\] is no text part",
        ),
    ],
)
def test_what_is_no_conversation_is_told(given: Any, told: str) -> None:
    with pytest.raises((TypeError, ValueError), match=told):
        parse_conversations(given)
