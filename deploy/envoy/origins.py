"""Decides which web pages may use the server from a browser (ADR 17)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from deploy.envoy.config import ANY, LOCALHOST, GatewayConfig

# Origins of pages that this machine serves on any port, and of desktop applications with their own pages. No other web
# site can claim such an origin. There are two patterns because Envoy limits a pattern's size.
_LOCAL_PAGES = r"https?://(([a-z0-9-]+\.)*localhost|127\.0\.0\.1|0\.0\.0\.0|\[::1\])(:[0-9]+)?"
_LOCAL_PROGRAMS = r"(app|file|tauri|vscode-file|vscode-webview)://.*"
# Response headers that a page may read.
_EXPOSED = (
    *("x-request-id", "request-id", "retry-after"),
    # The status of a gRPC-Web call, if the answer has no messages. Otherwise the status is in the answer's body.
    *("grpc-status", "grpc-message", "grpc-status-details-bin", "grpc-retry-pushback-ms", "quire-error"),
)
# Request headers that a page may always send: the content type of JSON bodies, and the headers of gRPC-Web's libraries.
_ALWAYS_SENT = ("content-type", "x-grpc-web", "x-user-agent", "grpc-timeout")
# Seconds for which a browser may cache the answer to a preflight request.
_MAX_AGE = 600


@dataclass(frozen=True, slots=True)
class Origins:
    """The parts of Envoy's configuration that decide which origins' pages may send requests, as JSON values."""

    # Lists of header matchers. If a request matches all entries of at least one list, it comes from a page that is not
    # allowed to send it, and the gateway refuses the request.
    refused: tuple[tuple[dict[str, Any], ...], ...]
    # Lists of header matchers for the preflight requests of allowed pages.
    preflights: tuple[tuple[dict[str, Any], ...], ...]
    # Envoy's CorsPolicy.
    policy: dict[str, Any]
    # Whether a page may send every header.
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
    """Returns the matchers of an entry of --allowed-origins; an origin that matches one of them is allowed."""
    if origin == LOCALHOST:
        return [{"safe_regex": {"regex": pattern}} for pattern in (_LOCAL_PAGES, _LOCAL_PROGRAMS)]
    return [{"safe_regex": {"regex": ".*"}} if origin == ANY else {"exact": origin}]


def _refused(config: GatewayConfig, allowed: list[dict[str, Any]]) -> tuple[tuple[dict[str, Any], ...], ...]:
    # Browsers send the page's origin in the header `origin` with every request other than GET and HEAD, and a page
    # cannot change this header. Requests with `sec-fetch-site: same-origin` are allowed, because their page comes from
    # the same address as the server, as when one proxy serves both.
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
        # With --allowed-headers *, Envoy's header_mutation filter replaces this value by the headers that the browser
        # requests.
        "allow_headers": ", ".join(dict.fromkeys((*_ALWAYS_SENT, *config.allowed_headers))),
        "expose_headers": ", ".join(_EXPOSED),
        "max_age": str(_MAX_AGE),
        "allow_credentials": config.allow_credentials,
    }
