"""From a request's body to the constraints that the scheduler gets, and what is refused on the way."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import grpc
import pytest

from quire.client.options import options_to_proto
from quire.inference.v1 import constraints_pb2, inference_pb2, inference_pb2_grpc
from services.router.columns import ids_from_bytes
from tests.integration.router.conftest import MODEL, Api, StartRouter, answer_text, error_reply, fake_scheduler
from tests.integration.router.fake_scheduler import Answer
from tests.integration.router.small_tokenizers import EOS_TOKEN_ID, byte_level

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}


async def constraints_of(
    start_router: StartRouter, method: str = "chat", **body: Any
) -> constraints_pb2.TokenConstraints:
    scheduler = fake_scheduler()
    api: Api = await start_router(scheduler)
    await getattr(api, method)(**body)
    (submit,) = scheduler.submits
    return submit.constraints


@pytest.mark.parametrize("method", ["chat", "complete"])
async def test_a_structure_reaches_the_scheduler_as_a_grammar(start_router: StartRouter, method: str) -> None:
    body = {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}}
    constraints = await constraints_of(start_router, method, **body)
    (grammar,) = json.loads(constraints.grammar)["grammars"]
    assert grammar["json_schema"]["required"] == ["a"]


async def test_min_tokens_bad_words_and_allowed_tokens_reach_it_as_tokens(start_router: StartRouter) -> None:
    constraints = await constraints_of(
        start_router, min_tokens=3, stop_token_ids=[9], bad_words=["fox", " the"], allowed_token_ids=[7, 5, 7, 2]
    )
    assert constraints.min_tokens == 3
    assert ids_from_bytes(constraints.end_token_ids) == [EOS_TOKEN_ID, 9]
    assert ids_from_bytes(constraints.allowed_token_ids) == [2, 5, 7]
    ids, offsets = ids_from_bytes(constraints.bad_word_token_ids), ids_from_bytes(constraints.bad_word_offsets)
    words = [byte_level().decode(ids[start:end]) for start, end in pairwise(offsets)]
    assert {word.strip() for word in words} == {"fox", "the"}
    assert words.count("the") == 1


async def test_without_max_tokens_min_tokens_is_at_most_the_room_in_the_context(start_router: StartRouter) -> None:
    scheduler = fake_scheduler()
    await (await start_router(scheduler)).chat(min_tokens=1_000_000)
    (submit,) = scheduler.submits
    assert submit.constraints.min_tokens == submit.stop.min_tokens == submit.stop.max_tokens


async def test_an_end_token_that_is_to_be_ignored_is_none_that_min_tokens_is_about(start_router: StartRouter) -> None:
    constraints = await constraints_of(start_router, min_tokens=3, stop_token_ids=[9], ignore_eos=True)
    assert ids_from_bytes(constraints.end_token_ids) == [9]


async def test_a_request_without_wishes_has_no_constraints(start_router: StartRouter) -> None:
    scheduler = fake_scheduler()
    await (await start_router(scheduler)).chat(response_format={"type": "text"}, min_tokens=0, bad_words=[])
    assert not scheduler.submits[0].HasField("constraints")


async def test_a_complete_structure_ends_whatever_ignore_eos_says(start_router: StartRouter) -> None:
    scheduler = fake_scheduler(answer_text("yes"))
    reply = await (await start_router(scheduler)).chat(guided_choice=["yes", "no"], ignore_eos=True)
    assert not scheduler.submits[0].stop.ignore_eos
    assert reply.json["choices"][0]["message"]["content"] == "yes"
    assert reply.json["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(("min_tokens", "text"), [(0, ""), (5, "abab"), (99, "ab" * 6)])
async def test_a_stop_string_before_min_tokens_ends_nothing(
    start_router: StartRouter, min_tokens: int, text: str
) -> None:
    """Each letter is a token of its own; a stop string counts if it is complete after min_tokens."""
    a, b = byte_level().encode("a").ids[0], byte_level().encode("b").ids[0]
    ids = [a, b] * 6
    scheduler = fake_scheduler(lambda submit, choice: Answer([*ids, EOS_TOKEN_ID]))
    reply = await (await start_router(scheduler)).complete(stop="ab", min_tokens=min_tokens, max_tokens=100)
    assert reply.json["choices"][0]["text"] == text


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "Missing required"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"not": {"pattern": "x"}}},
                }
            },
            "response_format.json_schema.schema",
            "not",
        ),
        ({"guided_regex": "("}, "guided_regex", "unclosed group"),
        ({"guided_json": "{"}, "guided_json", "not JSON"),
        ({"structured_outputs": {"grammar": "start: x"}}, "structured_outputs.grammar", "x"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag", "not supported"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice", "exclude each other"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens", "the output limit of 8"),
        ({"allowed_token_ids": []}, "allowed_token_ids", "must not be empty"),
        ({"allowed_token_ids": [10**6]}, "allowed_token_ids", "out of range"),
        ({"allowed_token_ids": [-1]}, "allowed_token_ids", "out of range"),
        ({"bad_words": [" "]}, "bad_words", "not only spaces"),
        ({"bad_words": ["x"] * 1025}, "bad_words", "at most 1024"),
        ({"bad_words": ["x" * 513]}, "bad_words", "1 to 512"),
        ({"bad_words": ["x" * 512] * 513}, "bad_words", "at most 262144"),
    ],
)
async def test_what_cannot_be_done_is_refused_and_named(
    start_router: StartRouter, body: dict[str, Any], param: str, words: str
) -> None:
    scheduler = fake_scheduler()
    api = await start_router(scheduler)
    refused = await api.refused("CreateChatCompletion", {"messages": [{"role": "user", "content": "x"}], **body})
    assert refused.status is grpc.StatusCode.INVALID_ARGUMENT
    assert refused.error["param"] == param
    assert words in refused.error["message"]
    assert scheduler.submits == []


@pytest.mark.parametrize(
    ("method", "body", "param"),
    [
        ("CreateCompletion", {"prompt": [[7]] * 1024, "bad_words": ["x" * 512] * 8}, "bad_words"),
        ("CreateCompletion", {"prompt": ["a"] * 1024, "guided_regex": "a" * 20_000}, "guided_regex"),
        (
            "CreateChatCompletionBatch",
            {"messages": [[{"role": "user", "content": "x"}]] * 256, "bad_words": ["x" * 512] * 32},
            "bad_words",
        ),
    ],
)
async def test_constraints_are_bounded_with_the_prompts_that_they_go_with(
    start_router: StartRouter, method: str, body: dict[str, Any], param: str
) -> None:
    scheduler = fake_scheduler()
    api = await start_router(scheduler)
    refused = await api.refused(method, {"model": MODEL, "max_tokens": 1, **body})
    assert refused.status is grpc.StatusCode.INVALID_ARGUMENT
    assert refused.error["param"] == param
    assert "16777216 are allowed" in refused.error["message"]
    assert scheduler.submits == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"json_schema": SCHEMA}, '"required": ["a"]'),
        ({"json_schema": json.dumps(SCHEMA)}, '"required": ["a"]'),
        ({"json_object": True}, '"type": "object"'),
        ({"regex": "a+"}, "a+"),
        ({"choices": ["a", "b"]}, "a|b"),
        ({"grammar": 'start: "a"'}, 'start: "a"'),
    ],
)
async def test_the_typed_api_and_its_client_have_them_too(
    start_router: StartRouter, options: dict[str, Any], words: str
) -> None:
    scheduler = fake_scheduler()
    api = await start_router(scheduler)
    wishes = {"min_tokens": 2, "bad_words": ["fox"], "allowed_token_ids": [4]}
    request = inference_pb2.GenerateRequest(text="x", options=options_to_proto({**options, **wishes}))
    stub: Any = inference_pb2_grpc.InferenceServiceStub(api.channel)
    _ = [response async for response in stub.Generate(request)]
    constraints = scheduler.submits[0].constraints
    assert words in constraints.grammar.replace(":[", ": [").replace('":"', '": "')
    assert (constraints.min_tokens, ids_from_bytes(constraints.allowed_token_ids)) == (2, [4])
    assert constraints.bad_word_token_ids


async def test_the_typed_api_names_its_fields(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler())
    stub: Any = inference_pb2_grpc.InferenceServiceStub(api.channel)
    for structure, param in (
        (constraints_pb2.Structure(regex="("), "options.structure.regex"),
        (constraints_pb2.Structure(choices=constraints_pb2.Choices()), "options.structure.choices.texts"),
    ):
        options = inference_pb2.GenerationOptions(structure=structure)
        call = stub.Generate(inference_pb2.GenerateRequest(text="x", options=options))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await anext(aiter(call))
        assert error_reply(caught.value).error["param"] == param


def test_the_client_takes_one_structure() -> None:
    with pytest.raises(TypeError, match="exclude each other"):
        options_to_proto({"regex": "a", "grammar": "b"})
