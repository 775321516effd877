"""The parameters of chats and completions beyond the plain ones: OpenAI's own, and those that vLLM's clients send."""

from __future__ import annotations

import asyncio
import math
import struct
from collections.abc import Sequence
from typing import Any

import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion

from quire.inference.v1 import sampling_pb2
from services.router.template import foreign as foreign_templates
from shared.version import version
from tests.integration.router import fake_scheduler as fakes
from tests.integration.router.conftest import GREETING, StartRouter, answer_text, fake_scheduler
from tests.integration.router.fake_scheduler import Answer, FakeScheduler, prompt_frames, unpack
from tests.integration.router.small_tokenizers import EOS_TOKEN_ID, byte_level

HELLO = byte_level().encode("Hello, world!").ids
# What the fake scheduler says of these as prompt tokens.
HELLO_LOGPROBS = [None, *(pytest.approx(-token_id / 100) for token_id in HELLO[1:])]


def prompts(scheduler: FakeScheduler) -> list[list[int]]:
    return [unpack(submit.prompt_token_ids) for submit in scheduler.submits]


# Log probabilities of prompts.


async def test_echo_with_logprobs_tells_the_prompt_s_first(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler(answer_text(" one")))
    body = {"prompt": "Hello, world!", "echo": True, "logprobs": 2, "max_tokens": 9}
    # Not by validation: the SDK's types know no null, which OpenAI's servers send as the first token's.
    (choice,) = Completion.construct(**(await api.complete(**body)).json).choices
    logprobs = choice.logprobs
    assert logprobs is not None
    assert choice.text == "Hello, world! one"
    assert logprobs.tokens is not None
    assert "".join(logprobs.tokens[: len(HELLO)]) == "Hello, world!"
    assert logprobs.token_logprobs is not None
    assert logprobs.token_logprobs[: len(HELLO)] == HELLO_LOGPROBS
    assert logprobs.token_logprobs[len(HELLO) :] == [-0.5] * (len(logprobs.tokens) - len(HELLO))
    assert logprobs.text_offset is not None
    places = zip(logprobs.text_offset, logprobs.tokens, strict=True)
    is_there = [choice.text[offset:].startswith(token) for offset, token in places]
    assert is_there == [True] * (len(is_there) - 1) + [False], "the end token is no text"
    assert logprobs.top_logprobs is not None
    assert logprobs.top_logprobs[0] is None
    assert len(logprobs.top_logprobs[1]) == 2 + 1
    assert choice.model_dump()["prompt_logprobs"] is None


async def test_streams_say_the_same_of_the_prompt_as_whole_answers(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler(answer_text(" one two")))
    body = {"prompt": ["Hello, world!", "Hi"], "n": 2, "echo": True, "logprobs": 1, "max_tokens": 9}
    whole = [choice["logprobs"] for choice in (await api.complete(**body)).json["choices"]]
    streamed: list[dict[str, list[Any]]] = [{} for _ in whole]
    for event in (await api.complete(stream=True, **body)).events:
        for choice in event["choices"]:
            for name, column in choice["logprobs"].items():
                streamed[choice["index"]].setdefault(name, []).extend(column)
    assert streamed == whole


async def test_no_token_but_the_prompt_s(start_router: StartRouter) -> None:
    scheduler = fake_scheduler()
    api = await start_router(scheduler)
    body = {"prompt": "Hello, world!", "echo": True, "logprobs": 0, "max_tokens": 0}
    answer = (await api.complete(**body)).json
    (choice,) = answer["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("Hello, world!", "length")
    assert choice["logprobs"]["token_logprobs"] == HELLO_LOGPROBS
    assert answer["usage"]["completion_tokens"] == 0
    assert answer["usage"]["total_tokens"] == len(HELLO)
    perplexity = math.exp(-sum(choice["logprobs"]["token_logprobs"][1:]) / (len(HELLO) - 1))
    assert perplexity == pytest.approx(math.exp(sum(HELLO[1:]) / 100 / (len(HELLO) - 1)))
    options = {"include_usage": True}
    *events, last = (await api.complete(stream=True, stream_options=options, **body)).events
    assert "".join(event["choices"][0]["text"] for event in events) == "Hello, world!"
    assert events[-1]["choices"][0]["finish_reason"] == "length"
    assert last["usage"]["completion_tokens"] == 0
    assert scheduler.submits[0].stop.max_tokens == 1


@pytest.mark.parametrize("num_top", [0, 2])
async def test_each_token_is_among_its_own_likeliest(start_router: StartRouter, num_top: int) -> None:
    """Evaluations take the maximum of each, and look the token up in it."""
    api = await start_router(fake_scheduler(answer_text(" one")))
    # That more of the likeliest are wanted of the prompt in vLLM's form is no reason to tell them here.
    body = {"prompt": "Hello, world!", "echo": True, "logprobs": num_top, "prompt_logprobs": 4, "max_tokens": 9}
    logprobs = (await api.complete(**body)).json["choices"][0]["logprobs"]
    columns = zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True)
    next(columns)
    for position, (token, logprob, top) in enumerate(columns, 1):
        assert top[token] == logprob
        # The fake scheduler draws the likeliest, but none of a prompt's tokens are.
        assert len(top) == (num_top + 1 if position < len(HELLO) else max(1, num_top))


