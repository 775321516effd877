"""How large a request may be on its way from a client to a router."""

from __future__ import annotations

# Of an HTTP request's body, or of a message of the typed API. With what goes around it, it stays below 4 MiB, which a
# gRPC peer takes unless it was told otherwise. It is some million tokens of text.
DEFAULT_MAX_BODY_BYTES = 4_000_000
# Of the message around an HTTP body: its content type, which is a header.
ENVELOPE_BYTES = 128 * 1024
