"""Names and contents of the keys in Redis."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from shared.discovery.parts import Kind, Part


def keys_of(prefix: str, kind: Kind) -> tuple[str, str]:
    """Returns the keys of the leases and of the parts."""
    return f"{prefix}:{kind}:leases", f"{prefix}:{kind}:parts"


def describe(part: Part) -> str:
    """Returns the description that Redis stores under the part's address."""
    return json.dumps({"boot_id": part.boot_id, "model": part.model, "version": part.version}, separators=(",", ":"))


def read_part(address: str, description: bytes) -> Part | None:
    """Returns None if the description cannot be read. Another release may leave fields out, or add some."""
    try:
        fields = json.loads(description)
        texts = [fields.get(key, "") for key in ("boot_id", "model", "version")]
    except (ValueError, AttributeError):
        return None
    return Part(address, *texts) if all(isinstance(text, str) for text in texts) else None


def read_parts(reply: Sequence[bytes], known: Mapping[bytes, Part]) -> tuple[dict[bytes, Part], str]:
    """Reads names and values of the hash of parts. Returns the parts by name and value in one text, and the version.
    Takes `known` texts from there, and leaves out parts that cannot be read."""
    version = ""
    parts: dict[bytes, Part] = {}
    for name, value in zip(reply[::2], reply[1::2], strict=True):
        if not name:
            version = value.decode()
            continue
        text = name + b" " + value
        part = known.get(text) or read_part(name.decode(errors="replace"), value)
        if part is not None:
            parts[text] = part
    return parts, version