async def test_prompt_logprobs_are_vllm_s(start_router: StartRouter) -> None:
    scheduler = fake_scheduler()
    api = await start_router(scheduler)
    (choice,) = (await api.complete(prompt="Hello, world!", prompt_logprobs=1)).json["choices"]
    first, *entries = choice["prompt_logprobs"]
    assert first is None
    for token_id, entry in zip(HELLO[1:], entries, strict=True):
        assert list(entry) == [str(token_id), str(token_id + 1)]
        own = entry[str(token_id)]
        assert own == {
            "logprob": pytest.approx(-token_id / 100),
            "rank": token_id,
            "decoded_token": byte_level().decode([token_id]),
        }
        assert entry[str(token_id + 1)]["rank"] == 1
    chat = (await api.chat(prompt_logprobs=0, n=2)).json
    ChatCompletion.model_validate(chat, strict=True)
    assert [entry and list(entry) for entry in chat["prompt_logprobs"]] == [
        None, *([str(token_id)] for token_id in prompts(scheduler)[-1][1:])
    ]  # fmt: skip
    refused = await api.refused("CreateChatCompletion", {"messages": [], "stream": True, "prompt_logprobs": 1})
    assert refused.error["param"] in ("messages", "prompt_logprobs")
    body = {"messages": [{"role": "user", "content": "x"}], "stream": True, "prompt_logprobs": 1}
    assert (await api.refused("CreateChatCompletion", body)).error["param"] == "prompt_logprobs"


async def test_a_lost_scheduler_costs_no_entry_and_brings_none_twice(start_router: StartRouter) -> None:
    answers = [Answer([7, EOS_TOKEN_ID], pause_after=0), Answer([7, EOS_TOKEN_ID])]
    scheduler = fake_scheduler(lambda *_: answers.pop(0))
    api = await start_router(scheduler)
    task = asyncio.create_task(api.complete(prompt="Hello, world!", echo=True, logprobs=0))
    await scheduler.wait_for(lambda: bool(scheduler.submits))
    await scheduler.break_streams()
    (choice,) = (await task).json["choices"]
    assert choice["logprobs"]["token_logprobs"] == [*HELLO_LOGPROBS, -0.5, -0.5]
    first, second = (submit.choices[0].num_prompt_logprobs for submit in scheduler.submits)
    assert first == 0 < second


async def test_stale_and_double_entries_are_dropped(start_router: StartRouter) -> None:
    paused = Answer([7, EOS_TOKEN_ID], pause_after=0)
    scheduler = fake_scheduler(lambda *_: paused)
    api = await start_router(scheduler)
    task = asyncio.create_task(api.complete(prompt="Hello, world!", echo=True, logprobs=0))
    await scheduler.wait_for(lambda: bool(scheduler.submits))
    submit = scheduler.submits[0]
    for frame in prompt_frames(submit, submit.choices[0]):
        await scheduler.send(frame)
    paused.resume.set()
    (choice,) = (await task).json["choices"]
    assert choice["logprobs"]["token_logprobs"][: len(HELLO)] == HELLO_LOGPROBS


# The best of several.


