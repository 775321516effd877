"""What is wrong with a body is said in one sentence that names the field."""

from __future__ import annotations

import json
from typing import Any

import openai.types.chat as sdk
import pydantic
import pytest

from services.router.apis.openai.chat_completions import ChatCompletionRequest
from services.router.apis.openai.completions import CompletionRequest
from services.router.errors import ApiError
from services.router.http.reader import parse_body
from services.router.prompt.encoding import MAX_MESSAGES
from services.router.template.chat_template import text_of

USER = {"role": "user", "content": "Hello"}


def chat_error(**body: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        translate(json.dumps({"messages": [USER]} | body).encode())
    return caught.value


def translate(body: bytes) -> None:
    request = parse_body(body, ChatCompletionRequest)
    request.check(128)
    request.to_chat()


def tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def allowed(name: str) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [tool(name)]}}


def calling(name: str, arguments: str) -> dict[str, Any]:
    call = {"id": "1", "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "tool_calls": [call]}


def completion_error(**body: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse_body(json.dumps({"prompt": "Hello"} | body).encode(), CompletionRequest).check(128)
    return caught.value


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "EOF"),
        (b"hello", "expected value"),
        (b'{"messages": [}', "expected value"),
        (b'{"temperature": NaN}', "expected value"),
        (b'{"temperature": Infinity}', "expected value"),
        (b'{"a": "\\ud800"}', "hex escape"),
        (b'{"a": "\xff"}', "invalid unicode"),
        (b"[" * 100_000, "recursion limit"),
        (b'{"a":' * 100_000, "recursion limit"),
        (b'{"n": 1' + b"0" * 10_000 + b"}", "out of range"),
        (b"[]", "must be an object"),
        (b"null", "must be an object"),
        (b'"text"', "must be an object"),
    ],
)
def test_a_body_that_is_no_json_object_is_refused(body: bytes, words: str) -> None:
    with pytest.raises(ApiError) as caught:
        parse_body(body, ChatCompletionRequest)
    assert words in caught.value.message
    assert len(caught.value.message) < 300


