"""Whose pages may use the server from a browser (ADR 17)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from deploy.envoy.config import ANY, LOCALHOST, GatewayConfig

# Pages that this machine serves, on any port, and programs that show pages of their own. No site can claim such an
# origin. Two patterns, as Envoy bounds their size.
_LOCAL_PAGES = r"https?://(([a-z0-9-]+\.)*localhost|127\.0\.0\.1|0\.0\.0\.0|\[::1\])(:[0-9]+)?"
_LOCAL_PROGRAMS = r"(app|file|tauri|vscode-file|vscode-webview)://.*"
# What a page may read of an answer beside its body.
_EXPOSED = (
    *("x-request-id", "request-id", "retry-after"),
    # How a gRPC-Web call ended where it brought no message; elsewhere the body says so.
    *("grpc-status", "grpc-message", "grpc-status-details-bin", "grpc-retry-pushback-ms", "quire-error"),
)
# What a page may send in any case: bodies of JSON, and what gRPC-Web's libraries add.
_ALWAYS_SENT = ("content-type", "x-grpc-web", "x-user-agent", "grpc-timeout")
# Seconds that a browser may remember what it was told.
_MAX_AGE = 600


@dataclass(frozen=True, slots=True)
class Origins:
    """Parts of Envoy's configuration, as JSON values."""

    # Rows of matchers of headers; a request for which all of a row hold is a page's that may not send it.
    refused: tuple[tuple[dict[str, Any], ...], ...]
    # The same, for the question that a browser asks first where a page may.
    preflights: tuple[tuple[dict[str, Any], ...], ...]
    # CorsPolicy.
    policy: dict[str, Any]
    # Whether a page may send any headers.
    any_headers: bool


def origins(config: GatewayConfig) -> Origins:
    allowed = [matcher for origin in config.origins for matcher in _matchers(origin)]
    preflights = tuple(
        (
            {"name": ":method", "string_match": {"exact": "OPTIONS"}},
            {"name": "origin", "string_match": matcher},
            {"name": "access-control-request-method", "present_match": True},
        )
        for matcher in allowed
    )
    return Origins(_refused(config, allowed), preflights, _policy(config, allowed), ANY in config.allowed_headers)


def _matchers(origin: str) -> list[dict[str, Any]]:
    """Each takes some of what the word stands for."""
    if origin == LOCALHOST:
        return [{"safe_regex": {"regex": pattern}} for pattern in (_LOCAL_PAGES, _LOCAL_PROGRAMS)]
    return [{"safe_regex": {"regex": ".*"}} if origin == ANY else {"exact": origin}]


def _refused(config: GatewayConfig, allowed: list[dict[str, Any]]) -> tuple[tuple[dict[str, Any], ...], ...]:
    # Browsers say whose page it is with everything that is more than reading, and no page can change that. Where they
    # also say that the server's own address is the page's (a proxy serves both), it is no stranger's.
    foreign = ({"name": "origin", "present_match": True}, _unlike("sec-fetch-site", {"exact": "same-origin"}))
    refused = [(*foreign, *(_unlike("origin", matcher) for matcher in allowed))]
    if ANY not in config.allowed_methods:
        methods = (*config.allowed_methods, "OPTIONS")
        refused.append((*foreign, *(_unlike(":method", {"exact": method}) for method in methods)))
    return tuple(refused)


def _unlike(header: str, matcher: dict[str, Any]) -> dict[str, Any]:
    return {"name": header, "string_match": matcher, "invert_match": True, "treat_missing_header_as_empty": True}


def _policy(config: GatewayConfig, allowed: list[dict[str, Any]]) -> dict[str, Any]:
    methods = ("GET", "HEAD", "POST") if ANY in config.allowed_methods else config.allowed_methods
    return {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.cors.v3.CorsPolicy",
        "allow_origin_string_match": allowed,
        "allow_methods": ", ".join(methods),
        # Where any may be sent, those that a browser asks for take this one's place.
        "allow_headers": ", ".join(dict.fromkeys((*_ALWAYS_SENT, *config.allowed_headers))),
        "expose_headers": ", ".join(_EXPOSED),
        "max_age": str(_MAX_AGE),
        "allow_credentials": config.allow_credentials,
    }
