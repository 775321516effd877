"""Chat templates render as their authors tested them, in a sandbox."""

from __future__ import annotations

import json
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any

import pytest

from services.router.errors import ApiError
from services.router.template.chat_template import ChatTemplate, from_tokenizer_config
from services.router.template.messages import MAX_FORMS, num_forms
from tests.chat_templates.published import ours, published

# The names of templates of its shape.
GPT_OSS = ("channels", "openai/gpt-oss-20b", "openai/gpt-oss-120b")
USER = {"role": "user", "content": "Hi"}


def test_special_tokens_of_the_config_are_the_template_s() -> None:
    config = {"chat_template": "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"}
    template = from_tokenizer_config(config | {"bos_token": "<s>", "eos_token": {"content": "</s>"}})
    assert template is not None
    assert template.render([USER]) == "<s>Hi</s>"


def test_of_several_templates_each_is_found_by_its_name() -> None:
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "yes"}]
    default, tool_use = (from_tokenizer_config({"chat_template": named}, name) for name in ("default", "tool_use"))
    assert default is not None
    assert default.source == "yes"
    assert tool_use is not None
    assert tool_use.source == "tools"
    assert from_tokenizer_config({"chat_template": "alone"}, "tool_use") is None
    assert from_tokenizer_config({}) is None


def test_what_a_template_raises_is_the_client_s_error() -> None:
    with pytest.raises(ApiError, match="no assistants here") as caught:
        ChatTemplate("{{ raise_exception('no assistants here') }}", {}).render([USER])
    assert caught.value.param == "messages"
    with pytest.raises(ApiError, match="fails on these messages"):
        ChatTemplate("{{ messages[0].content + 1 }}", {}).render([USER])


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("{% for message in messages %}\n{{ message.content }", "line 2: unexpected '}'"),
        ("{{ messages | frobnicate }}", "line 1: No filter named 'frobnicate'"),
        ("a\nb{% endfor %}", "line 2: Encountered unknown tag 'endfor'"),
    ],
)
def test_a_template_that_cannot_be_parsed_is_blamed_and_no_message(source: str, why: str) -> None:
    template = ChatTemplate(source, {})
    with pytest.raises(ApiError) as caught:
        template.render([USER])
    assert caught.value.message.startswith(f"The model's chat template cannot be parsed: {why}")
    assert (caught.value.param, caught.value.code) == ("model", "invalid_chat_template")
    assert template.warm() == caught.value.message


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("{% for x in [1] %}" * 21 + "{% endfor %}" * 21, "too many statically nested blocks."),
        ("{{ f(a=1, a=2) }}", "keyword argument repeated: a."),
    ],
)
def test_a_template_that_python_cannot_compile_is_blamed_too(source: str, why: str) -> None:
    assert ChatTemplate(source, {}).warm() == f"The model's chat template cannot be parsed: {why}"


@pytest.mark.parametrize("source", ["{{ [messages] | indent }}", "{{ cycler() }}"])
def test_whatever_a_template_raises_is_the_client_s_error(source: str) -> None:
    with pytest.raises(ApiError, match="fails on these messages"):
        ChatTemplate(source, {}).render([USER])


def test_a_template_that_refuses_a_greeting_can_be_parsed() -> None:
    assert ChatTemplate("{{ raise_exception('no greetings here') }}", {}).warm() is None


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


TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    },
}
LOOPS_OVER_PARTS = (
    "{% for message in messages %}{% for part in message['content'] %}<{{ part['text'] }}>{% endfor %}{% endfor %}"
)
# As published templates have it: a macro that is called with the content, which it asks for its kind.
TAKES_EITHER = (
    "{% macro text(content) %}{% if content is string %}{{ content }}{% else %}"
    "{% for part in content %}<{{ part.text }}>{% endfor %}{% endif %}{% endmacro %}"
    "{% for message in messages %}{% set content = text(message.content) %}{{ content }}{% endfor %}"
)
PARTS = {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}


def test_tools_and_documents_are_the_template_s_and_absent_ones_are_none() -> None:
    template = ChatTemplate(
        "{% if tools is not none %}{{ tools[0].function.name }} {{ tools[0] | tojson }}{% endif %}"
        "{% if documents is not none %}{{ documents[0].title }}{% endif %}",
        {},
    )
    assert template.render([USER]) == ""
    assert template.render([USER], tools=[], documents=[]) == ""
    assert template.render([USER], tools=[TOOL]) == "add " + json.dumps(TOOL)
    assert template.render([USER], documents=[{"title": "T", "text": "x"}]) == "T"


