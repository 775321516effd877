"""Limits the size of a text to tokenize."""

from __future__ import annotations

from services.router.errors import invalid

# Maximum size of one text, in bytes of UTF-8. To tokenize a text, the tokenizers library takes about 200 bytes of
# memory per byte of the text.
MAX_TEXT_BYTES = 1024 * 1024
# Error code of a larger text, which is OpenAI's.
TEXT_TOO_LARGE = "string_above_max_length"


def num_bytes(text: str) -> int:
    """Returns the number of bytes in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def check_text_size(size: int, param: str | None) -> None:
    """Raises ApiError, naming `param`, if a text to tokenize is too large. `size`: number of bytes of the text in
    UTF-8.
    """
    if size > MAX_TEXT_BYTES:
        message = f"A text to tokenize may have at most {MAX_TEXT_BYTES} bytes of UTF-8, but this one has {size}."
        raise invalid(message if param is None else f"Invalid '{param}': {message}", param, TEXT_TOO_LARGE)
