"""Extracts the content of an answer, without fields that differ each time: ids, times and usage. A whole answer and a
streamed one have the same content. Raises ValueError, LookupError, TypeError or AttributeError if the answer is broken.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from quire.bench.events import EventParser

# For each choice: text, calls as [name, arguments], and finish reason.
Choices = list[tuple[str, list[list[str]], str]]


def chat(body: bytes) -> Choices:
    return [
        (
            choice["message"]["content"] or "",
            [
                [call["function"]["name"], call["function"]["arguments"]]
                for call in choice["message"].get("tool_calls", ())
            ],
            choice["finish_reason"],
        )
        for choice in json.loads(body)["choices"]
    ]


def completion(body: bytes) -> Choices:
    return [(choice["text"], [], choice["finish_reason"]) for choice in json.loads(body)["choices"]]


def chat_stream(body: bytes) -> Choices:
    """Reads a stream of chat completions or of completions."""
    texts: dict[int, str] = {}
    calls: dict[int, list[list[str]]] = {}
    ends: dict[int, str] = {}
    for event in _until_done(body):
        for choice in event["choices"]:
            index, delta = choice["index"], choice.get("delta", choice)
            texts[index] = texts.get(index, "") + (delta.get("content") or delta.get("text") or "")
            for call in delta.get("tool_calls") or ():
                of_choice = calls.setdefault(index, [])
                if call["index"] == len(of_choice):
                    of_choice.append(["", ""])
                for place, field in enumerate(("name", "arguments")):
                    of_choice[call["index"]][place] += call["function"].get(field) or ""
            ends[index] = choice["finish_reason"] or ends.get(index, "")
    if not all(ends.values()) or not ends:
        raise ValueError("a choice has no end: no finish_reason")
    return [(texts[index], calls.get(index, []), ends[index]) for index in sorted(texts)]


def message(body: bytes) -> tuple[str, str]:
    """Reads an answer of Anthropic's API: text and stop reason."""
    answer = json.loads(body)
    return "".join(block["text"] for block in answer["content"]), answer["stop_reason"]


def message_stream(body: bytes) -> tuple[str, str]:
    events = list(_events(body))
    if events[-1]["type"] != "message_stop":
        raise ValueError("the stream was cut")
    texts = [event["delta"]["text"] for event in events if event["type"] == "content_block_delta"]
    (end,) = (event["delta"]["stop_reason"] for event in events if event["type"] == "message_delta")
    return "".join(texts), end


def response(body: bytes) -> tuple[str, str]:
    """Reads an answer of the Responses API: text and status."""
    return _response(json.loads(body))


def response_stream(body: bytes) -> tuple[str, str]:
    events = list(_events(body))
    text, end = _response(events[-1]["response"])
    if text != "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta"):
        raise ValueError("the deltas do not add up to the text")
    return text, end


def ollama(body: bytes) -> tuple[str, str]:
    """Reads an answer of Ollama's API: one line of JSON, or several if streamed."""
    lines = [json.loads(line) for line in body.splitlines() if line]
    texts = [line["response"] if "response" in line else line["message"]["content"] for line in lines]
    return "".join(texts), lines[-1]["done_reason"]


def kserve(body: bytes) -> str:
    return str(json.loads(body)["text_output"])


def kserve_stream(body: bytes) -> str:
    return "".join(event["text_output"] for event in _events(body))


def kserve_tensor(body: bytes) -> list[str]:
    return [text for output in json.loads(body)["outputs"] for text in output["data"]]


def tokens(body: bytes) -> list[int]:
    return list(json.loads(body)["tokens"])


def prompt(body: bytes) -> str:
    return str(json.loads(body)["prompt"])


def models(body: bytes) -> list[str]:
    return [model["id"] for model in json.loads(body)["data"]]


def dimensions(body: bytes) -> list[int]:
    """Reads embeddings: the length of each vector."""
    return [len(one["embedding"]) for one in json.loads(body)["data"]]


def _response(answer: dict[str, Any]) -> tuple[str, str]:
    return "".join(part["text"] for item in answer["output"] for part in item["content"]), answer["status"]


def _events(body: bytes) -> Iterator[dict[str, Any]]:
    for data in EventParser().feed(body):
        event = json.loads(data)
        if event.get("error") is not None:
            raise ValueError(f"an error in the stream: {event['error']}")
        yield event


def _until_done(body: bytes) -> Iterator[dict[str, Any]]:
    end = b"data: [DONE]\n\n"
    if not body.endswith(end):
        raise ValueError("the stream was cut")
    return _events(body.removesuffix(end))
