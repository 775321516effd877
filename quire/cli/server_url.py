"""The URL of a server that somebody names."""

from __future__ import annotations

from urllib.parse import urlsplit

from shared.config import ConfigError


def server_root(url: str) -> str:
    """What all paths of the server stand behind: people name it with /v1 and without."""
    return url.rstrip("/").removesuffix("/v1")


def check_url(url: str) -> None:
    """Raises ConfigError where it is none."""
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and "@" not in parts.netloc
    except ValueError:  # The port is none, or brackets hold no address.
        is_usable = False
    if not is_usable:
        raise ConfigError(f"{url!r} is no URL: use http://host:port")
