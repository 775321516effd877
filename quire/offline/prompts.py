"""What `LLM` may be asked, in vLLM's forms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Message = Mapping[str, Any]
PromptLike = str | Sequence[int] | Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Prompt:
    """Exactly one of text, token ids and messages is there."""

    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    messages: tuple[Message, ...] | None = None
    cache_salt: str | None = None


def parse_prompts(prompts: PromptLike | Sequence[PromptLike]) -> list[Prompt]:
    """One prompt or several: texts, lists of token ids, or mappings with `prompt` or `prompt_token_ids`, and
    `cache_salt`. Raises TypeError, ValueError."""
    if isinstance(prompts, (str, Mapping)) or _are_token_ids(prompts):
        return [_parse(prompts, "prompts")]
    return [_parse(prompt, f"prompts[{index}]") for index, prompt in enumerate(prompts)]


def parse_conversations(messages: Sequence[Message] | Sequence[Sequence[Message]]) -> list[Prompt]:
    """One conversation or several. Raises TypeError, ValueError."""
    if messages and isinstance(messages[0], Mapping):
        return [_conversation(messages, "messages")]
    return [_conversation(one, f"messages[{index}]") for index, one in enumerate(messages)]


def _parse(prompt: object, name: str) -> Prompt:
    if isinstance(prompt, str):
        return Prompt(text=prompt)
    if isinstance(prompt, Mapping):
        known = {"prompt", "prompt_token_ids", "cache_salt"}
        if others := sorted(map(str, prompt.keys() - known)):
            raise ValueError(f"{name} has {others[0]!r}, which is not supported")
        if len(prompt.keys() & {"prompt", "prompt_token_ids"}) != 1:
            raise ValueError(f"{name} needs either 'prompt' or 'prompt_token_ids'")
        key = "prompt" if "prompt" in prompt else "prompt_token_ids"
        inner = _parse(prompt[key], f"{name}[{key!r}]")
        if isinstance(prompt[key], Mapping) or (inner.text is None) == (key == "prompt"):
            raise TypeError(f"{name}[{key!r}] is no {'text' if key == 'prompt' else 'list of token ids'}")
        return Prompt(inner.text, inner.token_ids, cache_salt=prompt.get("cache_salt"))
    if _are_token_ids(prompt):
        return Prompt(token_ids=tuple(prompt))  # type: ignore[arg-type]
    raise TypeError(f"{name} is {type(prompt).__name__}: use a text, a list of token ids or a mapping")


def _are_token_ids(prompt: object) -> bool:
    if isinstance(prompt, (str, bytes, Mapping)) or not isinstance(prompt, Sequence) or not prompt:
        return False
    return all(isinstance(token_id, int) and 0 <= token_id < 2**32 for token_id in prompt)


def _conversation(messages: object, name: str) -> Prompt:
    if not isinstance(messages, Sequence) or isinstance(messages, (str, bytes)) or not messages:
        raise TypeError(f"{name} is no list of messages")
    return Prompt(messages=tuple(_message(message, f"{name}[{index}]") for index, message in enumerate(messages)))


def _message(message: object, name: str) -> Message:
    """With content as one text. Raises TypeError, ValueError."""
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise TypeError(f"{name} is no message: use a mapping with 'role' and 'content'")
    content = message.get("content")
    if isinstance(content, str):
        return message
    if not isinstance(content, Sequence):
        raise TypeError(f"{name}['content'] is {type(content).__name__}: use a text, or a list of text parts")
    for index, part in enumerate(content):
        if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise ValueError(f"{name}['content'][{index}] is no text part; others are not supported")
    return {**message, "content": "\n".join(part["text"] for part in content)}