async def test_the_best_are_those_likeliest_per_token(
    start_router: StartRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As long as it is likely: the sum of its log probabilities is the least of all.
    tokens = {0: [10] * 2, 1: [30] * 9, 2: [20] * 4}
    logprobs = {10: -3.0, 30: -1.0, 20: -2.0}

    def columns(token_ids: Sequence[int], num_top: int) -> sampling_pb2.TokenLogprobs:
        assert num_top == 0
        return sampling_pb2.TokenLogprobs(
            token_indices=fakes.pack(range(len(token_ids))),
            logprobs=struct.pack(f"<{len(token_ids)}f", *(logprobs[token_id] for token_id in token_ids)),
            top_counts=fakes.pack([0] * len(token_ids)),
        )

    monkeypatch.setattr(fakes, "_logprobs", columns)
    api = await start_router(fake_scheduler(lambda submit, choice: Answer(tokens[choice.choice_index])))
    answer = (await api.complete(n=2, best_of=3, return_token_ids=True)).json
    assert [choice["token_ids"] for choice in answer["choices"]] == [tokens[1], tokens[2]]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    assert [choice["logprobs"] for choice in answer["choices"]] == [None, None]
    assert answer["usage"]["completion_tokens"] == 15, "those left out were generated too"


# Where an answer stops, and why.


@pytest.mark.parametrize(("included", "text"), [(False, "one"), (True, "one two")])
async def test_stop_strings_are_named_and_included_on_request(
    start_router: StartRouter, included: bool, text: str
) -> None:
    api = await start_router(fake_scheduler(answer_text("one two three")))
    body = {"stop": ["never", " two"], "include_stop_str_in_output": included, "max_tokens": 50}
    for reply in (await api.complete(**body), await api.chat(**body)):
        (choice,) = reply.json["choices"]
        assert (choice.get("text") or choice["message"]["content"]) == text
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", " two")
    events = (await api.chat(stream=True, **body)).events
    assert "".join(event["choices"][0]["delta"].get("content", "") for event in events) == text
    last = events[-1]["choices"][0]
    assert (last["finish_reason"], last["stop_reason"]) == ("stop", " two")


@pytest.mark.parametrize(("included", "text"), [(False, "one"), (True, "one!")])
async def test_stop_tokens_are_named_and_included_on_request(
    start_router: StartRouter, included: bool, text: str
) -> None:
    bang = byte_level().encode("!").ids[0]
    ids = [*byte_level().encode("one").ids, bang]
    api = await start_router(fake_scheduler(lambda *_: Answer(ids)))
    body = {"stop_token_ids": [bang], "include_stop_str_in_output": included, "max_tokens": 50}
    (choice,) = (await api.complete(**body)).json["choices"]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == (text, "stop", bang)


async def test_the_model_s_own_end_is_no_reason_to_name(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler())
    (choice,) = (await api.complete(max_tokens=100)).json["choices"]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", None)
    (choice,) = (await api.complete(max_tokens=2)).json["choices"]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("length", None)


# Usage and token ids.


async def test_usage_with_every_chunk(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler())
    options = {"include_usage": True, "continuous_usage_stats": True}
    for events in (
        (await api.complete(stream=True, stream_options=options, max_tokens=100)).events,
        (await api.chat(stream=True, stream_options=options, max_tokens=100)).events,
    ):
        usages = [event["usage"] for event in events if event["usage"] is not None]
        # Clients work out from it how many tokens each chunk brings: none is counted twice. The last event sums up.
        *counts, total = [usage["completion_tokens"] for usage in usages]
        assert counts == sorted(set(counts))
        assert (counts[0] == 0) is (events[0]["object"] == "chat.completion.chunk")
        assert counts[-1] == total == len(byte_level().encode(GREETING).ids) + 1
        assert all(usage["prompt_tokens"] == usages[-1]["prompt_tokens"] for usage in usages)
    plain = (await api.complete(stream=True, stream_options={"include_usage": True})).events
    assert [event["usage"] is None for event in plain] == [True] * (len(plain) - 1) + [False]


async def test_token_ids_come_along(start_router: StartRouter) -> None:
    scheduler = fake_scheduler()
    api = await start_router(scheduler)
    expected = [*byte_level().encode(GREETING).ids, EOS_TOKEN_ID]
    (choice,) = (await api.complete(return_token_ids=True, max_tokens=100)).json["choices"]
    assert choice["token_ids"] == expected
    assert choice["prompt_token_ids"] == byte_level().encode("Hello").ids
    events = (await api.complete(return_token_ids=True, max_tokens=100, stream=True)).events
    assert [token for event in events for token in event["choices"][0]["token_ids"]] == expected
    assert [event["choices"][0].get("prompt_token_ids") for event in events][1:] == [None] * (len(events) - 1)
    chat = (await api.chat(return_token_ids=True, max_tokens=100)).json
    assert chat["choices"][0]["token_ids"] == expected
    assert chat["prompt_token_ids"] == prompts(scheduler)[-1]
    events = (await api.chat(return_token_ids=True, max_tokens=100, stream=True)).events
    assert events[0]["prompt_token_ids"] == prompts(scheduler)[-1]
    assert [token for event in events for token in event["choices"][0].get("token_ids", ())] == expected


async def test_what_was_not_asked_for_is_null_as_in_vllm(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler())
    chat = (await api.chat()).json
    assert (chat["prompt_logprobs"], chat["prompt_token_ids"]) == (None, None)
    (choice,) = chat["choices"]
    assert (choice["token_ids"], choice["message"]["reasoning"]) == (None, None)
    (choice,) = (await api.complete()).json["choices"]
    names = ("prompt_logprobs", "prompt_token_ids", "token_ids", "stop_reason")
    assert {name: choice[name] for name in names} == dict.fromkeys(names)


async def test_ids_that_are_echoed_keep_special_tokens(start_router: StartRouter) -> None:
    """As they are in vLLM: a client that sends ids wants them back."""
    api = await start_router(fake_scheduler())
    ids = [EOS_TOKEN_ID, *byte_level().encode("Hi").ids]
    special = byte_level().decode([EOS_TOKEN_ID], skip_special_tokens=False)
    for options in ({}, {"logprobs": 0}):
        (choice,) = (await api.complete(prompt=ids, echo=True, max_tokens=1, **options)).json["choices"]
        assert choice["text"].startswith(f"{special}Hi")
    assert choice["logprobs"]["text_offset"][:2] == [0, len(special)]


async def test_tokens_by_their_ids(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler(answer_text("one")))
    body = {"return_tokens_as_token_ids": True, "max_tokens": 50}
    (choice,) = (await api.complete(logprobs=1, **body)).json["choices"]
    first = byte_level().encode("one").ids[0]
    assert choice["logprobs"]["tokens"][0] == f"token_id:{first}"
    assert list(choice["logprobs"]["top_logprobs"][0]) == [f"token_id:{first}"]
    (choice,) = (await api.chat(logprobs=True, **body)).json["choices"]
    assert choice["logprobs"]["content"][0]["token"] == f"token_id:{first}"


# Prompts.


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"truncate_prompt_tokens": 3}, HELLO[-3:]),
        ({"truncate_prompt_tokens": 3, "truncation_side": "right"}, HELLO[:3]),
        ({"truncate_prompt_tokens": 100}, HELLO),
    ],
)
async def test_prompts_are_cut_on_request(start_router: StartRouter, options: dict[str, Any], kept: list[int]) -> None:
    scheduler = fake_scheduler()
    api = await start_router(scheduler)
    answer = (await api.complete(prompt="Hello, world!", echo=True, max_tokens=1, **options)).json
    assert prompts(scheduler) == [kept]
    assert answer["usage"]["prompt_tokens"] == len(kept)
    assert answer["choices"][0]["text"].startswith(byte_level().decode(kept))


