"""`quire serve A B C`: a chat model, an encoder and a reranker behind one address, and two versions of one name."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from quire import Client
from tests.e2e.conftest import Server, serving
from tests.e2e.test_classification import save_classifier
from tests.e2e.test_embeddings import CHAT_MODEL, encoder_directory
from tests.e2e.test_several_parts import processes
from tests.fakes.waiting import HANG_S, wait_until

__all__ = ["encoder_directory"]

CHAT, ENCODER, RERANKER = "quire-chat", "encoder", "reranker"
PROMPT = "Count from 3 to 43."
DOCUMENTS = ["Hello", "The sum is twelve.", "It rains in Bonn."]
PARTS = ["gateway", "router", *(f"{kind}-{index}" for kind in ("scheduler", "worker") for index in range(3))]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, encoder_directory: Path) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("models")
    shutil.copytree(encoder_directory, directory / ENCODER)
    (directory / RERANKER).mkdir()
    save_classifier(directory / RERANKER, num_labels=1)
    models = [str(CHAT_MODEL), str(directory / ENCODER), str(directory / RERANKER)]
    with serving(*models, model=CHAT) as running:
        until_listed(running, CHAT, ENCODER, RERANKER)
        yield running


def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=HANG_S)


def until_listed(server: Server, *names: str) -> None:
    """The server is healthy as soon as one of its models is served."""
    wait_until(lambda: {card.id for card in client(server).models.list()} >= set(names), 0.1)


def ask(server: Server, path: str, body: dict[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(server.url + path, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=HANG_S) as reply:
        return json.loads(reply.read())


def refusal(server: Server, path: str, body: dict[str, Any]) -> tuple[int, str]:
    with pytest.raises(urllib.error.HTTPError) as caught:
        ask(server, path, body)
    return caught.value.code, json.loads(caught.value.read())["error"]["message"]


def story(server: Server, model: str = CHAT) -> str:
    stream = client(server).chat.completions.create(
        model=model, messages=[{"role": "user", "content": PROMPT}], temperature=0, max_tokens=100, stream=True
    )
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream)


def vector(server: Server) -> list[float]:
    return client(server).embeddings.create(model=ENCODER, input="Hello", encoding_format="float").data[0].embedding


def test_every_api_lists_all_models(fleet: Server) -> None:
    cards = {card.id: card.to_dict() for card in client(fleet).models.list()}
    assert {name: cards[name]["tasks"] for name in (CHAT, ENCODER, RERANKER)} == {
        CHAT: ["generate", "embed"],
        ENCODER: ["embed"],
        RERANKER: ["classify"],
    }
    with Client(fleet.address) as typed:
        assert {CHAT, ENCODER, RERANKER} <= {model.name for model in typed.models()}
    for name in (CHAT, ENCODER, RERANKER):
        with urllib.request.urlopen(f"{fleet.url}/v2/models/{name}/ready", timeout=HANG_S) as reply:
            assert reply.status == 200
        assert ask(fleet, f"/v2/models/{name}")["name"] == name


def test_the_chat_model_answers_each_generating_api(fleet: Server) -> None:
    messages = [{"role": "user", "content": PROMPT}]
    whole = ask(
        fleet, "/v1/chat/completions", {"model": CHAT, "messages": messages, "temperature": 0, "max_tokens": 100}
    )
    text = whole["choices"][0]["message"]["content"]
    assert text == story(fleet) != ""
    complete = client(fleet).completions.create
    streamed = complete(model=CHAT, prompt="x", stream=True, temperature=0, max_tokens=8)
    assert complete(model=CHAT, prompt="x", temperature=0, max_tokens=8).choices[0].text == "".join(
        chunk.choices[0].text for chunk in streamed
    )
    response = ask(fleet, "/v1/responses", {"model": CHAT, "input": PROMPT, "temperature": 0, "max_output_tokens": 100})
    assert response["output"][-1]["content"][0]["text"] == text
    anthropic = ask(fleet, "/v1/messages", {"model": CHAT, "messages": messages, "temperature": 0, "max_tokens": 100})
    assert anthropic["content"][-1]["text"] == text
    ollama = ask(
        fleet, "/api/chat", {"model": CHAT, "messages": messages, "stream": False, "options": {"temperature": 0}}
    )
    assert ollama["message"]["content"].startswith(text[:20])
    with Client(fleet.address) as typed:
        assert typed.chat([{"role": "user", "content": PROMPT}], model=CHAT, temperature=0, max_tokens=100).text == text
        with typed.stream_chat([{"role": "user", "content": "Hi"}], model=CHAT, temperature=0, max_tokens=8) as stream:
            assert "".join(delta.text for delta in stream)


def test_the_encoder_and_the_reranker_answer_what_they_can(fleet: Server) -> None:
    embedding = vector(fleet)
    ranks = ask(fleet, "/v1/rerank", {"model": RERANKER, "query": "Hello", "documents": DOCUMENTS})["results"]
    scores = ask(fleet, "/v1/score", {"model": RERANKER, "text_1": "Hello", "text_2": DOCUMENTS})["data"]
    assert [entry["index"] for entry in ranks] == sorted(range(3), key=lambda index: -scores[index]["score"])
    assert ask(fleet, "/classify", {"model": RERANKER, "input": "Hello"})["data"][0]["num_classes"] == 1
    similar = ask(fleet, "/v1/rerank", {"model": ENCODER, "query": "Hello", "documents": DOCUMENTS, "top_n": 1})
    assert similar["results"][0]["index"] == 0
    with Client(fleet.address) as typed:
        assert typed.embed(["Hello"], model=ENCODER).vectors[0] == pytest.approx(embedding, abs=1e-7)
        typed_scores = typed.score("Hello", DOCUMENTS, model=RERANKER).scores
        assert list(typed_scores) == pytest.approx([entry["score"] for entry in scores], abs=1e-6)
    assert len(ask(fleet, "/v1/embeddings", {"model": CHAT, "input": "Hello"})["data"][0]["embedding"]) != len(
        embedding
    )


def test_a_request_for_no_model_or_for_one_that_cannot_is_refused(fleet: Server) -> None:
    messages = {"messages": [{"role": "user", "content": "Hello"}]}
    code, message = refusal(fleet, "/v1/chat/completions", {"model": "none", **messages})
    assert code == 404
    assert message == "The model `none` does not exist. Served here: `encoder`, `quire-chat` and `reranker`."
    code, message = refusal(fleet, "/v1/chat/completions", messages)
    assert (code, message.partition(".")[0]) == (400, "Missing required parameter: 'model'")
    assert refusal(fleet, "/v1/chat/completions", {"model": ENCODER, **messages})[0] == 400
    assert refusal(fleet, "/v1/embeddings", {"model": RERANKER, "input": "x"})[0] == 400


def test_metrics_tell_the_models_apart(fleet: Server) -> None:
    story(fleet), vector(fleet)
    with urllib.request.urlopen(f"{fleet.url}/metrics", timeout=HANG_S) as reply:
        lines = reply.read().decode().splitlines()
    for name in (CHAT, ENCODER, RERANKER):
        assert any(line.startswith(f'vllm:num_requests_running{{model_name="{name}"') for line in lines)
    for name in (CHAT, ENCODER):
        (count,) = (line for line in lines if line.startswith(f'vllm:prompt_tokens_total{{model_name="{name}"'))
        assert float(count.split()[-1]) > 0


@pytest.mark.parametrize(("victim", "name"), [("worker-0", CHAT), ("worker-1", ENCODER), ("scheduler-1", ENCODER)])
def test_the_models_do_not_notice_that_a_part_of_another_one_dies(fleet: Server, victim: str, name: str) -> None:
    """The killed part is started again, and its model answers as before."""
    answers: dict[str, Any] = {CHAT: lambda: story(fleet), ENCODER: lambda: vector(fleet)}
    expected = {model: answer() for model, answer in answers.items()}
    before, wrong = processes(fleet), list[Any]()
    assert sorted(before) == sorted(PARTS)
    other = next(model for model in answers if model != name)
    is_back = threading.Event()

    def go_on() -> None:
        while not is_back.is_set():
            try:
                answer = answers[other]()
            except openai.OpenAIError as error:
                answer = error
            if answer != expected[other]:
                wrong.append(answer)

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        os.kill(before[victim], signal.SIGKILL)
        assert answers[name]() == expected[name], "the request waits for the part"
        wait_until(lambda: processes(fleet).get(victim, before[victim]) != before[victim], 0.05)
        assert answers[name]() == expected[name]
    finally:
        is_back.set()
        thread.join()
    assert not wrong
    after = processes(fleet)
    assert {part for part in PARTS if after.get(part) != before[part]} == {victim}


def test_tables_give_each_model_options_of_its_own(tmp_path: Path) -> None:
    """And two of them can be versions of one name."""
    draft = CHAT_MODEL.parent / "quire-chat-draft"
    file = tmp_path / "models.toml"
    file.write_text(f"""
