"""Limits on the resources of a router that one request, one text or one client can use."""

from services.router.limits.json_bounds import MAX_ITEMS, check_json, check_json_texts, num_values
from services.router.limits.large_bodies import LARGE_BODY_BYTES, LargeBodies, leave_large_bodies
from services.router.limits.stall_watch import ClientStalledError, StallWatch
from services.router.limits.text_size import TEXT_TOO_LARGE, check_text_size, num_bytes
from services.router.limits.unread_answers import UnreadAnswers

__all__ = [
    "LARGE_BODY_BYTES",
    "MAX_ITEMS",
    "TEXT_TOO_LARGE",
    "ClientStalledError",
    "LargeBodies",
    "StallWatch",
    "UnreadAnswers",
    "check_json",
    "check_json_texts",
    "check_text_size",
    "leave_large_bodies",
    "num_bytes",
    "num_values",
]