async def test_a_prompt_is_cut_to_what_the_answer_leaves(start_router: StartRouter) -> None:
    scheduler = fake_scheduler()
    api = await start_router(scheduler)
    await api.complete(prompt="Hello, world! " * 200, truncate_prompt_tokens=-1, max_tokens=56)
    await api.chat(messages=[{"role": "user", "content": "Hello! " * 200}], truncate_prompt_tokens=-1, max_tokens=6)
    assert [len(prompt) for prompt in prompts(scheduler)] == [200, 250]


async def test_refusals_go_on_as_text_and_images_are_refused_by_name(start_router: StartRouter) -> None:
    scheduler = fake_scheduler()
    api = await start_router(scheduler)
    user = {"role": "user", "content": [{"type": "text", "text": "Hi"}]}
    for refusal in ({"content": [{"type": "refusal", "refusal": "No."}]}, {"content": None, "refusal": "No."}):
        await api.chat(messages=[user, {"role": "assistant", **refusal}, user])
    await api.chat(messages=[user, {"role": "assistant", "content": "No."}, user])
    assert prompts(scheduler)[0] == prompts(scheduler)[1] == prompts(scheduler)[2]
    for kind in ("image_url", "input_audio", "file"):
        message = {"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": kind, kind: {"url": "x"}}]}
        error = (await api.refused("CreateChatCompletion", {"messages": [message]})).error
        assert error["param"] == "messages[0].content[1].type"
        assert kind in error["message"]
    message = {"role": "user", "content": [{"type": "refusal", "refusal": "No."}]}
    assert (await api.refused("CreateChatCompletion", {"messages": [message]})).error["param"].endswith("[0].type")
    message = {"role": "user", "content": [{"type": "poem", "text": "x"}]}
    assert (await api.refused("CreateChatCompletion", {"messages": [message]})).error["code"] == "invalid_value"


