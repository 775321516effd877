"""Size limits of a request between the client and the router."""

from __future__ import annotations

# Maximum size of an HTTP request's body, and of a message of the gRPC API. Even with ENVELOPE_BYTES added, a request
# stays below 4 MiB, gRPC's default limit. 4 MB hold about a million tokens of text.
DEFAULT_MAX_BODY_BYTES = 4_000_000
# Allowance for the gRPC message around an HTTP body. The message also contains the request's Content-Type header, which
# can be as long as the limit on headers permits.
ENVELOPE_BYTES = 128 * 1024
