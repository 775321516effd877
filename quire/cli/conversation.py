"""A conversation with a model: the turns so far, and streamed answers."""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from openai import OpenAI


@dataclass(frozen=True, slots=True)
class Figures:
    """Timing of one answer, in seconds and tokens. `rate`: tokens per second after the first token, None for fewer than
    two tokens."""

    time_to_first_token: float
    num_tokens: int
    rate: float | None

    def __str__(self) -> str:
        text = f"{self.num_tokens} tokens, first after {self.time_to_first_token * 1000:.0f} ms"
        return text if self.rate is None else f"{text}, then {self.rate:.1f} tokens/s"


class Conversation:
    """Keeps all turns of a conversation and sends them with each question. `options`: further request fields, such as
    temperature."""

    def __init__(self, client: OpenAI, model: str, system: str, options: dict[str, float | int]) -> None:
        self._client = client
        self._model = model
        self._options = options
        self.system = system
        self.turns: list[dict[str, str]] = []
        # Timing of the last answer, if it was complete.
        self.figures: Figures | None = None

    def reset(self) -> None:
        self.turns.clear()

    def answer(self, text: str) -> Generator[str, None, None]:
        """Sends `text` and yields the answer piece by piece. Closing the generator early stops the generation. The
        question and the pieces that have arrived are kept as turns. If no piece has arrived, the question is not kept
        either. Raises openai.APIError."""
        self.figures = None
        pieces: list[str] = []
        start = time.monotonic()
        first = last = start
        system = [{"role": "system", "content": self.system}] if self.system else []
        messages: Any = [*system, *self.turns, {"role": "user", "content": text}]
        try:
            with self._client.chat.completions.create(
                model=self._model,
                messages=messages,
                stream=True,
                stream_options={"include_usage": True},
                **self._options,  # type: ignore[call-overload]  # their names are known at run time
            ) as stream:
                for chunk in stream:
                    if chunk.usage is not None:
                        count = chunk.usage.completion_tokens
                        rate = (count - 1) / (last - first) if count > 1 and last > first else None
                        self.figures = Figures(first - start, count, rate)
                    for choice in chunk.choices:
                        if choice.delta.content:
                            last = time.monotonic()
                            first = last if not pieces else first
                            pieces.append(choice.delta.content)
                            yield choice.delta.content
        finally:
            if pieces:
                self.turns += [{"role": "user", "content": text}, {"role": "assistant", "content": "".join(pieces)}]