@pytest.mark.parametrize(
    ("source", "of_text", "of_parts"),
    [
        ("{{ messages[0]['content'] }}", "Hi", "a\nb"),
        (LOOPS_OVER_PARTS, "<Hi>", "<a><b>"),
        (TAKES_EITHER, "Hi", "<a><b>"),
    ],
)
def test_content_comes_in_the_form_that_the_template_wants(source: str, of_text: str, of_parts: str) -> None:
    template = ChatTemplate(source, {})
    assert template.render([USER]) == of_text
    assert template.render([PARTS]) == of_parts


# Vision models' templates loop over the parts of a user's message and take a tool's as a text.
CONCATENATES_TOOLS = (
    "{% for message in messages %}{% if message.role == 'tool' %}{{ '<tool>' + message.content }}"
    "{% else %}{% for part in message.content %}<{{ part.text }}>{% endfor %}{% endif %}{% endfor %}"
)
PRINTS_TOOLS = (
    "{% for message in messages %}{% if message.role == 'tool' %}<tool>{{ message.content | trim }}"
    "{% elif message.content is string %}{{ message.content }}"
    "{% else %}{% for part in message.content %}<{{ part.text }}>{% endfor %}{% endif %}{% endfor %}"
)
WRITES_TOOLS_AS_JSON = PRINTS_TOOLS.replace("| trim", "| tojson")
CONCATENATES_SYSTEM = (
    "{% for message in messages %}{% if message.role == 'system' %}{{ message.content + '|' }}"
    "{% else %}{% for part in message.content %}<{{ part.text }}>{% endfor %}{% endif %}{% endfor %}"
)
# GLM's templates take a text, or write each item of a list: its output if it has one, else the item itself.
WRITES_TOOLS_ITEMS = PRINTS_TOOLS.replace(
    "<tool>{{ message.content | trim }}",
    "{% if message.content is string %}<tool>{{ message.content }}{% else %}{% for item in message.content %}<tool>"
    "{% if item.output is defined %}{{ item.output }}{% else %}{{ item }}{% endif %}{% endfor %}{% endif %}",
)
WRITES_TOOLS_ITEMS_AS_JSON = WRITES_TOOLS_ITEMS.replace("{{ item }}", "{{ item | tojson }}")
A_AND_B = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]


@pytest.mark.parametrize(
    ("source", "role", "of_text", "of_parts"),
    [
        (CONCATENATES_TOOLS, "tool", "<Hi><tool>x", "<Hi><tool>a\nb"),
        (PRINTS_TOOLS, "tool", "Hi<tool>x", "Hi<tool>a\nb"),
        (WRITES_TOOLS_AS_JSON, "tool", 'Hi<tool>"x"', 'Hi<tool>"a\\nb"'),
        (WRITES_TOOLS_ITEMS, "tool", "Hi<tool>x", "Hi<tool>a\nb"),
        (WRITES_TOOLS_ITEMS_AS_JSON, "tool", "Hi<tool>x", "Hi<tool>a\nb"),
        (CONCATENATES_SYSTEM, "system", "<Hi>x|", "<Hi>a\nb|"),
    ],
)
def test_roles_of_one_template_may_want_different_forms(source: str, role: str, of_text: str, of_parts: str) -> None:
    template = ChatTemplate(source, {})
    assert template.render([USER, {"role": role, "content": "x"}]) == of_text
    assert template.render([USER, {"role": role, "content": A_AND_B}]) == of_parts


def test_a_message_may_quote_how_a_part_is_written() -> None:
    quoting = {"role": "user", "content": [{"type": "text", "text": str(A_AND_B[0])}, *A_AND_B]}
    assert ChatTemplate(LOOPS_OVER_PARTS, {}).render([quoting]) == f"<{A_AND_B[0]}><a><b>"


