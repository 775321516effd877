"""Text completions, the model list, tokenizing, health and metrics."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from openai.types import Completion

from quire.openai.v1 import openai_pb2
from quire.scheduler.v1 import scheduler_pb2
from tests.integration.router.conftest import GREETING, MODEL, RefusedError, StartRouter, answer_text, fake_scheduler
from tests.integration.router.fake_scheduler import Answer, unpack
from tests.integration.router.small_tokenizers import EOS_TOKEN_ID, byte_fallback, byte_level


async def test_whole_and_streamed_completions_agree(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler())
    whole = Completion.model_validate((await api.complete(max_tokens=100)).json, strict=True)
    assert whole.choices[0].text == GREETING
    assert whole.choices[0].finish_reason == "stop"
    events = (await api.complete(max_tokens=100, stream=True)).events
    assert "".join(event["choices"][0]["text"] for event in events) == GREETING
    assert events[-1]["choices"][0]["finish_reason"] == "stop"


async def test_sixteen_tokens_are_generated_unless_told_otherwise(start_router: StartRouter) -> None:
    scheduler = fake_scheduler()
    api = await start_router(scheduler)
    completion = (await api.complete()).json
    assert completion["usage"]["completion_tokens"] == 16
    assert completion["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("prompt", "token_ids"),
    [
        ("Hi", [byte_level().encode("Hi").ids]),
        (["Hi", "Ho"], [byte_level().encode("Hi").ids, byte_level().encode("Ho").ids]),
        ([7, 8, 9], [[7, 8, 9]]),
        ([[7], [8, 9]], [[7], [8, 9]]),
    ],
)
async def test_prompts_in_four_shapes(start_router: StartRouter, prompt: Any, token_ids: list[list[int]]) -> None:
    scheduler = fake_scheduler()
    api = await start_router(scheduler)
    completion = (await api.complete(prompt=prompt)).json
    assert sorted(unpack(submit.prompt_token_ids) for submit in scheduler.submits) == sorted(token_ids)
    assert [choice["index"] for choice in completion["choices"]] == list(range(len(token_ids)))
    assert completion["usage"]["prompt_tokens"] == sum(map(len, token_ids))


async def test_answers_are_numbered_prompt_by_prompt(start_router: StartRouter) -> None:
    def script(submit: scheduler_pb2.Submit, choice: scheduler_pb2.Choice) -> Answer:
        text = f"{byte_level().decode(unpack(submit.prompt_token_ids))}{choice.choice_index}"
        return Answer([*byte_level().encode(text).ids, EOS_TOKEN_ID])

    api = await start_router(fake_scheduler(script))
    completion = (await api.complete(prompt=["a", "b"], n=2)).json
    assert [choice["text"] for choice in completion["choices"]] == ["a0", "a1", "b0", "b1"]
    events = (await api.complete(prompt=["a", "b"], n=2, stream=True, echo=True)).events
    texts = dict.fromkeys(range(4), "")
    for event in events:
        for choice in event["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == {0: "aa0", 1: "aa1", 2: "bb0", 3: "bb1"}


async def test_log_probabilities_are_columns(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler(answer_text("one two")))
    completion = Completion.model_validate((await api.complete(logprobs=1)).json, strict=True)
    logprobs = completion.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert "".join(logprobs.tokens).startswith("one two")
    assert logprobs.text_offset is not None
    assert logprobs.text_offset[0] == 0
    assert logprobs.text_offset == sorted(logprobs.text_offset)
    assert logprobs.token_logprobs == [-0.5] * len(logprobs.tokens)
    streamed = (await api.complete(logprobs=1, stream=True)).events
    offsets = [offset for event in streamed for offset in event["choices"][0]["logprobs"]["text_offset"]]
    assert offsets == logprobs.text_offset


async def test_anthropic_s_clients_get_its_shape_of_models(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler())
    alias = f"{MODEL}-alias"
    header = (("anthropic-version", "2023-06-01"),)
    models = (await api.get("ListModels", metadata=header)).json
    assert [model["id"] for model in models["data"]] == [MODEL, alias]
    assert (models["has_more"], models["first_id"], models["last_id"]) == (False, MODEL, alias)
    request = openai_pb2.GetModelRequest(model=alias)
    model = (await api.get("GetModel", request, metadata=header)).json
    assert model == models["data"][1]
    assert (model["type"], model["display_name"], model["lifecycle"]) == ("model", alias, "active")
    assert (await api.get("GetModel", request)).json["object"] == "model"
    unknown = openai_pb2.GetModelRequest(model="none")
    for metadata, error_type in ((header, "not_found_error"), ((), "invalid_request_error")):
        with pytest.raises(RefusedError) as caught:
            await api.get("GetModel", unknown, metadata=metadata)
        assert caught.value.error["type"] == error_type


@pytest.mark.parametrize(
    ("asked", "listed", "has_more"),
    [
        ({"limit": 1}, [0], True),
        ({"limit": 2}, [0, 1], False),
        ({"after_id": MODEL}, [1], False),
        ({"after_id": MODEL, "limit": 1}, [1], False),
        ({"after_id": f"{MODEL}-alias"}, [], False),
        ({"before_id": f"{MODEL}-alias", "limit": 5}, [0], False),
        ({"before_id": MODEL}, [], False),
    ],
)
async def test_anthropic_s_clients_get_the_page_that_they_ask_for(
    start_router: StartRouter, asked: dict[str, Any], listed: list[int], has_more: bool
) -> None:
    api = await start_router(fake_scheduler())
    header = (("anthropic-version", "2023-06-01"),)
    names = [(MODEL, f"{MODEL}-alias")[index] for index in listed]
    page = (await api.get("ListModels", openai_pb2.ListModelsRequest(**asked), metadata=header)).json
    assert ([model["id"] for model in page["data"]], page["has_more"]) == (names, has_more)
    assert (page["first_id"], page["last_id"]) == ((names[0], names[-1]) if names else (None, None))
    # OpenAI's API has no pages.
    whole = (await api.get("ListModels", openai_pb2.ListModelsRequest(**asked))).json
    assert len(whole["data"]) == 2


@pytest.mark.parametrize("asked", [{"limit": 0}, {"limit": 1001}, {"after_id": "none"}, {"before_id": "none"}])
async def test_a_page_that_there_is_not_is_refused(start_router: StartRouter, asked: dict[str, Any]) -> None:
    api = await start_router(fake_scheduler())
    header = (("anthropic-version", "2023-06-01"),)
    with pytest.raises(RefusedError) as caught:
        await api.get("ListModels", openai_pb2.ListModelsRequest(**asked), metadata=header)
    assert caught.value.error["message"].startswith(f"Invalid '{next(iter(asked))}'")


async def test_models_are_listed_under_every_name(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler())
    models = (await api.get("ListModels")).json
    assert [card["id"] for card in models["data"]] == [MODEL, f"{MODEL}-alias"]
    card = (await api.get("GetModel", openai_pb2.GetModelRequest(model=f"{MODEL}-alias"))).json
    assert card["root"] == MODEL
    assert card["max_model_len"] == 256
    with pytest.raises(RefusedError) as caught:
        await api.get("GetModel", openai_pb2.GetModelRequest(model="none/such"))
    assert caught.value.status is grpc.StatusCode.NOT_FOUND


async def test_an_alias_answers_under_the_model_s_name(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler())
    assert (await api.complete(model=f"{MODEL}-alias")).json["model"] == MODEL


async def test_tokenizing_and_back(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler(tokenizer=byte_fallback()))
    tokens = (await api.post("Tokenize", {"model": MODEL, "prompt": "Grüße 🎉"})).json
    assert tokens["tokens"] == byte_fallback().encode("Grüße 🎉").ids
    assert tokens["count"] == len(tokens["tokens"])
    assert tokens["max_model_len"] == 256
    bare = (await api.post("Tokenize", {"prompt": "Grüße 🎉", "add_special_tokens": False})).json
    assert bare["tokens"] == tokens["tokens"][1:]
    assert (await api.post("Detokenize", {"tokens": bare["tokens"]})).json == {"prompt": "Grüße 🎉"}
    named = (await api.post("Tokenize", {"prompt": "Hi", "return_token_strs": True})).json
    assert named["token_strs"][0] == "<s>"


async def test_messages_are_tokenized_through_the_template(start_router: StartRouter) -> None:
    scheduler = fake_scheduler()
    api = await start_router(scheduler)
    await api.chat(messages=[{"role": "user", "content": "Hi"}])
    tokens = (await api.post("Tokenize", {"messages": [{"role": "user", "content": "Hi"}]})).json["tokens"]
    assert tokens == unpack(scheduler.submits[0].prompt_token_ids)


async def test_a_long_text_is_tokenized_beside_the_loop(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler())
    text = "Hello, world! " * 5_000
    tokens = (await api.post("Tokenize", {"prompt": text})).json["tokens"]
    assert tokens == byte_level().encode(text).ids
    assert (await api.post("Detokenize", {"tokens": tokens})).json["prompt"] == text


async def test_metrics_have_vllm_s_names(start_router: StartRouter) -> None:
    scheduler = fake_scheduler()
    scheduler.load.num_ready_groups = 1
    api = await start_router(scheduler)
    await api.chat()
    await api.complete(stream=True, brand_new_field=1)
    await api.refused("CreateCompletion", {"model": "none"})
    connection = api.router.placement.connections[0]
    while not connection.load.last.num_blocks:
        await api.get("GetHealth")
    reply = await api.get("GetMetrics")
    assert reply.content_type.startswith("text/plain; version=0.0.4")
    text = reply.messages[0].decode()
    label = f'{{model_name="{MODEL}"}}'
    router = f'router="{api.router.id}"'
    steps = f'{router},scheduler="{scheduler.address}"'
    own = f'{{model_name="{MODEL}",{router}}}'
    generated = len(byte_level().encode(GREETING).ids) + 1 + 16
    for line in (
        f"vllm:num_requests_running{label} 3.0",
        f"vllm:num_requests_waiting{label} 2.0",
        f"vllm:kv_cache_usage_perc{label} 0.25",
        f"vllm:gpu_cache_usage_perc{label} 0.25",
        f"vllm:cpu_cache_usage_perc{label} 0.75",
        f'vllm:cache_config_info{{block_size="16",enable_prefix_caching="True",model_name="{MODEL}",num_cpu_blocks="4",'
        'num_gpu_blocks="100"} 1.0',
        f"vllm:avg_generation_throughput_toks_per_s{label} ",
        f"vllm:avg_prompt_throughput_toks_per_s{label} ",
        f'vllm:num_preemptions_total{{model_name="{MODEL}",{router},scheduler="{scheduler.address}"}} 0.0',
        f'vllm:iteration_tokens_total_bucket{{le="8.0",model_name="{MODEL}",{steps}}} 5.0',
        f'vllm:iteration_tokens_total_bucket{{le="+Inf",model_name="{MODEL}",{steps}}} 6.0',
        f'vllm:iteration_tokens_total_sum{{model_name="{MODEL}",{steps}}} 40.0',
        f"vllm:generation_tokens_total{own} {generated}.0",
        f'vllm:request_success_total{{finished_reason="stop",model_name="{MODEL}",{router}}} 1.0',
        f'vllm:request_success_total{{finished_reason="length",model_name="{MODEL}",{router}}} 1.0',
        f"vllm:time_to_first_token_seconds_count{own} 2.0",
        f"vllm:e2e_request_latency_seconds_count{own} 2.0",
        f"vllm:time_per_output_token_seconds_count{own} ",
        f"vllm:inter_token_latency_seconds_count{own} ",
        f"quire:delivery_seconds_count{own} ",
        f"quire:schedulers_ready{own} 1.0",
        f'quire:ignored_fields_total{{method="completions",{router}}} 1.0',
        f'quire:request_errors_total{{{router},status="invalid_argument"}} 1.0',
    ):
        assert any(line in found or line == found for found in _normalized(text)), line


def _normalized(text: str) -> list[str]:
    """Lines with their labels sorted by name."""
    lines = []
    for line in text.splitlines():
        if "{" in line and not line.startswith("#"):
            name, rest = line.split("{", 1)
            labels, value = rest.rsplit("}", 1)
            line = name + "{" + ",".join(sorted(labels.split(","))) + "}" + value
        lines.append(line)
    return lines
