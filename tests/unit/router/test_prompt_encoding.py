"""What the rendering of a prompt counts as, which decides whether it runs on the event loop."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from services.router.model import ServedModel
from services.router.prompt import encode_chat
from services.router.text.threads import INLINE_CHARS

MESSAGES = [{"role": "user", "content": "Hello"}]


class Template:
    """Takes note of the sizes that it is given."""

    source = ""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    async def render(self, size: int, arguments: Mapping[str, Any]) -> str:
        self.sizes.append(size)
        return ""


async def size_of(**arguments: Any) -> int:
    async def encode(texts: list[str], *_: object) -> list[list[int]]:
        return [[] for _ in texts]

    tokenizer = SimpleNamespace(encode=encode, max_token_chars=1)
    model = cast(ServedModel, SimpleNamespace(tokenizer=tokenizer, info=SimpleNamespace(max_model_len=1)))
    template = Template()
    await encode_chat(model, MESSAGES, template=cast(Any, template), **arguments)
    return template.sizes[0]


@pytest.mark.parametrize(
    "arguments",
    [
        {"template_kwargs": {"names": ["a"]}},
        {"template_kwargs": {"settings": {"a": {}}}},
        {"template_kwargs": {f"a{number}": number for number in range(1000)}},
        {"tools": [{}]},
        {"documents": [{}]},
    ],
    ids=["a list", "an object", "many arguments", "a tool", "a document"],
)
async def test_a_template_that_may_loop_over_what_it_gets_runs_on_a_thread(arguments: dict[str, Any]) -> None:
    assert await size_of(**arguments) > INLINE_CHARS


async def test_a_switch_of_the_template_does_not_matter() -> None:
    assert await size_of(template_kwargs={"enable_thinking": False}) <= INLINE_CHARS
