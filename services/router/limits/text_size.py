"""How long a text may be that becomes tokens."""

from __future__ import annotations

from services.router.errors import ApiError, invalid

# Of one text, in UTF-8. The tokenizer's library takes some 200 bytes of memory for each of them while it works.
MAX_TEXT_BYTES = 1024 * 1024


def num_bytes(text: str) -> int:
    """Bytes of UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def text_too_long(size: int, param: str | None) -> ApiError:
    message = f"A text to tokenize may have at most {MAX_TEXT_BYTES} bytes of UTF-8, but this has {size}."
    return invalid(message if param is None else f"Invalid '{param}': {message}", param, "string_above_max_length")
