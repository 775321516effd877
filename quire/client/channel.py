"""How both clients reach the server."""

from __future__ import annotations

from typing import Any

# Long prompts pass. The server sends no message of more than 4 MiB, which is gRPC's own limit for what is received.
# Pings find a server that vanished without closing.
CHANNEL_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_send_message_length", 32 * 1024 * 1024),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # Pings go on however long an answer sends nothing.
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # Whatever its name says, this is how long an attempt to connect may take.
    ("grpc.min_reconnect_backoff_ms", 20_000),
]


def credentials_metadata(api_key: str | None) -> tuple[tuple[str, str], ...]:
    return () if api_key is None else (("authorization", f"Bearer {api_key}"),)
