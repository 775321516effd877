"""Builds the typed API's requests from Python arguments."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict

from quire.client.tools import Tool, tool_choice_to_proto, tools_to_proto
from quire.inference.v1 import constraints_pb2, inference_pb2, pooling_pb2, sampling_pb2


class Options(TypedDict, total=False):
    """Generation options, all optional. Their meanings and ranges are documented at GenerationOptions in
    quire/inference/v1/inference.proto and in sampling.proto beside it."""

    max_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    # Value to add to each token's logit, by token id.
    logit_bias: Mapping[int, float]
    seed: int
    logprobs: int
    prompt_logprobs: int
    # With logprobs: ids of the tokens whose log probabilities are returned. They replace the most likely tokens.
    logprob_token_ids: Sequence[int]
    # Stop strings; the first one found ends the output.
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    min_tokens: int
    # The structure of the output; set at most one of the next five fields. json_schema: an object or a JSON string.
    # json_object: True for any JSON object. regex: a regular expression for the whole output. choices: the allowed
    # outputs. grammar: in Lark or GBNF notation.
    json_schema: Mapping[str, Any] | str
    json_object: bool
    regex: str
    choices: Sequence[str]
    grammar: str
    # Ids of the only tokens that may be sampled.
    allowed_token_ids: Sequence[int]
    # Strings that the output must not contain.
    bad_words: Sequence[str]
    n: int
    skip_special_tokens: bool
    # Whether the text includes the stop string or stop token that ended it.
    include_stop_str_in_output: bool
    # Maximum number of prompt tokens. -1: as many as leave room for the answer.
    truncate_prompt_tokens: int
    # Side on which long prompts are cut: left or right.
    truncation_side: str
    add_special_tokens: bool
    # Whether to return the prompt's token ids.
    return_prompt_token_ids: bool
    prompt_cache_key: str
    cache_salt: str
    priority: int
    tenant: str


_SIDES = {"left": inference_pb2.TRUNCATION_SIDE_LEFT, "right": inference_pb2.TRUNCATION_SIDE_RIGHT}
_SAMPLING = tuple(
    field.name
    for field in sampling_pb2.SamplingParams.DESCRIPTOR.fields
    if field.name in Options.__annotations__ and field.name != "logit_bias"
)


class TemplateOptions(TypedDict, total=False):
    """Tools and chat template options of a conversation. Their meanings are documented at ChatRequest and
    TemplateOptions in quire/inference/v1/inference.proto."""

    tools: Sequence[Tool]
    # auto, none, required, or the name of the function to call.
    tool_choice: str
    # Whether one answer can contain several tool calls.
    parallel_tool_calls: bool
    add_generation_prompt: bool
    continue_final_message: bool
    chat_template: str
    chat_template_kwargs: Mapping[str, Any]
    documents: Sequence[Mapping[str, Any]]
    reasoning_effort: str


class ChatOptions(Options, TemplateOptions, total=False):
    """Options of chat requests."""


class ScoreOptions(TypedDict, total=False):
    """Options of score requests, all optional. Their meanings are documented at ScoreRequest in inference.proto."""

    truncate_prompt_tokens: int
    add_special_tokens: bool
    cache_salt: str
    priority: int
    tenant: str


class EmbedOptions(ScoreOptions, total=False):
    """Options of embedding requests, all optional. Their meanings are documented at EmbedRequest in inference.proto."""

    dimensions: int
    normalize: bool
    # Whether to return each input's token ids.
    return_prompt_token_ids: bool
    # Purpose of texts, which decides what prompt of the model is put in front of them. Default: the model's own.
    input_type: str


# Messages of a conversation. Each has `role`, `content` and optionally `name`. An assistant message can also have
# `reasoning` and `tool_calls`, as in a Result. A tool message has the `tool_call_id` of the call that it answers.
Messages = Iterable[Mapping[str, Any]]


def generate_request(
    model: str, prompt: str | Sequence[int], options: Options, *, whole: bool = False
) -> inference_pb2.GenerateRequest:
    """Builds a GenerateRequest. `prompt`: text or token ids. `whole`: whether the server sends each choice as one
    message."""
    request = inference_pb2.GenerateRequest(model=model, options=options_to_proto(options), whole=whole)
    if isinstance(prompt, str):
        request.text = prompt
    else:
        request.token_ids.ids.extend(prompt)
        request.token_ids.SetInParent()
    return request


def chat_request(model: str, messages: Messages, options: ChatOptions) -> inference_pb2.ChatRequest:
    of_template = {name: value for name, value in options.items() if name in TemplateOptions.__annotations__}
    return inference_pb2.ChatRequest(
        model=model,
        messages=messages_to_proto(messages),
        options=options_to_proto({name: value for name, value in options.items() if name not in of_template}),
        **_template_to_proto(of_template),
    )


def _template_to_proto(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields that ChatRequest and ChatMessages share. Raises TypeError for an unknown option."""
    _check_names(options, TemplateOptions)
    kwargs = options.get("chat_template_kwargs")
    return {
        "tools": tools_to_proto(options.get("tools") or ()),
        "tool_choice": tool_choice_to_proto(options.get("tool_choice"), options.get("parallel_tool_calls")),
        "template": inference_pb2.TemplateOptions(
            add_generation_prompt=options.get("add_generation_prompt"),
            continue_final_message=options.get("continue_final_message", False),
            chat_template=options.get("chat_template") or "",
            chat_template_kwargs="" if kwargs is None else json.dumps(kwargs),
            documents=[json.dumps(document) for document in options.get("documents") or ()],
            reasoning_effort=options.get("reasoning_effort") or "",
        ),
    }


