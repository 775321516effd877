"""The body of /api/generate. The chat template is applied to its prompt unless `raw` is set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from services.router.apis.ollama.options import OllamaBody, refuse
from services.router.chat import ChatRequest

MAX_TOKENS_PARAM = "options.num_predict"


class GenerateBody(OllamaBody):
    # Fields for image generation.
    not_built: ClassVar[Mapping[str, tuple[object, ...]]] = {"width": (0,), "height": (0,), "steps": (0,)}

    prompt: str | None = Field(None, description="Prompt. If there is none, the answer says that the model is loaded.")
    system: str | None = Field(None, description="System message.")
    raw: bool | None = Field(None, description="If true, the prompt is used as it is, without the chat template.")
    # Fields of features that are not implemented: fill-in-the-middle, Ollama's own chat templates (in Go's language),
    # earlier turns as token ids, and images.
    suffix: str | None = Field(None, description="Not supported.")
    template: str | None = Field(None, description="Not supported.")
    context: list[int] | None = Field(None, description="Not supported.")
    images: list[Any] | None = Field(None, description="Not supported.")

    def check(self) -> None:
        """Raises ApiError if the body uses a feature that is not implemented."""
        refuse("suffix", self.suffix)
        refuse("template", self.template)
        refuse("context", self.context)
        refuse("images", self.images)

    def to_chat(self, model: str) -> ChatRequest:
        """Converts the body to a chat request. `model`: the model's name or alias. Raises ApiError."""
        messages = [{"role": "user", "content": self.prompt or ""}]
        if self.system:
            messages.insert(0, {"role": "system", "content": self.system})
        return ChatRequest(
            model=model,
            messages=messages,
            options=self.generation_options(),
            template_kwargs=self.template_kwargs,
            messages_param="prompt",
            max_tokens_param=MAX_TOKENS_PARAM,
            clamps_max_tokens=True,
        )
