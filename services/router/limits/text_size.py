"""How long a text may be that becomes tokens."""

from __future__ import annotations

from services.router.errors import invalid

# Of one text, in UTF-8. The tokenizer's library takes some 200 bytes of memory for each of them while it works.
MAX_TEXT_BYTES = 1024 * 1024


def num_bytes(text: str) -> int:
    """Bytes of UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def check_text_size(size: int, param: str | None) -> None:
    """`size`: of a text to tokenize, in bytes of UTF-8. Raises ApiError where it is too large, naming `param`."""
    if size > MAX_TEXT_BYTES:
        message = f"A text to tokenize may have at most {MAX_TEXT_BYTES} bytes of UTF-8, but this has {size}."
        raise invalid(message if param is None else f"Invalid '{param}': {message}", param, "string_above_max_length")
