"""/tokenize and /detokenize are each other's inverse, and agree with what generation takes and counts."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import openai
import pytest

from tests.e2e.conftest import Server
from tests.fakes.waiting import HANG_S


def post(server: Server, path: str, **body: Any) -> dict[str, Any]:
    request = urllib.request.Request(f"{server.url}{path}", data=json.dumps({"model": server.model, **body}).encode())
    with urllib.request.urlopen(request, timeout=HANG_S) as response:
        answer = json.load(response)
    assert isinstance(answer, dict)
    return answer


@pytest.mark.parametrize("text", ["What is 7 plus 5?", " two  spaces\n\tand a tab ", "Grüße aus Köln 👋🏽 你好", ""])
def test_text_comes_back_from_its_ids(server: Server, text: str) -> None:
    tokenized = post(server, "/tokenize", prompt=text, add_special_tokens=False)
    assert tokenized["count"] == len(tokenized["tokens"])
    assert post(server, "/detokenize", tokens=tokenized["tokens"]) == {"prompt": text}


def test_a_conversation_has_as_many_tokens_as_its_answer_counts(server: Server) -> None:
    messages: Any = [{"role": "user", "content": "What is 7 plus 5?"}]
    tokenized = post(server, "/tokenize", messages=messages)
    assert "What is 7 plus 5?" in post(server, "/detokenize", tokens=tokenized["tokens"])["prompt"]
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        answer = client.chat.completions.create(model=server.model, messages=messages, max_tokens=1)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == tokenized["count"]


def test_the_tokenizer_s_configuration_is_served(server: Server) -> None:
    with urllib.request.urlopen(f"{server.url}/tokenizer_info?model={server.model}", timeout=HANG_S) as response:
        info = json.load(response)
    assert "message['role']" in info["chat_template"]
    with urllib.request.urlopen(f"{server.url}/ping", timeout=HANG_S) as response:
        assert json.load(response) == {"status": "ok"}