@pytest.mark.parametrize(
    ("body", "param", "code", "words"),
    [
        ({"messages": None}, "messages", "invalid_type", "expected an array, but got null"),
        ({"messages": []}, "messages", "empty_array", "must not be empty"),
        ({"messages": "hi"}, "messages", "invalid_type", "expected an array, but got a string"),
        ({"messages": ["hi"]}, "messages[0]", "invalid_type", "expected an object, but got a string"),
        ({"messages": [USER, {"content": "x"}]}, "messages[1].role", "missing_required_parameter", "Missing"),
        ({"messages": [{"role": "", "content": "x"}]}, "messages[0].role", "empty_string", "empty"),
        ({"messages": [{"role": "x" * 65, "content": "x"}]}, "messages[0].role", "invalid_value", "64"),
        ({"messages": [{"role": 7, "content": "x"}]}, "messages[0].role", "invalid_type", "a string"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "missing_required_parameter", "Missing"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content", "invalid_type", "a string or an array"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages[0].content[0].type",
            "invalid_value",
            "'image_url'",
        ),
        ({"temperature": 9}, "temperature", "integer_above_max_value", "<= 2, but got 9"),
        ({"temperature": -0.1}, "temperature", "decimal_below_min_value", ">= 0, but got -0.1"),
        ({"temperature": "hot"}, "temperature", "invalid_type", "expected a decimal, but got a string"),
        ({"temperature": True}, "temperature", "invalid_type", "expected a decimal, but got a boolean"),
        ({"temperature": 1e999}, "temperature", None, ""),
        ({"top_p": -1}, "top_p", "integer_below_min_value", ">= 0, but got -1"),
        ({"n": 0}, "n", "integer_below_min_value", ">= 1, but got 0"),
        ({"n": 129}, "n", "integer_above_max_value", "<= 128, but got 129"),
        ({"n": 1.5}, "n", "invalid_type", "expected an integer, but got a decimal"),
        ({"max_tokens": -1}, "max_tokens", "integer_below_min_value", ">= 1, but got -1"),
        ({"max_tokens": "many"}, "max_tokens", "invalid_type", "expected an integer, but got a string"),
        ({"max_completion_tokens": 0}, "max_completion_tokens", "integer_below_min_value", ">= 1"),
        ({"stop": [""]}, "stop", None, "must not be empty"),
        ({"stop": ["x"] * 17}, "stop", None, "at most 16"),
        ({"stop": [1]}, "stop[0]", "invalid_type", "expected a string, but got an integer"),
        ({"stop": 1}, "stop", "invalid_type", "a string or an array of strings"),
        ({"stream": "yes"}, "stream", "invalid_type", "expected a boolean"),
        ({"stream_options": {"include_usage": True}}, "stream_options", None, "only allowed when 'stream'"),
        ({"presence_penalty": 2.5}, "presence_penalty", "decimal_above_max_value", "<= 2, but got 2.5"),
        ({"logit_bias": {"1": 101}}, "logit_bias.1", "integer_above_max_value", "<= 100"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs", "integer_above_max_value", "<= 20"),
        ({"top_logprobs": 2}, "top_logprobs", None, "needs 'logprobs'"),
        ({"seed": "x"}, "seed", "invalid_type", "expected an integer"),
        ({"model": 7}, "model", "invalid_type", "expected a string"),
        ({"tools": [{"type": "function"}]}, "tools[0].function", "missing_required_parameter", "Missing"),
        ({"tools": [{"type": "custom", "custom": {}}]}, "tools[0].type", "invalid_value", "'custom'"),
        ({"tools": [tool("a b")]}, "tools[0].function.name", "invalid_value", "pattern"),
        ({"tools": [tool("a" * 65)]}, "tools[0].function.name", "invalid_value", "64"),
        ({"tools": [tool(f"f{i}") for i in range(129)]}, "tools", "array_above_max_length", "at most 128"),
        (
            {"metadata": {str(i): "" for i in range(17)}},
            "metadata",
            "object_above_max_length",
            "object too long. Expected at most 16 fields, but got 17",
        ),
        ({"tool_choice": "any"}, "tool_choice", "invalid_value", "'any'"),
        ({"tool_choice": 7}, "tool_choice", "invalid_type", "a string or an object"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.function", "missing_required_parameter", "Missing"),
        ({"tools": [tool("f")], "tool_choice": allowed("g")}, "tool_choice", "invalid_value", "no tool named 'g'"),
        (
            {"functions": [{"name": "f"}], "tools": [{"type": "function", "function": {"name": "f"}}]},
            "functions",
            None,
            "older form of 'tools'",
        ),
        ({"functions": [{"name": "?"}]}, "functions[0].name", "invalid_value", "pattern"),
        ({"function_call": {"name": "f"}}, "function_call", "invalid_value", "no function named 'f'"),
        ({"function_call": "required"}, "function_call", "invalid_value", "'none' or 'auto'"),
        (
            {"messages": [USER, {"role": "function", "name": "f", "content": "x"}]},
            "messages[1].name",
            "invalid_value",
            "calls this function",
        ),
        ({"prompt_logprobs": -1}, "prompt_logprobs", "integer_below_min_value", "whole vocabulary"),
        ({"reasoning_effort": "huge"}, "reasoning_effort", "invalid_value", "'huge'"),
        (
            {"messages": [{"role": "user", "content": [{"type": "thinking", "thinking": "Hm."}]}]},
            "messages[0].content[0].type",
            "invalid_value",
            "Only an assistant's",
        ),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message", None, "exclude"),
        (
            {"messages": [USER, {"role": "assistant", "content": "", "function_call": {"name": "f"}}]},
            "messages[1].function_call.arguments",
            "missing_required_parameter",
            "Missing",
        ),
        (
            {"messages": [USER, calling("f", "{}"), {"role": "tool", "content": "x"}]},
            "messages[2].tool_call_id",
            "missing_required_parameter",
            "Missing",
        ),
        (
            {"messages": [USER, calling("f", "{}"), {"role": "tool", "tool_call_id": "2", "content": "x"}]},
            "messages[2].tool_call_id",
            "invalid_value",
            "no earlier message",
        ),
        ({"response_format": {"type": "xml"}}, "response_format.type", "invalid_value", "'json_schema'"),
        ({"guided_json": 3}, "guided_json", "invalid_type", "a JSON schema"),
        ({"guided_choice": []}, "guided_choice", "empty_array", "must not be empty"),
        ({"guided_choice": ["a", 1]}, "guided_choice[1]", "invalid_type", "a string"),
        ({"structured_outputs": {"regex": 1}}, "structured_outputs.regex", "invalid_type", "a string"),
        ({"logprob_token_ids": [1]}, "logprob_token_ids", None, "needs 'logprobs'"),
        ({"logprob_token_ids": [], "logprobs": True}, "logprob_token_ids", "empty_array", "empty"),
        ({"logprob_token_ids": [1] * 21, "logprobs": True}, "logprob_token_ids", None, "21"),
        ({"min_tokens": -1}, "min_tokens", "integer_below_min_value", ">= 0"),
        ({"bad_words": "word"}, "bad_words", "invalid_type", "an array"),
    ],
)
def test_a_bad_field_of_a_chat_is_named(body: dict[str, Any], param: str, code: str | None, words: str) -> None:
    if body.get("temperature") == float("inf"):
        with pytest.raises(ApiError) as caught:
            parse_body(b'{"messages": [{"role": "user", "content": "x"}], "temperature": 1e999}', ChatCompletionRequest)
        error = caught.value
    else:
        error = chat_error(**body)
    assert error.param == param
    assert param in error.message or "stream_options" in error.message
    assert words in error.message
    if code is not None:
        assert error.code == code


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"prompt": []}, "prompt", "must not be empty"),
        ({"prompt": {"text": "x"}}, "prompt", "a string, an array of strings"),
        ({"prompt": [1, "x"]}, "prompt[1]", "expected an integer, but got a string"),
        ({"prompt": ["x", 1]}, "prompt[1]", "expected a string, but got an integer"),
        ({"prompt": [[1], ["x"]]}, "prompt[1][0]", "expected an integer, but got a string"),
        ({"prompt": ["x"] * 1000, "n": 2}, "prompt", "2000 answers"),
        ({"best_of": 2, "n": 3}, "best_of", "at least 'n', which is 3, but got 2"),
        ({"best_of": 3, "stream": True}, "best_of", "not available when 'stream'"),
        ({"best_of": 21}, "best_of", "<= 20"),
        ({"prompt": ["x"] * 1000, "best_of": 2}, "prompt", "2000 answers"),
        ({"suffix": "end"}, "suffix", "not supported"),
        ({"max_tokens": -1}, "max_tokens", ">= 0"),
        ({"logprobs": 21}, "logprobs", "<= 20"),
    ],
)
def test_a_bad_field_of_a_completion_is_named(body: dict[str, Any], param: str, words: str) -> None:
    error = completion_error(**body)
    assert error.param == param
    assert words in error.message


