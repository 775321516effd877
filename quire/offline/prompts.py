"""Parses the prompts of `LLM` in vLLM's formats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeGuard

from quire.client.options import TemplateOptions

Message = Mapping[str, Any]
PromptLike = str | Sequence[int] | Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt: exactly one of text, token ids and messages is set."""

    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    messages: tuple[Message, ...] | None = None
    # For messages: tools and chat template options.
    template: TemplateOptions | None = None
    cache_salt: str | None = None
    # Name of the prompt in error messages: the caller's argument or an entry of the argument, such as prompts[3].
    name: str = field(default="prompts", compare=False)


def parse_prompts(prompts: PromptLike | Sequence[PromptLike]) -> list[Prompt]:
    """Parses one prompt or several. Each is a text, a list of token ids, or a mapping with `prompt` or
    `prompt_token_ids` and optionally `cache_salt`. Raises TypeError, ValueError."""
    if isinstance(prompts, (str, Mapping)) or _are_token_ids(prompts):
        return [_parse(prompts, "prompts")]
    return [_parse(prompt, f"prompts[{index}]") for index, prompt in enumerate(prompts)]


def parse_texts(texts: str | Sequence[str], name: str) -> list[Prompt]:
    """Parses one text or a list of texts. Raises TypeError for an entry that is not a text."""
    given = [texts] if isinstance(texts, str) else texts
    for index, text in enumerate(given):
        if not isinstance(text, str):
            raise TypeError(f"{name}[{index}] is {type(text).__name__}: use a text")
    return [
        Prompt(text=text, name=name if given is not texts else f"{name}[{index}]") for index, text in enumerate(given)
    ]


def _parse(prompt: object, name: str) -> Prompt:
    if isinstance(prompt, str):
        return Prompt(text=prompt, name=name)
    if isinstance(prompt, Mapping):
        known = {"prompt", "prompt_token_ids", "cache_salt"}
        if others := sorted(map(str, prompt.keys() - known)):
            raise ValueError(f"{name} has {others[0]!r}, which is not supported")
        if len(prompt.keys() & {"prompt", "prompt_token_ids"}) != 1:
            raise ValueError(f"{name} needs either 'prompt' or 'prompt_token_ids'")
        key = "prompt" if "prompt" in prompt else "prompt_token_ids"
        inner = _parse(prompt[key], f"{name}[{key!r}]")
        if isinstance(prompt[key], Mapping) or (inner.text is None) == (key == "prompt"):
            raise TypeError(f"{name}[{key!r}] is not a {'text' if key == 'prompt' else 'list of token ids'}")
        return replace(inner, cache_salt=prompt.get("cache_salt"), name=name)
    if _are_token_ids(prompt):
        return Prompt(token_ids=tuple(prompt), name=name)
    raise TypeError(f"{name} is {type(prompt).__name__}: use a text, a list of token ids or a mapping")


def _are_token_ids(prompt: object) -> TypeGuard[Sequence[int]]:
    if isinstance(prompt, (str, bytes, Mapping)) or not isinstance(prompt, Sequence) or not prompt:
        return False
    return all(isinstance(token_id, int) and 0 <= token_id < 2**32 for token_id in prompt)
