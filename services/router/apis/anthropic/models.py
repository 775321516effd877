"""The models in Anthropic's shape. Its clients ask on OpenAI's paths, with a header that no other client sends."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from services.router.model import ServedModel

ANTHROPIC_VERSION_HEADER = "anthropic-version"


def anthropic_card(model: ServedModel, name: str) -> dict[str, Any]:
    """`name`: the served name or alias that it is listed under."""
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
    """All of them on one page."""
    ids = [card["id"] for card in cards]
    return {
        "data": cards,
        "has_more": False,
        "first_id": ids[0] if ids else None,
        "last_id": ids[-1] if ids else None,
    }