def test_a_huge_value_is_not_echoed_whole() -> None:
    error = chat_error(messages=[{"role": "x" * 10_000, "content": "x"}])
    assert len(error.message) < 400


def test_an_integer_may_be_written_with_a_point() -> None:
    chat = {"messages": [USER], "max_tokens": 5.0, "n": 2.0, "stop_token_ids": [1.0, 2], "temperature": 1.0, "top_k": 3}
    request = parse_body(json.dumps(chat).encode(), ChatCompletionRequest)
    assert (request.max_tokens, request.n, request.stop_token_ids) == (5, 2, [1, 2])
    assert all(type(number) is int for number in (request.max_tokens, request.n, *(request.stop_token_ids or ())))
    for prompt, expected in (([1.0, 2.0], [1, 2]), ([[1, 2.0], [3.0]], [[1, 2], [3]])):
        body = parse_body(json.dumps({"prompt": prompt, "logprobs": 1e0}).encode(), CompletionRequest)
        assert body.prompt == expected
    # What is data stays as it is.
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"multipleOf": 1.0}}}]
    request = parse_body(json.dumps({"messages": [USER], "n": 1.0, "tools": tools}).encode(), ChatCompletionRequest)
    assert type(request.tools[0].function.parameters["multipleOf"]) is float  # type: ignore[index]


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"prompt": "x", "max_tokens": 1.5}, "max_tokens", "expected an integer, but got a decimal"),
        ({"prompt": [1.0, 1.5]}, "prompt[1]", "expected an integer, but got a decimal"),
        ({"prompt": "x", "max_tokens": -1.0}, "max_tokens", ">= 0, but got -1"),
        ({"prompt": "x", "n": 1e300}, "n", "<= 128"),
        ({"prompt": "x", "stop": [1.0]}, "stop[0]", "expected a string"),
    ],
)
def test_other_decimals_are_no_integers(body: dict[str, Any], param: str, words: str) -> None:
    with pytest.raises(ApiError) as caught:
        parse_body(json.dumps(body).encode(), CompletionRequest)
    assert caught.value.param == param
    assert words in caught.value.message


