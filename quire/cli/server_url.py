"""Checks and normalizes a server URL that the user gives."""

from __future__ import annotations

from urllib.parse import urlsplit

from shared.config import ConfigError


def server_root(url: str) -> str:
    """Returns the URL without a trailing /v1 or slash. Users give URLs with and without them."""
    return url.rstrip("/").removesuffix("/v1")


def check_url(url: str) -> None:
    """Raises ConfigError if `url` is not an http or https URL with a host."""
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and "@" not in parts.netloc
    except ValueError:  # The port is not a number, or the text in brackets is not an IPv6 address.
        is_usable = False
    if not is_usable:
        raise ConfigError(f"{url!r} is not a URL: use http://host:port")
