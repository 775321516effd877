"""What an answer says, without what may differ in each attempt: ids, times, borders of chunks, counts of cached tokens.

Raises IncompleteError if an answer breaks off, and ValueError, LookupError or TypeError if it is wrong in itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

# Largest difference between two log probabilities, or two numbers of a vector, that are equal.
TOLERANCE = 1e-4


class IncompleteError(Exception):
    """The answer breaks off, with an error or without one."""


@dataclass(slots=True)
class Choice:
    text: str = ""
    reasoning: str = ""
    token_ids: list[int] = field(default_factory=list)
    # Names and arguments of tool calls, by their index.
    calls: dict[int, list[str]] = field(default_factory=dict)
    # For each token: its text or id, its log probability, and those of the likeliest tokens.
    logprobs: list[Any] = field(default_factory=list)
    finish_reason: str = ""

    def finish(self, reason: str | None) -> None:
        if reason:
            if self.finish_reason:
                raise ValueError("a choice ended twice")
            self.finish_reason = reason


@dataclass(slots=True)
class Answer:
    choices: dict[int, Choice] = field(default_factory=dict)
    vectors: dict[int, list[float]] = field(default_factory=dict)
    # Numbers of prompt and completion tokens.
    usage: tuple[int, int] | None = None

    def choice(self, index: int) -> Choice:
        return self.choices.setdefault(index, Choice())

    def use(self, usage: Mapping[str, Any] | None, prompt: str, completion: str) -> None:
        if usage is not None:
            if self.usage is not None:
                raise ValueError("usage came twice")
            self.usage = (int(usage.get(prompt, 0)), int(usage.get(completion, 0)))

    def complete(self) -> Answer:
        """Returns the answer. Raises IncompleteError if it is not whole."""
        if not self.choices and not self.vectors:
            raise IncompleteError("the answer is empty")
        if not all(choice.finish_reason for choice in self.choices.values()):
            raise IncompleteError("a choice has no end")
        if self.usage is None:
            raise IncompleteError("the answer has no usage")
        if self.choices and all(choice.token_ids for choice in self.choices.values()):
            counted = sum(len(choice.token_ids) for choice in self.choices.values())
            if counted != self.usage[1]:
                raise ValueError(f"{counted} token ids, but a usage of {self.usage[1]}")
        return self


def over_http(events: Sequence[str], is_stream: bool) -> Answer:
    """Reads an answer of OpenAI's API: chat, completions or embeddings; streamed or whole."""
    if is_stream:
        if not events or events[-1] != "[DONE]":
            raise IncompleteError("the stream ended before [DONE]")
        if "[DONE]" in events[:-1]:
            raise ValueError("the stream ended twice")
        events = events[:-1]
    return _read_http(events).complete()


def begun_over_http(events: Iterable[str]) -> Answer:
    """Reads what a client has received of a stream that it left, or that broke off."""

    def has_ended(event: str) -> bool:
        return event == "[DONE]" or json.loads(event).get("error") is not None

    return _read_http(takewhile(lambda event: not has_ended(event), events))


def _read_http(events: Iterable[str]) -> Answer:
    answer = Answer()
    for text in events:
        event = json.loads(text)
        if event.get("error") is not None:
            raise IncompleteError(f"an error in the answer: {event['error']}")
        for entry in event.get("choices", ()):
            _add_choice(answer.choice(entry["index"]), entry)
        for entry in event.get("data", ()):
            answer.vectors[entry["index"]] = entry["embedding"]
        answer.use(event.get("usage"), "prompt_tokens", "completion_tokens")
    return answer


def _add_choice(choice: Choice, entry: Mapping[str, Any]) -> None:
    said = entry.get("delta") or entry.get("message") or {}
    new = said.get("content") or entry.get("text") or ""
    if choice.finish_reason and (new or entry.get("token_ids")):
        raise ValueError("output after the end of a choice")
    choice.text += new
    choice.reasoning += said.get("reasoning_content") or ""
    choice.token_ids += entry.get("token_ids") or ()
    for position, call in enumerate(said.get("tool_calls") or ()):
        names = choice.calls.setdefault(call.get("index", position), ["", ""])
        names[0] += call["function"].get("name") or ""
        names[1] += call["function"].get("arguments") or ""
    logprobs = entry.get("logprobs") or {}
    choice.logprobs += [
        [one["token"], one["logprob"], [[top["token"], top["logprob"]] for top in one["top_logprobs"]]]
        for one in logprobs.get("content") or ()
    ]
    if "token_logprobs" in logprobs:
        choice.logprobs += map(
            list, zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True)
        )
    choice.finish(entry.get("finish_reason"))


