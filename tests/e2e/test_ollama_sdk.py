"""The ollama SDK, pointed at the gateway, needs nothing changed."""

from __future__ import annotations

from typing import Any

import httpx
import ollama
import pytest

from tests.e2e.conftest import Server

QUESTION = [{"role": "user", "content": "What is 2 plus 3?"}]
GREEDY = {"temperature": 0}


@pytest.fixture
def client(server: Server) -> ollama.Client:
    return ollama.Client(host=server.url)


def test_chat(client: ollama.Client, server: Server) -> None:
    answer = client.chat(server.model, QUESTION, options=GREEDY)
    assert "5" in (answer.message.content or "")
    assert (answer.done, answer.done_reason, answer.model) == (True, "stop", server.model)
    assert answer.eval_count is not None
    assert answer.eval_count > 1
    assert answer.prompt_eval_count is not None
    assert answer.prompt_eval_count > 1
    assert (answer.prompt_eval_duration or 0) > 0
    assert answer.total_duration == (answer.prompt_eval_duration or 0) + (answer.eval_duration or 0)


def test_a_streamed_chat_says_the_same(client: ollama.Client, server: Server) -> None:
    whole = client.chat(server.model, QUESTION, options=GREEDY)
    parts = list(client.chat(server.model, QUESTION, options=GREEDY, stream=True))
    assert "".join(part.message.content or "" for part in parts) == whole.message.content
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert len(parts) > 2
    assert (parts[-1].eval_count, parts[-1].done_reason) == (whole.eval_count, whole.done_reason)


def test_a_limit_of_tokens_is_told(client: ollama.Client, server: Server) -> None:
    answer = client.chat(server.model, QUESTION, options=GREEDY | {"num_predict": 2, "repeat_penalty": 1.1, "seed": 4})
    assert (answer.done_reason, answer.eval_count) == ("length", 2)


def test_a_tool_s_result_comes_back_in(client: ollama.Client, server: Server) -> None:
    def add(a: int, b: int) -> int:
        """Adds two numbers.

        Args:
            a: the first
            b: the second
        """
        return a + b

    call = {"function": {"name": "add", "arguments": {"a": 2, "b": 3}}}
    messages: list[dict[str, Any]] = [
        *QUESTION,
        {"role": "assistant", "content": "", "thinking": "I had better add.", "tool_calls": [call]},
        {"role": "tool", "tool_name": "add", "content": "What is 3 plus 4?"},
    ]
    answer = client.chat(server.model, messages, tools=[add], options=GREEDY, think=False)
    assert "7" in (answer.message.content or "")


def test_generate(client: ollama.Client, server: Server) -> None:
    whole = client.generate(server.model, "What is 2 plus 3?", options=GREEDY)
    assert whole.response == client.chat(server.model, QUESTION, options=GREEDY).message.content
    parts = client.generate(server.model, "What is 2 plus 3?", options=GREEDY, stream=True, keep_alive="5m")
    assert "".join(part.response or "" for part in parts) == whole.response
    briefed = client.generate(server.model, "What is 2 plus 3?", system="Be brief.", options=GREEDY)
    assert (briefed.prompt_eval_count or 0) > (whole.prompt_eval_count or 0)


def test_a_raw_prompt_goes_to_the_model_as_it_is(client: ollama.Client, server: Server) -> None:
    templated = client.generate(server.model, "one two", options={"num_predict": 4})
    raw = client.generate(server.model, "one two", raw=True, options={"num_predict": 4})
    assert (raw.prompt_eval_count or 0) < (templated.prompt_eval_count or 0)
    assert (raw.eval_count, raw.done_reason) == (4, "length")


def test_a_request_without_a_prompt_loads_the_model(client: ollama.Client, server: Server) -> None:
    assert client.generate(server.model).done_reason == "load"
    assert client.generate(server.model, keep_alive=0).done_reason == "unload"
    assert client.chat(server.model).done_reason == "load"


def test_models(client: ollama.Client, server: Server) -> None:
    (model,) = client.list().models
    assert model.model == f"{server.model}:latest"
    assert "5" in (client.chat(f"{server.model}:latest", QUESTION, options=GREEDY).message.content or "")
    (running,) = client.ps().models
    assert (running.model, running.context_length) == (model.model, 2048)
    shown = client.show(f"{server.model}:latest")
    assert "message" in (shown.template or "")
    assert shown.modelinfo is not None
    assert 2048 in shown.modelinfo.values()
    assert "completion" in (shown.capabilities or [])


def test_embed(client: ollama.Client, server: Server) -> None:
    answer = client.embed(server.model, ["What is 2 plus 3?", "x " * 5000])
    assert [len(vector) for vector in answer.embeddings] == [len(answer.embeddings[0])] * 2
    assert all(abs(sum(value * value for value in vector) - 1) < 1e-5 for vector in answer.embeddings)
    assert (answer.prompt_eval_count or 0) > 2048
    with pytest.raises(ollama.ResponseError, match="leave 'truncate' out"):
        client.embed(server.model, "x " * 5000, truncate=False)


def test_a_limit_of_any_size_is_the_context_s_at_most(client: ollama.Client, server: Server) -> None:
    options = GREEDY | {"num_predict": 32_768, "stop": ["."]}
    assert client.chat(server.model, QUESTION, options=options).done_reason == "stop"


def test_the_command_line_s_first_question(server: Server) -> None:
    assert httpx.head(server.url).status_code == 200
    assert httpx.get(server.url).text == "Ollama is running"


def test_what_is_not_served_is_said_in_ollama_s_shape(client: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError, match=r"^There is no POST /api/pull here\.") as missing:
        client.pull("llama3")
    assert missing.value.status_code == 404


def test_errors_have_ollama_s_shape(client: ollama.Client, server: Server) -> None:
    with pytest.raises(ollama.ResponseError, match="`llama-none:latest` does not exist") as missing:
        client.chat("llama-none:latest", QUESTION)
    assert missing.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match=r"options\.temperature") as hot:
        client.chat(server.model, QUESTION, options={"temperature": 9})
    assert hot.value.status_code == 400
    with pytest.raises(ollama.ResponseError, match="'suffix' is not supported"):
        client.generate(server.model, "def f(", suffix="return 1")
    wrong_method = httpx.delete(f"{server.url}/api/chat")
    assert (wrong_method.status_code, wrong_method.json()) == (405, {"error": "/api/chat does not take DELETE."})


async def test_the_async_client(server: Server) -> None:
    client = ollama.AsyncClient(host=server.url)
    parts = await client.chat(server.model, QUESTION, options=GREEDY, stream=True)
    assert "5" in "".join([part.message.content or "" async for part in parts])
    with pytest.raises(ollama.ResponseError):
        await client.chat("llama-none", QUESTION)