def embed_request(
    model: str, inputs: Sequence[str] | Sequence[Sequence[int]], options: EmbedOptions
) -> inference_pb2.EmbedRequest:
    """Builds an EmbedRequest. `inputs`: texts, or a list of token ids per input. Raises TypeError for an unknown
    option."""
    _check_names(options, EmbedOptions)
    request = inference_pb2.EmbedRequest(
        model=model,
        pooling=pooling_pb2.PoolingParams(dimensions=options.get("dimensions"), normalize=options.get("normalize")),
        return_prompt_token_ids=options.get("return_prompt_token_ids", False),
        input_type=options.get("input_type"),
        **_input_options(options),
    )
    for given in inputs:
        if isinstance(given, str):
            request.inputs.add(text=given)
        else:
            request.inputs.add(token_ids=inference_pb2.TokenIds(ids=given))
    return request


def score_request(
    model: str, text_1: str | Sequence[str], text_2: str | Sequence[str], options: ScoreOptions
) -> inference_pb2.ScoreRequest:
    """Builds a ScoreRequest. Raises TypeError for an unknown option."""
    _check_names(options, ScoreOptions)
    return inference_pb2.ScoreRequest(
        model=model,
        text_1=[text_1] if isinstance(text_1, str) else text_1,
        text_2=[text_2] if isinstance(text_2, str) else text_2,
        **_input_options(options),
    )


def _input_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields that EmbedRequest and ScoreRequest share."""
    return {name: options.get(name) for name in ScoreOptions.__annotations__}


def tokenize_request(
    model: str, text: str | Messages, add_special_tokens: bool | None, options: TemplateOptions
) -> inference_pb2.TokenizeRequest:
    """Builds a TokenizeRequest. Raises TypeError for template options if `text` is not a conversation."""
    request = inference_pb2.TokenizeRequest(model=model, add_special_tokens=add_special_tokens)
    if not isinstance(text, str):
        messages = messages_to_proto(text)
        request.chat.CopyFrom(inference_pb2.ChatMessages(messages=messages, **_template_to_proto(options)))
    elif options:
        raise TypeError(f"{min(options)!r} is for conversations only")
    else:
        request.text = text
    return request


def messages_to_proto(messages: Messages) -> list[inference_pb2.ChatMessage]:
    return [
        inference_pb2.ChatMessage(
            role=message["role"],
            content=message.get("content") or "",
            reasoning=message.get("reasoning") or "",
            tool_calls=[
                inference_pb2.ToolCall(id=call.id, name=call.name, arguments=call.arguments)
                for call in message.get("tool_calls") or ()
            ],
            tool_call_id=message.get("tool_call_id") or "",
            name=message.get("name") or "",
        )
        for message in messages
    ]


def options_to_proto(options: Mapping[str, Any]) -> inference_pb2.GenerationOptions:
    """Converts generation options to the message GenerationOptions. Raises TypeError for an unknown option."""
    _check_names(options, Options)
    values: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    sampling = sampling_pb2.SamplingParams(**{name: values[name] for name in _SAMPLING if name in values})
    for token_id, bias in values.get("logit_bias", {}).items():
        sampling.logit_bias.add(token_id=token_id, bias=bias)
    stop = sampling_pb2.StopConditions(
        max_tokens=values.get("max_tokens"),
        stop_token_ids=values.get("stop_token_ids", ()),
        ignore_eos=values.get("ignore_eos", False),
        min_tokens=values.get("min_tokens", 0),
    )
    strings = values.get("stop", ())
    return inference_pb2.GenerationOptions(
        sampling=sampling,
        stop=stop,
        stop_strings=[strings] if isinstance(strings, str) else strings,
        n=values.get("n"),
        skip_special_tokens=values.get("skip_special_tokens"),
        include_stop_str_in_output=values.get("include_stop_str_in_output", False),
        truncate_prompt_tokens=values.get("truncate_prompt_tokens"),
        truncation_side=_side_to_proto(values.get("truncation_side", "left")),
        add_special_tokens=values.get("add_special_tokens"),
        return_prompt_token_ids=values.get("return_prompt_token_ids", False),
        prompt_cache_key=values.get("prompt_cache_key", ""),
        cache_salt=values.get("cache_salt", ""),
        priority=values.get("priority", 0),
        tenant=values.get("tenant", ""),
        structure=_structure_to_proto(values),
        allowed_token_ids=values.get("allowed_token_ids", ()),
        bad_words=values.get("bad_words", ()),
    )


def _check_names(options: Mapping[str, Any], known: type) -> None:
    if unknown := options.keys() - known.__annotations__.keys():
        raise TypeError(f"there is no option {min(unknown)!r}")


def _side_to_proto(side: str) -> inference_pb2.TruncationSide.ValueType:
    if side not in _SIDES:
        raise ValueError("use left or right")
    return _SIDES[side]


def _structure_to_proto(values: Mapping[str, Any]) -> constraints_pb2.Structure | None:
    """Returns the output's structure, or None. Raises TypeError if the options set more than one."""
    kinds = ("json_schema", "json_object", "regex", "choices", "grammar")
    given = [kind for kind in kinds if values.get(kind) not in (None, False)]
    if len(given) > 1:
        raise TypeError(f"{given[0]!r} and {given[1]!r} exclude each other")
    if not given:
        return None
    value = values[given[0]]
    match given[0]:
        case "json_schema":
            return constraints_pb2.Structure(json_schema=value if isinstance(value, str) else json.dumps(value))
        case "json_object":
            return constraints_pb2.Structure(json_object=constraints_pb2.JsonObject())
        case "choices":
            return constraints_pb2.Structure(choices=constraints_pb2.Choices(texts=value))
        case name:
            return constraints_pb2.Structure(**{name: value})