def test_a_long_list_of_faults_is_not_gone_through() -> None:
    faults = {"prompt": [1.5] * 1000, "logit_bias": {str(i): "x" for i in range(1000)}, "stop": [1] * 1000}
    with pytest.raises(pydantic.ValidationError) as caught:
        CompletionRequest.model_validate(faults)
    assert caught.value.error_count() == len(faults)
    with pytest.raises(pydantic.ValidationError) as caught:
        ChatCompletionRequest.model_validate({"messages": [{"role": "user", "content": [{}] * 1000}] * 1000})
    assert caught.value.error_count() <= 2


def test_null_means_absent_and_fields_asking_for_nothing_pass() -> None:
    body = {
        "messages": [USER],
        "temperature": None,
        "n": None,
        "stop": None,
        "tools": None,
        "tool_choice": "none",
        "response_format": {"type": "text"},
        "user": "someone",
        "metadata": {"a": "b"},
        "add_generation_prompt": None,
        "continue_final_message": None,
        "brand_new_field": 1,
    }
    request = parse_body(json.dumps(body).encode(), ChatCompletionRequest)
    request.check(128)
    assert request.num_ignored_fields == 1
    assert request.adds_generation_prompt
    assert not request.to_chat().continue_final_message


def test_an_assistant_s_earlier_message_may_hold_whatever_a_model_wrote() -> None:
    thought: dict[str, Any] = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}], "closed": True}
    messages: list[dict[str, Any]] = [
        {"role": "assistant", "content": None, "reasoning_content": "Hm."},
        {"role": "assistant"},
        {"role": "assistant", "content": [thought, {"type": "text", "text": "Hi"}]},
        {"role": "assistant", "content": [thought | {"thinking": "Hm."}]},
        calling("a.b", '{"cut'),
    ]
    request = parse_body(json.dumps({"messages": messages}).encode(), ChatCompletionRequest)
    request.check(128)
    written = request.to_chat().messages
    assert [text_of(message) for message in written] == ["", "", "Hi", "", ""]
    assert [message.get("reasoning") for message in written] == ["Hm.", None, "Hm.", "Hm.", None]
    assert written[4]["tool_calls"] == messages[4]["tool_calls"]


