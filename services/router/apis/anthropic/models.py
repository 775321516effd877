"""Descriptions of models in Anthropic's format. Anthropic's clients use the same paths as OpenAI's; the header
`anthropic-version` distinguishes them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from services.router.errors import invalid
from services.router.model import ServedModel

ANTHROPIC_VERSION_HEADER = "anthropic-version"
MAX_MODELS_PER_PAGE = 1000


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


def anthropic_list(cards: Sequence[dict[str, Any]], limit: int | None, after_id: str, before_id: str) -> dict[str, Any]:
    """Returns a page of the list of models. `limit`: maximum number of models on it; None: all. `after_id` and
    `before_id`: the page begins after, or ends before, the model of this name; empty: no such bound. Raises ApiError.
    """
    if limit is not None and not 1 <= limit <= MAX_MODELS_PER_PAGE:
        raise invalid(f"Invalid 'limit': expected 1 to {MAX_MODELS_PER_PAGE:,}, but got {limit}.", "limit")
    ids = [card["id"] for card in cards]
    start = _index(ids, after_id, "after_id") + 1 if after_id else 0
    end = _index(ids, before_id, "before_id") if before_id else len(ids)
    num_listed = max(0, end - start)
    num_shown = num_listed if limit is None else min(limit, num_listed)
    # A page before a model has its nearest predecessors.
    first = end - num_shown if before_id and not after_id else start
    page = cards[first : first + num_shown]
    return {
        "data": page,
        "has_more": num_shown < num_listed,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
    }


def _index(ids: Sequence[str], name: str, param: str) -> int:
    if name not in ids:
        raise invalid(f"Invalid '{param}': there is no model of this name.", param)
    return ids.index(name)
