"""The openai SDK, pointed at the gateway, needs nothing changed."""

from __future__ import annotations

import json
import subprocess
import urllib.request

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.e2e.conftest import ROOT, Server
from tests.e2e.parts import metric, num_sequences, pid_of
from tests.e2e.worker_script import go_on, stop_after, stop_at, wait_stopped
from tests.fakes.waiting import wait_until

QUESTION: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is 2 plus 3?"}]


@pytest.fixture
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def test_chat(client: openai.OpenAI, server: Server) -> None:
    answer = client.chat.completions.create(model=server.model, messages=QUESTION, temperature=0)
    assert "5" in (answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_streamed_chat_says_the_same(client: openai.OpenAI, server: Server) -> None:
    whole = client.chat.completions.create(model=server.model, messages=QUESTION, temperature=0)
    stream = client.chat.completions.create(
        model=server.model, messages=QUESTION, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].choices == []


def test_a_second_turn_finds_the_first_one_cached(client: openai.OpenAI, server: Server) -> None:
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Count from 40 to 55, please."}]

    def ask(**extra: object) -> tuple[str, int]:
        answer = client.chat.completions.create(
            model=server.model, messages=messages, temperature=0, extra_body=extra or None
        )
        assert answer.usage is not None
        assert answer.usage.prompt_tokens_details is not None
        return answer.choices[0].message.content or "", answer.usage.prompt_tokens_details.cached_tokens or 0

    first, num_found = ask(cache_salt="a test of its own")
    assert num_found == 0
    messages += [{"role": "assistant", "content": first}, {"role": "user", "content": "And from 3 to 5?"}]
    again, num_found = ask(cache_salt="a test of its own")
    assert num_found >= 64
    assert ask(cache_salt="another") == (again, 0)
    request = urllib.request.Request(f"{server.url}/reset_prefix_cache", data=b"{}", method="POST")
    with urllib.request.urlopen(request) as response:
        assert response.status == 200
    assert ask(cache_salt="a test of its own") == (again, 0)


def test_n_choices_are_different_samples(client: openai.OpenAI, server: Server) -> None:
    answer = client.chat.completions.create(
        model=server.model, messages=[{"role": "user", "content": "Tell me a story."}], n=4, temperature=1.5, seed=3
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert len({choice.message.content for choice in answer.choices}) > 1


def test_completions(client: openai.OpenAI, server: Server) -> None:
    answer = client.completions.create(model=server.model, prompt=["one two", "three"], max_tokens=4, temperature=0)
    assert [choice.index for choice in answer.choices] == [0, 1]


def test_models(client: openai.OpenAI, server: Server) -> None:
    assert [model.id for model in client.models.list()] == [server.model]
    assert client.models.retrieve(server.model).id == server.model


def test_errors_are_typed(client: openai.OpenAI, server: Server) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-none", messages=QUESTION)
    assert missing.value.code == "model_not_found"
    assert missing.value.param == "model"
    with pytest.raises(openai.BadRequestError) as hot:
        client.chat.completions.create(model=server.model, messages=QUESTION, temperature=9)
    assert hot.value.param == "temperature"


async def test_the_async_client(server: Server) -> None:
    client = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    stream = await client.chat.completions.create(model=server.model, messages=QUESTION, temperature=0, stream=True)
    text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    assert "5" in text
    completion = await client.completions.create(model=server.model, prompt="one two", max_tokens=4, temperature=0)
    pieces = await client.completions.create(
        model=server.model, prompt="one two", max_tokens=4, temperature=0, stream=True
    )
    assert "".join([chunk.choices[0].text async for chunk in pieces]) == completion.choices[0].text
    assert [model.id async for model in client.models.list()] == [server.model]
    with pytest.raises(openai.NotFoundError) as missing:
        await client.chat.completions.create(model="gpt-none", messages=QUESTION)
    assert missing.value.code == "model_not_found"
    assert missing.value.param == "model"
    with pytest.raises(openai.BadRequestError) as refused:
        await client.chat.completions.create(model=server.model, messages=[])
    assert refused.value.param == "messages"


def test_curl_shows_tokens_while_the_answer_is_made(server: Server) -> None:
    """The worker stops itself twice, and each time curl has more tokens. A busy router puts several into one event."""
    body = {"model": server.model, "prompt": "Once", "max_tokens": 2_000, "ignore_eos": True, "stream": True}
    command = ["curl", "-sN", f"{server.url}/v1/completions", "-d", json.dumps(body | {"return_token_ids": True})]
    worker = pid_of("worker", server)
    wait_until(lambda: not num_sequences(server))
    server.script.give(worker, stop_at(num_sequences=1, num_tokens=20), stop_after(20))
    with subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0) as curl:
        assert curl.stdout is not None
        num_tokens = 0
        try:
            # Some tokens fewer than the worker has made, because the last ones are still in the worker.
            for num_expected in (10, 30):
                wait_stopped(worker, [])
                while num_tokens < num_expected:
                    line = curl.stdout.readline()
                    assert line
                    if line.startswith(b"data: {"):
                        num_tokens += len(json.loads(line.removeprefix(b"data: "))["choices"][0]["token_ids"])
                wait_until(lambda: metric(server, "vllm:num_requests_running") == 1)
                go_on(worker)
        finally:
            curl.kill()
            go_on(worker)


def test_echo_with_logprobs_is_the_prompt_s_perplexity(client: openai.OpenAI, server: Server) -> None:
    """Twice, as the second could find the prompt in the prefix cache; transformers says what is right."""
    import torch
    import transformers

    path = ROOT / "quire" / "models" / "quire-chat"
    text = "Once upon a time there was a fox. What is 7 plus 5? It is 12, said the fox, and went home."
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    ids = tokenizer(text).input_ids
    with torch.inference_mode():
        logits = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    expected = logits[:-1].gather(1, torch.tensor(ids[1:])[:, None]).squeeze(1).tolist()
    for _ in range(2):
        answer = client.completions.create(model=server.model, prompt=text, echo=True, logprobs=0, max_tokens=0)
        logprobs = answer.choices[0].logprobs
        assert logprobs is not None
        assert logprobs.token_logprobs is not None
        assert logprobs.token_logprobs[1:] == pytest.approx(expected, abs=1e-4)
        assert answer.choices[0].text == text


def test_named_tokens_log_probabilities_are_the_likeliest_ones(client: openai.OpenAI, server: Server) -> None:
    def tops(**extra: object) -> list[dict[str, float]]:
        answer = client.chat.completions.create(
            model=server.model, messages=QUESTION, temperature=0, max_tokens=6, logprobs=True,
            extra_body={"return_tokens_as_token_ids": True, **extra},
        )  # fmt: skip
        logprobs = answer.choices[0].logprobs
        assert logprobs is not None
        assert logprobs.content is not None
        return [{top.token: top.logprob for top in entry.top_logprobs} for entry in logprobs.content]

    likeliest = tops(top_logprobs=20)
    ids = [int(name.removeprefix("token_id:")) for name in list(likeliest[0])[3:9]]
    named = tops(logprob_token_ids=ids[::-1])
    assert [set(entry) for entry in named] == [{f"token_id:{token_id}" for token_id in ids}] * len(named)
    assert list(named[0]) == [f"token_id:{token_id}" for token_id in ids]
    for one, other in zip(likeliest, named, strict=True):
        assert {name: one[name] for name in other if name in one} == {
            name: other[name] for name in other if name in one
        }
