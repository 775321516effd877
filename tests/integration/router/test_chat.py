"""Chat completions, streamed and whole, checked against the openai SDK's own types."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import grpc
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from quire.scheduler.v1 import scheduler_pb2
from tests.integration.router.conftest import GREETING, MODEL, StartRouter, answer_text, fake_scheduler
from tests.integration.router.fake_scheduler import Answer, unpack
from tests.integration.router.small_tokenizers import EOS_TOKEN_ID, byte_fallback, byte_level
from tests.integration.router.test_recovery import read_rest, text_in
from tests.integration.router.test_recovery import stream as streamed


def chunks_of(events: list[Any]) -> list[ChatCompletionChunk]:
    return [ChatCompletionChunk.model_validate(event, strict=True) for event in events]


def text_of(events: list[Any], index: int = 0) -> str:
    choices = [choice for chunk in chunks_of(events) for choice in chunk.choices if choice.index == index]
    return "".join(choice.delta.content or "" for choice in choices)


async def test_a_whole_answer_has_text_finish_reason_and_usage(start_router: StartRouter) -> None:
    scheduler = fake_scheduler()
    api = await start_router(scheduler)
    completion = ChatCompletion.model_validate((await api.chat()).json, strict=True)
    (choice,) = completion.choices
    assert choice.message.content == GREETING
    assert choice.message.role == "assistant"
    assert choice.finish_reason == "stop"
    assert completion.model == MODEL
    (submit,) = scheduler.submits
    assert completion.usage is not None
    assert completion.usage.prompt_tokens == len(unpack(submit.prompt_token_ids))
    assert completion.usage.completion_tokens == len(byte_level().encode(GREETING).ids) + 1
    assert completion.usage.total_tokens == completion.usage.prompt_tokens + completion.usage.completion_tokens
    assert completion.usage.prompt_tokens_details is not None
    assert completion.usage.prompt_tokens_details.cached_tokens == 4


async def test_a_streamed_answer_concatenates_to_the_same_text(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler())
    events = (await api.chat(stream=True)).events
    chunks = chunks_of(events)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert text_of(events) == GREETING
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["stop"]
    assert len({chunk.id for chunk in chunks}) == 1
    assert all("usage" not in event for event in events)


class OneByOne(asyncio.Event):
    """Lets an answer go on by one token for each permit."""

    def __init__(self) -> None:
        super().__init__()
        self.permits = asyncio.Semaphore(0)

    async def wait(self) -> Literal[True]:
        await self.permits.acquire()
        return True


async def test_every_event_holds_whole_characters(start_router: StartRouter) -> None:
    """The tokens of a word come when the client has read the word before, so no event holds more than one word."""
    text = "👨‍👩‍👧‍👦 żółć 世界 " * 4
    turns = OneByOne()
    api = await start_router(fake_scheduler(answer_text(text, pause_after=0, resume=turns)))
    call = await streamed(api)
    ends = [end for _, end in byte_level().encode(text, add_special_tokens=False).offsets]
    messages: list[bytes] = []
    for word_end in (index for index, character in enumerate(text) if character == " "):
        while ends and ends[0] <= word_end:
            ends.pop(0)
            turns.permits.release()
        while len(text_in(messages)) < word_end:
            messages.append((await call.read()).data)
    for _ in (*ends, EOS_TOKEN_ID):
        turns.permits.release()
    messages += await read_rest(call)
    pieces = [piece for message in messages if (piece := text_in([message]))]
    assert len(pieces) > 10
    assert not any("\ufffd" in piece for piece in pieces)
    assert "".join(pieces) == text


async def test_an_answer_cut_within_a_character_ends_before_it(start_router: StartRouter) -> None:
    # Its tokenizer never saw this one: it takes a token per byte.
    ids = byte_level().encode("Hi 🦀").ids
    api = await start_router(fake_scheduler(answer_text("Hi 🦀")))
    completion = (await api.chat(max_tokens=len(ids) - 1)).json
    assert completion["choices"][0]["message"]["content"] == "Hi "
    assert completion["choices"][0]["finish_reason"] == "length"
    assert completion["usage"]["completion_tokens"] == len(ids) - 1


async def test_sentencepiece_models_work_alike(start_router: StartRouter) -> None:
    scheduler = fake_scheduler(answer_text(GREETING, byte_fallback()), tokenizer=byte_fallback())
    api = await start_router(scheduler)
    assert text_of((await api.chat(stream=True)).events) == " " + GREETING


async def test_the_prompt_is_the_rendered_template(start_router: StartRouter) -> None:
    scheduler = fake_scheduler()
    api = await start_router(scheduler)
    await api.chat(
        messages=[
            {"role": "developer", "content": "Be kind."},
            {"role": "user", "content": [{"type": "text", "text": "Grüße"}]},
        ]
    )
    prompt = byte_level().decode(unpack(scheduler.submits[0].prompt_token_ids), skip_special_tokens=False)
    assert prompt == (
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nGrüße<|im_end|>\n<|im_start|>assistant\n"
    )


async def test_defaults_are_filled_from_the_request_then_the_model_then_the_api(start_router: StartRouter) -> None:
    scheduler = fake_scheduler()
    api = await start_router(scheduler)
    await api.chat(temperature=0, logit_bias={"7": -1.5}, stop_token_ids=[9], ignore_eos=True)
    (submit,) = scheduler.submits
    sampling = submit.sampling
    assert sampling.temperature == 0
    assert sampling.top_k == 50
    assert sampling.top_p == 1
    every = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
    assert all(sampling.HasField(name) for name in (*every, "seed"))  # type: ignore[arg-type]
    assert not sampling.HasField("logprobs")
    assert [(entry.token_id, entry.bias) for entry in sampling.logit_bias] == [(7, -1.5)]
    assert list(submit.stop.stop_token_ids) == [9]
    assert submit.stop.ignore_eos
    assert submit.stop.max_tokens == 256 - len(unpack(submit.prompt_token_ids))


async def test_n_answers_come_side_by_side(start_router: StartRouter) -> None:
    def script(submit: scheduler_pb2.Submit, choice: scheduler_pb2.Choice) -> Answer:
        text = f"answer {'abc'[choice.choice_index]}"
        return Answer([*byte_level().encode(text).ids, EOS_TOKEN_ID])

    scheduler = fake_scheduler(script)
    api = await start_router(scheduler)
    completion = ChatCompletion.model_validate((await api.chat(n=3)).json, strict=True)
    texts = [choice.message.content for choice in completion.choices]
    assert texts == ["answer a", "answer b", "answer c"]
    assert [choice.index for choice in completion.choices] == [0, 1, 2]
    events = (await api.chat(n=3, stream=True, stream_options={"include_usage": True})).events
    assert [text_of(events, index) for index in range(3)] == texts
    # One submission; the prompt counts once, every answer's tokens count.
    assert len(scheduler.submits) == 2
    assert completion.usage is not None
    assert completion.usage.prompt_tokens == len(unpack(scheduler.submits[0].prompt_token_ids))
    assert completion.usage.completion_tokens == sum(len(byte_level().encode(text or "").ids) + 1 for text in texts)
    assert events[-1]["usage"]["completion_tokens"] == completion.usage.completion_tokens


async def test_usage_comes_last_when_asked_for(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler())
    events = (await api.chat(stream=True, stream_options={"include_usage": True})).events
    chunks_of(events)
    assert all(event["usage"] is None for event in events[:-1])
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["completion_tokens"] == len(byte_level().encode(GREETING).ids) + 1


@pytest.mark.parametrize("stream", [False, True])
async def test_log_probabilities_name_tokens_and_bytes(start_router: StartRouter, stream: bool) -> None:
    api = await start_router(fake_scheduler(answer_text("é!")))
    reply = await api.chat(logprobs=True, top_logprobs=2, stream=stream)
    if stream:
        chunks = chunks_of(reply.events)
        entries = [
            entry
            for chunk in chunks
            for choice in chunk.choices
            if choice.logprobs
            for entry in choice.logprobs.content or []
        ]
    else:
        completion = ChatCompletion.model_validate(reply.json, strict=True)
        assert completion.choices[0].logprobs is not None
        entries = completion.choices[0].logprobs.content or []
    assert len(entries) == len(byte_level().encode("é!").ids) + 1
    assert bytes(byte for entry in entries[:-1] for byte in entry.bytes or []) == "é!".encode()
    assert all(entry.logprob == -0.5 and len(entry.top_logprobs) == 2 for entry in entries)


async def test_a_stop_string_ends_the_answer_wherever_tokens_end(start_router: StartRouter) -> None:
    scheduler = fake_scheduler(answer_text("one, two, three, four"))
    api = await start_router(scheduler)
    for stream in (False, True):
        reply = await api.chat(
            stop=["o, th", "zzz"], stream=stream, **({"stream_options": {"include_usage": True}} if stream else {})
        )
        text, reason, usage = _outcome(reply, stream)
        assert (text, reason) == ("one, tw", "stop")
        # Up to and including the token that completed it.
        ids = byte_level().encode("one, two, three, four").ids
        completed = next(end for end in range(len(ids)) if "o, th" in byte_level().decode(ids[:end]))
        assert usage["completion_tokens"] == completed
        await scheduler.wait_for(lambda: scheduler.num_running == 0)


async def test_a_stopped_answer_is_aborted_while_its_siblings_go_on(start_router: StartRouter) -> None:
    resume = asyncio.Event()

    def script(submit: scheduler_pb2.Submit, choice: scheduler_pb2.Choice) -> Answer:
        before, after = (("one STOP", " two"), ("three", " four"))[choice.choice_index]
        ids, more = byte_level().encode(before).ids, byte_level().encode(after).ids
        return Answer([*ids, *more, EOS_TOKEN_ID], pause_after=len(ids), resume=resume)

    scheduler = fake_scheduler(script)
    api = await start_router(scheduler)
    answer = asyncio.create_task(api.chat(n=2, stop="STOP"))
    await scheduler.wait_for(lambda: bool(scheduler.aborted))
    assert scheduler.aborted == [scheduler.submits[0].choices[0].sequence_id]
    resume.set()
    choices = (await answer).json["choices"]
    assert [choice["message"]["content"] for choice in choices] == ["one ", "three four"]


async def test_a_stop_string_that_never_comes_holds_nothing_back(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler(answer_text("wait for it: STO")))
    events = (await api.chat(stop="STOP", stream=True)).events
    assert text_of(events) == "wait for it: STO"
    assert (await api.chat(stop="STOP")).json["choices"][0]["message"]["content"] == "wait for it: STO"


def _outcome(reply: Any, stream: bool) -> tuple[str, str, dict[str, int]]:
    if stream:
        reasons = [choice["finish_reason"] for event in reply.events for choice in event["choices"]]
        return text_of(reply.events), reasons[-1], reply.events[-1]["usage"]
    (choice,) = reply.json["choices"]
    return choice["message"]["content"], choice["finish_reason"], reply.json["usage"]


async def test_a_template_that_cannot_be_parsed_costs_chats_and_is_told_at_the_start(
    start_router: StartRouter, caplog: pytest.LogCaptureFixture
) -> None:
    api = await start_router(fake_scheduler(chat_template="{% for message in messages %}\n{{ message"))
    error = await api.refused("CreateChatCompletion", {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]})
    assert error.status is grpc.StatusCode.INVALID_ARGUMENT
    assert (error.error["param"], error.error["code"]) == ("model", "invalid_chat_template")
    why = "The model's chat template cannot be parsed: line 2: unexpected end of template"
    assert error.error["message"].startswith(why)
    told = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert any(line.startswith(why) and "completions work" in line for line in told), told
    assert (await api.complete(max_tokens=200)).json["choices"][0]["text"] == GREETING