@pytest.mark.parametrize("source", ["{{ fail() }}", LOOPS_OVER_PARTS + "{{ fail() }}", TAKES_EITHER + "{{ fail() }}"])
def test_a_conversation_is_rendered_a_few_times_at_most(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.utils import chat_template_utils

    render, num_renderings = chat_template_utils.render_jinja_template, 0

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal num_renderings
        num_renderings += 1
        return render(*args, **kwargs)

    template = ChatTemplate(source, {})
    # What is found out of the template once.
    template.warm()
    monkeypatch.setattr(chat_template_utils, "render_jinja_template", counted)
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": "[1]"}}
    messages: list[dict[str, Any]] = [USER, PARTS, {"role": "assistant", "content": None, "tool_calls": [call]}]
    with pytest.raises(ApiError):
        template.render([*messages, {"role": "tool", "content": A_AND_B, "tool_call_id": "1"}])
    assert num_renderings == MAX_FORMS


def test_conversations_that_may_be_rendered_several_times_count_as_more_work() -> None:
    assert num_forms([USER]) == 1
    assert num_forms([USER, PARTS]) == num_forms([USER, {"role": "tool", "content": "x"}]) == MAX_FORMS


def test_a_custom_role_is_the_template_s_to_judge() -> None:
    message = {"role": "critic", "content": A_AND_B}
    assert ChatTemplate("{{ messages[0].role }}: {{ messages[0].content }}", {}).render([message]) == "critic: a\nb"
    refuses = "{% if messages[0].role == 'critic' %}{{ raise_exception('no critics here') }}{% endif %}"
    with pytest.raises(ApiError, match="refuses these messages: no critics here"):
        ChatTemplate(refuses, {}).render([message])


def test_a_call_s_arguments_are_text_to_templates_that_want_text() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    source = "{{ 'call ' + messages[0].tool_calls[0].function.arguments }}"
    assert ChatTemplate(source, {}).render([message]) == 'call {"a": 1}'


def test_missing_content_is_none_or_empty_as_the_template_can_take_it() -> None:
    message: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": []}
    assert ChatTemplate("{{ messages[0].content is none }}", {}).render([message]) == "True"
    assert ChatTemplate("{{ '<' + messages[0].content.strip() }}", {}).render([message]) == "<"


@pytest.mark.parametrize(
    ("arguments", "written"), [('{"a": 1, "b": "x', '{"a": 1}'), ("nonsense", "{}"), ("", "{}"), ("[1]", "{}")]
)
def test_of_arguments_that_are_no_object_templates_see_what_can_be_told(arguments: str, written: str) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": arguments}}
    message = {"role": "assistant", "content": "", "tool_calls": [call]}
    source = (
        "{% for key, value in messages[0].tool_calls[0].function.arguments.items() %}{{ key }}{{ value }}{% endfor %}"
    )
    pairs = json.loads(written)
    assert ChatTemplate(source, {}).render([message]) == "".join(f"{key}{value}" for key, value in pairs.items())


class FrozenDate(datetime):
    """The day on which the goldens were made."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> FrozenDate:
        return cls(2025, 7, 10)


def goldens() -> dict[str, dict[str, Any]]:
    """Published templates with input and output, by name; but Hammer2.1's, whose quoting is not Python's."""
    path = Path(__file__).parents[3].parent / "shared/templates/chat_template_goldens.json"
    if not path.exists():
        return {}
    groups = json.loads(path.read_text())
    cases = {name: case for group in groups.values() for name, case in group.items() if "data" in case}
    cases.pop("MadeAgents/Hammer2.1", None)
    return cases


@pytest.mark.skipif(not goldens(), reason="the published goldens are not here")
@pytest.mark.parametrize("name", goldens())
def test_published_templates_render_as_published(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.utils import chat_template_utils

    monkeypatch.setattr(chat_template_utils, "datetime", FrozenDate)
    case = goldens()[name]
    data = dict(case["data"])
    messages = data.pop("messages")
    tokens = {key: data.pop(key) for key in ("bos_token", "eos_token") if key in data}
    template = ChatTemplate(case["chat_template"], tokens)
    rendered = template.render(
        messages,
        tools=data.pop("tools", None),
        documents=data.pop("documents", None),
        add_generation_prompt=data.pop("add_generation_prompt", False),
        template_kwargs=data,
    )
    assert rendered == case["target"]


def with_parts(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    return message | {"content": [{"type": "text", "text": content}]} if isinstance(content, str) else message


@pytest.mark.skipif(not goldens(), reason="the published goldens are not here")
@pytest.mark.parametrize("name", goldens())
def test_published_templates_write_one_part_as_they_write_a_text(name: str) -> None:
    case = goldens()[name]
    data = dict(case["data"])
    messages = data.pop("messages")
    tokens = {key: data.pop(key) for key in ("bos_token", "eos_token") if key in data}
    template = ChatTemplate(case["chat_template"], tokens)
    tools, documents = data.pop("tools", None), data.pop("documents", None)
    data.pop("add_generation_prompt", None)
    of_text, of_parts = (
        template.render(given, tools=tools, documents=documents, template_kwargs=data)
        for given in (messages, [with_parts(message) for message in messages])
    )
    assert of_parts == of_text


def _called(content: str | list[dict[str, str]] | None, reasoning: str | None) -> list[dict[str, Any]]:
    call = {"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Köln"}'}}
    message: dict[str, Any] = {"role": "assistant", "content": content, "tool_calls": [call]}
    if reasoning is not None:
        message |= {"reasoning_content": reasoning, "reasoning": reasoning}
    return [USER, message, {"role": "tool", "tool_call_id": "a", "content": "Dry."}]


CHANNELS = pytest.mark.parametrize(
    "source", [pytest.param(source, id=name) for name, source in (ours() | published()).items() if name in GPT_OSS]
)


@CHANNELS
@pytest.mark.parametrize(
    ("content", "reasoning", "analysis"),
    [
        ("", "Hm.", "Hm."),
        (None, "Hm.", "Hm."),
        ("I look.", None, "I look."),
        ("I look.", "Hm.", "Hm.\nI look."),
        ([{"type": "text", "text": "I look."}], "Hm.", "Hm.\nI look."),
        ("", None, None),
    ],
)
def test_what_was_thought_and_said_before_a_call_is_shown_where_a_template_takes_one_of_them(
    source: str, content: str | None, reasoning: str | None, analysis: str | None
) -> None:
    thought = "" if analysis is None else f"<|start|>assistant<|channel|>analysis<|message|>{analysis}<|end|>"
    text = ChatTemplate(source, {}).render(_called(content, reasoning))
    assert text.endswith(
        f"<|start|>user<|message|>Hi<|end|>{thought}<|start|>assistant to=functions.get_weather<|channel|>commentary "
        'json<|message|>{"city": "Köln"}<|call|><|start|>functions.get_weather to=assistant<|channel|>commentary'
        '<|message|>"Dry."<|end|><|start|>assistant'
    )


@CHANNELS
def test_several_calls_are_each_in_a_message_where_a_template_shows_one(source: str) -> None:
    user, called, result = _called("I look.", "Hm.")
    time = {"id": "b", "type": "function", "function": {"name": "get_time", "arguments": "{}"}}
    called["tool_calls"].append(time)
    results = [{"role": "tool", "tool_call_id": "b", "content": "Noon."}, result]
    text = ChatTemplate(source, {}).render([user, called, *results, USER])
    assert text.endswith(
        "<|channel|>analysis<|message|>Hm.\nI look.<|end|>"
        '<|start|>assistant to=functions.get_weather<|channel|>commentary json<|message|>{"city": "Köln"}<|call|>'
        '<|start|>functions.get_weather to=assistant<|channel|>commentary<|message|>"Dry."<|end|>'
        "<|start|>assistant to=functions.get_time<|channel|>commentary json<|message|>{}<|call|>"
        '<|start|>functions.get_time to=assistant<|channel|>commentary<|message|>"Noon."<|end|>'
        "<|start|>user<|message|>Hi<|end|><|start|>assistant"
    )


@CHANNELS
def test_a_message_that_is_continued_keeps_what_was_thought_before_it(source: str) -> None:
    messages = [USER, {"role": "assistant", "content": "So", "reasoning_content": "Hm.", "reasoning": "Hm."}]
    text = ChatTemplate(source, {}).render(messages, add_generation_prompt=False, continue_final_message=True)
    assert text.endswith("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>So")


@CHANNELS
def test_a_function_needs_no_description(source: str) -> None:
    tool = {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}}}
    template = ChatTemplate(source, {})
    assert "// \ntype get_time = (" in template.render([USER], tools=[tool])
    assert tool["function"] == {"name": "get_time", "parameters": {"type": "object", "properties": {}}}
    assert '"description"' not in ChatTemplate("{{ tools | tojson }}", {}).render([USER], tools=[tool])


def test_thoughts_have_every_name_that_templates_ask_for() -> None:
    for name in ("reasoning_content", "reasoning", "thinking"):
        text = ChatTemplate(f"{{{{ messages[1].{name} }}}} {{{{ messages[1].content }}}}", {}).render(
            _called("I look.", "Hm.")
        )
        assert text == "Hm. I look."
