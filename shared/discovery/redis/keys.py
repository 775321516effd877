"""Names and contents of the keys in Redis."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from shared.discovery.parts import Kind, Part


def keys_of(prefix: str, kind: Kind) -> tuple[str, str, str]:
    """Returns the keys of the leases, of the parts, and of the last changes."""
    return f"{prefix}:{kind}:leases", f"{prefix}:{kind}:parts", f"{prefix}:{kind}:changes"


def describe(part: Part) -> str:
    """Returns the description that Redis stores under the part's address."""
    fields: dict[str, str | int] = {"boot_id": part.boot_id, "model": part.model, "version": part.version}
    if part.kv_tokens:
        fields["kv_tokens"] = part.kv_tokens
    return json.dumps(fields, separators=(",", ":"))


def mark_of(model: str) -> str:
    """Returns a text that is in the description of every part of this model, and in no other; empty without a model."""
    return f'"model":{json.dumps(model)}' if model else ""


def read_part(address: str, description: bytes) -> Part | None:
    """Returns None if the description cannot be read. Another release may leave fields out, or add some."""
    try:
        fields = json.loads(description)
        boot_id, model, version = texts = [fields.get(key, "") for key in ("boot_id", "model", "version")]
        kv_tokens = fields.get("kv_tokens", 0)
    except (ValueError, AttributeError):
        return None
    is_readable = all(isinstance(text, str) for text in texts) and type(kv_tokens) is int and kv_tokens >= 0
    return Part(address, boot_id, model, version, kv_tokens) if is_readable else None


def read_parts(fields: Sequence[bytes], known: Mapping[str, Part]) -> tuple[dict[str, Part], str]:
    """Reads names and values of the hash of parts. Returns the parts by address, and the version. Takes parts that are
    `known` from there, and leaves out parts that cannot be read."""
    version = ""
    parts: dict[str, Part] = {}
    for name, value in zip(fields[::2], fields[1::2], strict=True):
        if not name:
            version = value.decode()
            continue
        address = name.decode(errors="replace")
        before = known.get(address)
        if before is not None and describe(before).encode() == value:
            part: Part | None = before
        else:
            part = read_part(address, value)
        if part is not None:
            parts[address] = part
    return parts, version


def read_changes(fields: Sequence[bytes | None], known: Mapping[str, Part]) -> dict[str, Part]:
    """Reads addresses that have changed, each with its description, None if it is gone. Returns the `known` parts with
    these changes."""
    parts = dict(known)
    for name, value in zip(fields[::2], fields[1::2], strict=True):
        assert name is not None
        address = name.decode(errors="replace")
        part = None if value is None else read_part(address, value)
        parts.pop(address, None)
        if part is not None:
            parts[address] = part
    return parts