def over_grpc(events: Iterable[str]) -> Answer:
    """Reads an answer of the typed API: its messages as JSON, with the protos' names."""
    return begun_over_grpc(events).complete()


def begun_over_grpc(events: Iterable[str]) -> Answer:
    """Reads what a client has received of an answer that it left, or that broke off."""
    answer = Answer()
    for text in events:
        event = json.loads(text)
        if "delta" in event:
            _add_delta(answer.choice(event["delta"].get("choice_index", 0)), event["delta"])
        if "embedding" in event:
            answer.vectors[event["embedding"].get("index", 0)] = event["embedding"]["values"]
        if "final" in event:
            answer.use(event["final"].get("usage", {}), "prompt_tokens", "completion_tokens")
    return answer


def _add_delta(choice: Choice, delta: Mapping[str, Any]) -> None:
    if choice.finish_reason:
        raise ValueError("output after the end of a choice")
    choice.text += delta.get("text", "")
    choice.reasoning += delta.get("reasoning", "")
    choice.token_ids += delta.get("token_ids", ())
    choice.logprobs += delta.get("logprobs", ())
    for call in delta.get("tool_calls", ()):
        names = choice.calls.setdefault(call.get("index", 0), ["", ""])
        names[0] += call.get("name", "")
        names[1] += call.get("arguments", "")
    choice.finish(delta.get("finish_reason"))


def difference(one: Answer, other: Answer) -> str | None:
    """Describes the first difference between two answers, None if they are equal."""
    if one.choices.keys() != other.choices.keys() or one.vectors.keys() != other.vectors.keys():
        return (
            f"{len(one.choices)} choices and {len(one.vectors)} vectors, not {len(other.choices)}, {len(other.vectors)}"
        )
    for index, choice in one.choices.items():
        for name in ("text", "reasoning", "token_ids", "calls", "finish_reason", "logprobs"):
            ours, theirs = getattr(choice, name), getattr(other.choices[index], name)
            if not _equal(ours, theirs):
                return f"{name} of choice {index}: {_place(ours, theirs)}"
    for index, vector in one.vectors.items():
        if not _equal(vector, other.vectors[index]):
            return f"vector {index} differs"
    return None if one.usage == other.usage else f"usage {one.usage}, not {other.usage}"


def contradiction(begun: Answer, other: Answer) -> str | None:
    """Describes the first difference between the beginning of an answer and another answer, of which perhaps also only
    the beginning is known. None if they can be the beginnings of the same answer."""
    for index, choice in begun.choices.items():
        other_choice = other.choices.get(index)
        if other_choice is None:
            if not all(one.finish_reason for one in other.choices.values()):
                continue  # it has not begun there
            return f"a choice {index}, which the other answer does not have"
        for name in ("text", "reasoning", "token_ids", "logprobs"):
            ours, theirs = getattr(choice, name), getattr(other_choice, name)
            length = min(len(ours), len(theirs))
            is_too_long = len(ours) > length and other_choice.finish_reason
            is_too_short = len(theirs) > length and choice.finish_reason
            if is_too_long or is_too_short or not _equal(ours[:length], theirs[:length]):
                return f"{name} of choice {index}: {_place(ours, theirs)}"
        if choice.finish_reason and other_choice.finish_reason not in ("", choice.finish_reason):
            return f"choice {index} ended with {choice.finish_reason}, not {other_choice.finish_reason}"
        for number, call in choice.calls.items():
            theirs = other_choice.calls.get(number, ["", ""])
            if other_choice.finish_reason and not all(map(str.startswith, theirs, call)):
                return f"call {number} of choice {index}: {call}, not {theirs}"
    for index, vector in begun.vectors.items():
        if not _equal(vector, other.vectors.get(index, vector)):
            return f"vector {index} differs"
    return None


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float | int):
        return abs(one - other) <= TOLERANCE
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(value, other[key]) for key, value in one.items())
    return bool(one == other)


def _place(one: Any, other: Any) -> str:
    """Shows two values from their first difference on."""
    if not isinstance(one, str | list):
        return f"{one!r}, not {other!r}"
    pairs = enumerate(zip(one, other, strict=False))
    first = next((at for at, (a, b) in pairs if not _equal(a, b)), min(len(one), len(other)))
    return (
        f"from {first} on {one[first : first + 20]!r}, not {other[first : first + 20]!r} (of {len(one)}, {len(other)})"
    )
