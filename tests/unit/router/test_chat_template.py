"""Chat templates render as their authors tested them, in a sandbox."""

from __future__ import annotations

import json
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any

import pytest

from services.router.chat_template import ChatTemplate, from_tokenizer_config
from services.router.errors import ApiError

USER = {"role": "user", "content": "Hi"}


def test_special_tokens_of_the_config_are_the_template_s() -> None:
    config = {"chat_template": "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"}
    template = from_tokenizer_config(config | {"bos_token": "<s>", "eos_token": {"content": "</s>"}})
    assert template is not None
    assert template.render([USER]) == "<s>Hi</s>"


def test_of_several_templates_the_default_is_taken() -> None:
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes"}]
    template = from_tokenizer_config({"chat_template": named})
    assert template is not None
    assert template.source == "yes"
    assert from_tokenizer_config({}) is None


def test_what_a_template_raises_is_the_client_s_error() -> None:
    with pytest.raises(ApiError, match="no assistants here") as caught:
        ChatTemplate("{{ raise_exception('no assistants here') }}", {}).render([USER])
    assert caught.value.param == "messages"
    with pytest.raises(ApiError, match="fails on these messages"):
        ChatTemplate("{{ messages[0].content + 1 }}", {}).render([USER])


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{% set _ = messages.__init__.__globals__ %}{{ _ }}",
    ],
)
def test_a_template_cannot_reach_out_of_its_sandbox(source: str) -> None:
    with pytest.raises(ApiError, match="refuses"):
        ChatTemplate(source, {}).render([USER])


def test_a_template_sees_no_message_as_code() -> None:
    assert (
        ChatTemplate("{{ messages[0].content }}", {}).render([{"role": "user", "content": "{{ 7 * 7 }}"}])
        == "{{ 7 * 7 }}"
    )


def test_developers_are_systems_to_templates_that_do_not_know_them() -> None:
    messages = [{"role": "developer", "content": "x"}]
    assert ChatTemplate("{{ messages[0].role }}", {}).render(messages) == "system"
    knows = "{% if messages[0].role == 'developer' %}developer{% endif %}"
    assert ChatTemplate(knows, {}).render(messages) == "developer"


def test_reserved_arguments_cannot_be_replaced() -> None:
    with pytest.raises(ApiError) as caught:
        ChatTemplate("x", {}).render([USER], template_kwargs={"messages": []})
    assert caught.value.param == "chat_template_kwargs.messages"
    assert ChatTemplate("{{ mood }}", {}).render([USER], template_kwargs={"mood": "glad"}) == "glad"


def test_tool_calls_reach_the_template_with_parsed_arguments() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    message = {"role": "assistant", "content": "", "tool_calls": [call]}
    source = "{{ messages[0].tool_calls[0].function.arguments.a }}"
    assert ChatTemplate(source, {}).render([message]) == "1"
    assert call["function"] == {"name": "add", "arguments": '{"a": 1}'}


class FrozenDate(datetime):
    """The day on which the goldens were made."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> FrozenDate:
        return cls(2025, 7, 10)


def goldens() -> dict[str, dict[str, Any]]:
    """Published templates with input and output, by name; those that take no tools or documents, and not the one that
    wants a tool call's arguments as text, which transformers and vLLM do not offer."""
    path = Path(__file__).parents[3].parent / "shared/templates/chat_template_goldens.json"
    if not path.exists():
        return {}
    groups = json.loads(path.read_text())
    cases = {name: case for group in groups.values() for name, case in group.items() if "data" in case}
    plain = {name: case for name, case in cases.items() if not {"tools", "documents"} & case["data"].keys()}
    plain.pop("meetkai/functionary-medium-v2.2", None)
    return plain


@pytest.mark.skipif(not goldens(), reason="the published goldens are not here")
@pytest.mark.parametrize("name", goldens())
def test_published_templates_render_as_published(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.utils import chat_template_utils

    monkeypatch.setattr(chat_template_utils, "datetime", FrozenDate)
    case = goldens()[name]
    data = dict(case["data"])
    messages = data.pop("messages")
    tokens = {key: data.pop(key) for key in ("bos_token", "eos_token") if key in data}
    add_generation_prompt = data.pop("add_generation_prompt", False)
    template = ChatTemplate(case["chat_template"], tokens)
    rendered = template.render(messages, add_generation_prompt=add_generation_prompt, template_kwargs=data)
    assert rendered == case["target"]