@pytest.mark.parametrize("choice", [tool("f"), allowed("f")])
def test_a_function_s_type_may_be_left_out(choice: dict[str, Any]) -> None:
    """As in vLLM. Hugging Face's client names a tool without it."""
    body = {"messages": [USER, calling("f", "{}")], "tools": [tool("f")], "tool_choice": choice}
    text = json.dumps(body)
    chat, chat_without = (
        parse_body(given.encode(), ChatCompletionRequest).to_chat()
        for given in (text, text.replace('"type": "function", ', ""))
    )
    assert '"type": "function", ' in text
    assert chat_without == chat


def test_a_refusal_is_part_of_the_text() -> None:
    contents: list[Any] = [None, "", "Well.", [{"type": "text", "text": "Well."}]]
    messages = [{"role": "assistant", "content": content, "refusal": "No."} for content in contents]
    request = parse_body(json.dumps({"messages": messages}).encode(), ChatCompletionRequest)
    assert [text_of(message) for message in request.to_chat().messages] == ["No.", "No.", "Well.\nNo.", "Well.\nNo."]


@pytest.mark.parametrize(
    ("body", "count"),
    [
        ({"messages": [{**USER, "foo": 1}, USER, {**USER, "bar": 1, "baz": 1}]}, 3),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "foo": 1}]}]}, 1),
        ({"tools": [{**tool("f"), "foo": 1}], "tool_choice": {**tool("f"), "bar": 1}}, 2),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "foo": 1}}, "bar": 1}, 2),
        ({"structured_outputs": {"regex": "a", "disable_fallback": True, "foo": 1}}, 1),
        ({"stream": True, "stream_options": {"include_obfuscation": False, "foo": 1}}, 1),
        # Data, whose fields are its own.
        ({"metadata": {"foo": "1"}, "chat_template_kwargs": {"foo": 1}, "guided_json": {"foo": 1}}, 0),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"foo": 1}}}]}, 0),
    ],
)
def test_fields_that_nobody_knows_are_counted_wherever_they_are(body: dict[str, Any], count: int) -> None:
    request = parse_body(json.dumps({"messages": [USER], **body}).encode(), ChatCompletionRequest)
    request.check(128)
    assert request.num_ignored_fields == count


def test_an_answer_that_comes_back_in_has_no_unknown_fields() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = sdk.ChatCompletionMessage.model_validate({"role": "assistant", "content": "x", "tool_calls": [call]})
    body = {"messages": [USER, message.model_dump() | {"reasoning_content": "Hm."}]}
    assert parse_body(json.dumps(body).encode(), ChatCompletionRequest).num_ignored_fields == 0


def test_parts_of_text_and_tool_calls_reach_the_template() -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "2", "tool_call_id": "call_1"},
    ]
    request = parse_body(json.dumps({"messages": messages}).encode(), ChatCompletionRequest)
    request.check(128)
    first, second, third = (message.to_template() for message in request.messages)
    assert first == {"role": "user", "content": messages[0]["content"]}
    assert text_of(first) == "one\ntwo"
    assert second["tool_calls"] == [call]
    assert third["tool_call_id"] == "call_1"


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [("a", ["a"]), (["a", "b"], ["a", "b"]), ([1, 2], [[1, 2]]), ([[1], [2, 3]], [[1], [2, 3]]), ("", [""])],
)
def test_prompts_come_in_four_shapes(prompt: Any, prompts: list[Any]) -> None:
    request = parse_body(json.dumps({"prompt": prompt}).encode(), CompletionRequest)
    assert (request.texts or request.token_prompts) == prompts
    assert not (request.texts and request.token_prompts)


def test_a_chat_of_too_many_messages_is_refused() -> None:
    body = {"messages": [{"role": "user", "content": "x"}] * (MAX_MESSAGES + 1)}
    with pytest.raises(ApiError) as caught:
        parse_body(json.dumps(body).encode(), ChatCompletionRequest)
    assert (caught.value.param, caught.value.code) == ("messages", "array_above_max_length")
    assert str(MAX_MESSAGES) in caught.value.message