default-model = "chat"
block-size = 32
[[models]]
served-model-name = ["chat", "any"]
model-version = "v1"
max-model-len = 512
[[models]]
model = "{draft}"
served-model-name = ["chat", "any"]
model-version = "v2"
model-weight = 0
max-model-len = 256
""")
    with serving("--config", str(file), "--routers", "2", model="chat") as server:
        assert {"scheduler-1", "worker-1", "router-1"} <= processes(server).keys()
        until_listed(server, "chat@v1", "chat@v2")
        cards = {card.id: card.to_dict() for card in client(server).models.list()}
        lengths = {name: card["max_model_len"] for name, card in cards.items()}
        assert lengths == {"chat": 512, "any": 512, "chat@v1": 512, "chat@v2": 256}
        messages = [{"role": "user", "content": PROMPT}]
        answer = ask(server, "/v1/chat/completions", {"messages": messages, "temperature": 0, "max_tokens": 20})
        assert answer["model"] == "chat"
        names = ("chat", "any", "chat@v1", "chat@v2")
        bodies = [{"model": name, "input": "Hello"} for name in names]
        vectors = [ask(server, "/v1/embeddings", body)["data"][0]["embedding"] for body in bodies]
        assert vectors[0] == vectors[1] == vectors[2] != vectors[3]
        with urllib.request.urlopen(f"{server.url}/metrics", timeout=HANG_S) as reply:
            text = reply.read().decode()
        for version in ("v1", "v2"):
            assert f'vllm:num_requests_running{{model_name="chat",model_version="{version}"}}' in text