# Templates that requests bring.


async def test_a_request_s_own_template_and_documents(start_router: StartRouter) -> None:
    scheduler = fake_scheduler(without_chat_template=True)
    api = await start_router(scheduler)
    template = "{{ bos_token }}{% for d in documents %}{{ d.title }};{% endfor %}{{ messages[0].content }}{{ mood }}"
    body = {
        "messages": [{"role": "user", "content": "Hi"}], "chat_template": template,
        "documents": [{"title": "T", "text": "x"}], "chat_template_kwargs": {"mood": "!"},
    }  # fmt: skip
    await api.chat(**body)
    assert prompts(scheduler) == [byte_level().encode("<s>T;Hi!").ids]
    assert (await api.post("Tokenize", body)).json["tokens"] == prompts(scheduler)[0]
    for bad in ("{% if %}", "{{ ''.__class__.__mro__ }}", "{{ raise_exception('no') }}"):
        error = (await api.refused("CreateChatCompletion", body | {"chat_template": bad})).error
        assert error["param"] == "chat_template"
    large = "x" * (foreign_templates.MAX_TEMPLATE_CHARS + 1)
    error = (await api.refused("CreateChatCompletion", body | {"chat_template": large})).error
    assert error["param"] == "chat_template"


@pytest.mark.parametrize(
    "hostile",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% set x = i * j %}{% endfor %}{% endfor %}",
        "{{ 'a' * 10 ** 10 }}",
        "{{ 'a' * 10 ** 8 }}",
        "{{ 7 ** (10 ** 9) }}",
    ],
    ids=["loops", "memory", "length", "power"],
)
async def test_a_hostile_template_is_ended_and_the_next_is_rendered(start_router: StartRouter, hostile: str) -> None:
    api = await start_router(fake_scheduler())
    body = {"messages": [{"role": "user", "content": "Hi"}], "chat_template": hostile}
    assert (await api.refused("CreateChatCompletion", body)).error["param"] in ("chat_template", "messages")
    await api.chat(**(body | {"chat_template": "fine"}))


# What is accepted without effect, and what is refused.


async def test_labels_are_accepted_and_checked(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler())
    labels = {
        "user": "me", "safety_identifier": "me", "store": True, "service_tier": "fast",
        "metadata": {f"key-{index}": "value" for index in range(16)},
    }  # fmt: skip
    await api.chat(**labels)
    await api.complete(**labels)
    for name, value, param in (
        ("user", 7, "user"),
        ("store", "yes", "store"),
        ("service_tier", 7, "service_tier"),
        ("metadata", {str(index): "" for index in range(17)}, "metadata"),
        ("metadata", {"key": "x" * 513}, "metadata.key"),
        ("metadata", {"key": 1}, "metadata.key"),
        ("metadata", {"k" * 65: "x"}, "metadata."),
    ):
        error = (await api.refused("CreateCompletion", {"prompt": "x", name: value})).error
        assert error["param"].startswith(param)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("use_beam_search", True),
        ("length_penalty", 0.5),
        ("logits_processors", ["x"]),
        ("audio", {"voice": "x"}),
        ("modalities", ["audio"]),
        ("suffix", "end"),
    ],
)
async def test_what_is_not_built_is_refused_by_name(start_router: StartRouter, name: str, value: Any) -> None:
    api = await start_router(fake_scheduler())
    for method, prompt in (("CreateCompletion", "prompt"), ("CreateChatCompletion", "messages")):
        body = {"prompt": "x"} if prompt == "prompt" else {"messages": [{"role": "user", "content": "x"}]}
        error = (await api.refused(method, body | {name: value})).error
        assert (error["param"], error["code"]) == (name, "unsupported_parameter")


async def test_the_version(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler())
    assert (await api.get("GetVersion")).json == {"version": version()}
