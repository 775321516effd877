"""Descriptions of models in Anthropic's format. Anthropic's clients use the same paths as OpenAI's; the header
`anthropic-version` distinguishes them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from services.router.model import ServedModel

ANTHROPIC_VERSION_HEADER = "anthropic-version"


def anthropic_card(model: ServedModel, name: str) -> dict[str, Any]:
    """Describes a model. `name`: the name or alias under which it is listed."""
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": datetime.fromtimestamp(model.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        "max_input_tokens": model.info.max_model_len,
        "max_tokens": model.info.max_model_len,
    }


def anthropic_list(cards: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns a list of all models, on one page."""
    ids = [card["id"] for card in cards]
    return {
        "data": cards,
        "has_more": False,
        "first_id": ids[0] if ids else None,
        "last_id": ids[-1] if ids else None,
    }
