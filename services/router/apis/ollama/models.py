"""Descriptions of models for Ollama's clients: names with a tag, and those details that a router knows."""

from __future__ import annotations

import hashlib
from typing import Any

from pydantic import Field

from services.router.apis.ollama.writer import timestamp
from services.router.dispatch import Placement
from services.router.errors import ApiError, ErrorKind
from services.router.http import Body
from services.router.model import ModelInfo, ServedModel

_TAG = ":latest"
_FOREVER = "9999-12-31T23:59:59Z"


class ShowBody(Body):
    """The body of /api/show."""

    known_extras = frozenset({"verbose", "options", "system", "template"})

    model: str | None = Field(
        None, min_length=1, description="Name or alias of a served model, with or without `:latest`."
    )
    name: str | None = Field(None, min_length=1, description="Older name of `model`.")


async def find(placement: Placement, name: str) -> ServedModel:
    """Finds a model by its name. The name can have the tag `:latest`, which Ollama's clients add. Raises ApiError."""
    return (await find_named(placement, name))[1]


async def find_named(placement: Placement, name: str) -> tuple[str, ServedModel]:
    """As `find`, and also returns the name without a tag that only Ollama's clients know."""
    for known in (name, name.removesuffix(_TAG)):
        try:
            return known, await placement.models.find(known)
        except ApiError as error:
            if error.kind is not ErrorKind.MODEL_NOT_FOUND:
                raise
    raise placement.models.not_found(name)


def tagged(name: str) -> str:
    """Adds Ollama's default tag to a name without a tag. A colon begins a tag only after the last slash; an earlier
    colon can be that of a host's port."""
    return name if ":" in name.rpartition("/")[2] else name + _TAG


def card(model: ServedModel, name: str) -> dict[str, Any]:
    """Returns an entry of /api/tags. The size is 0, because a router does not know it."""
    return {
        "name": tagged(name),
        "model": tagged(name),
        "modified_at": timestamp(model.created),
        "size": 0,
        "digest": hashlib.sha256(model.fingerprint.encode()).hexdigest(),
        "details": details(model),
    }


def running_card(model: ServedModel, name: str) -> dict[str, Any]:
    """Returns an entry of /api/ps."""
    return card(model, name) | {
        "expires_at": _FOREVER,
        "size_vram": 0,
        "context_length": model.info.max_model_len,
    }


def description(model: ServedModel) -> dict[str, Any]:
    """Returns the answer of /api/show."""
    info = model.info
    template = model.tokenizer.chat_template
    source = "" if template is None else template.source
    return {
        "modelfile": f"FROM {info.name}\n",
        "parameters": "",
        "template": source,
        "details": details(model),
        "model_info": {
            "general.architecture": info.architecture,
            f"{info.architecture}.context_length": info.max_model_len,
            f"{info.architecture}.vocab_size": info.vocab_size,
        },
        "capabilities": _capabilities(info, source),
        "modified_at": timestamp(model.created),
    }


def _capabilities(info: ModelInfo, template: str) -> list[str]:
    """Returns the names of what the model can do. As in Ollama, only models that do not generate have "embedding"."""
    if "generate" not in info.tasks:
        return ["embedding"] if "embed" in info.tasks else []
    capabilities = ["completion"]
    if "tools" in template:
        capabilities.append("tools")
    if "enable_thinking" in template or "reasoning_content" in template:
        capabilities.append("thinking")
    return capabilities


def details(model: ServedModel) -> dict[str, Any]:
    info = model.info
    return {
        "parent_model": "",
        "format": "safetensors",
        "family": info.architecture,
        "families": [info.architecture],
        "parameter_size": "",
        "quantization_level": info.dtype,
    }
