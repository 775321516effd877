"""Channel options and credentials of `Client` and `AsyncClient`."""

from __future__ import annotations

from typing import Any

# The limit on sent messages allows long prompts. The limit on received messages stays at gRPC's default of 4 MiB, which
# no message of the server exceeds. Pings detect a server that vanished without closing the connection.
CHANNEL_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_send_message_length", 32 * 1024 * 1024),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # Keep pinging while an answer sends no data.
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # Despite its name, this is the timeout of one connection attempt.
    ("grpc.min_reconnect_backoff_ms", 20_000),
    # The clients retry themselves. gRPC's library would also do it, without a pause or an end while a server that stops
    # keeps the connection open (docs/adr/0018-silent-connections.md).
    ("grpc.enable_retries", 0),
]


def credentials_metadata(api_key: str | None) -> tuple[tuple[str, str], ...]:
    return () if api_key is None else (("authorization", f"Bearer {api_key}"),)
