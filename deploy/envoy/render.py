"""Renders Envoy's configuration: one template, whatever the stack runs on."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import jinja2

from deploy.envoy.config import GatewayConfig, endpoint_kind, split_host_port
from deploy.envoy.origins import origins
from deploy.envoy.routes import http_routes, service_names

HERE = Path(__file__).parent
DESCRIPTOR_SET = HERE.parent.parent / "quire" / "http_apis.binpb"

# Reached by gRPC clients through the same port, untouched.
GRPC_PREFIXES = (
    "/quire.inference.v1.InferenceService/",
    "/inference.GRPCInferenceService/",
    "/grpc.health.v1.Health/",
    "/grpc.reflection.",
)


@dataclass(frozen=True, slots=True)
class LocalReply:
    """The body of an answer that Envoy gives by itself, for one status code or (`GE`) from one on."""

    op: str
    status: int
    message: str
    type: str
    code: str | None

    @property
    def runtime_key(self) -> str:
        return f"quire.local_reply.{self.status}"


# The first that fits is used. Substitutions are Envoy's and are escaped by it.
LOCAL_REPLIES = (
    LocalReply("EQ", 404, "There is no %REQ(:METHOD)% %REQ(:PATH):256% here.", "invalid_request_error", "unknown_url"),
    LocalReply(
        "EQ",
        403,
        "A page of %REQ(ORIGIN):256% may not send a %REQ(:METHOD)% here: the server's --allowed-origins and "
        "--allowed-methods say which may.",
        "invalid_request_error",
        "origin_not_allowed",
    ),
    LocalReply(
        "EQ", 405, "%REQ(:PATH):256% does not take %REQ(:METHOD)%.", "invalid_request_error", "method_not_supported"
    ),
    LocalReply("EQ", 408, "The request took too long to arrive.", "invalid_request_error", "request_timeout"),
    LocalReply("EQ", 413, "The request body is too large.", "invalid_request_error", "request_too_large"),
    LocalReply("EQ", 431, "The request headers are too large.", "invalid_request_error", "headers_too_large"),
    LocalReply("EQ", 503, "No router can take it now; try again.", "server_error", "unavailable"),
    LocalReply("EQ", 504, "The router did not answer in time.", "server_error", "timeout"),
    LocalReply("GE", 500, "The gateway failed.", "server_error", None),
    LocalReply("GE", 400, "The request is not valid: %RESPONSE_CODE_DETAILS%.", "invalid_request_error", None),
)


def render(config: GatewayConfig, admin: str) -> str:
    """Envoy's YAML. `admin` is the admin interface's address: `unix:/path`, or `host:port` on loopback. Without
    `config.listen`, `config.host` must be an IP address and `config.port` not 0."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("envoy.yaml.j2").render(
        config=config,
        admin=_address(admin),
        listen=_address(config.listen or f"{config.host}:{config.port}"),
        metrics_listen=_address(f"{config.metrics_host}:{config.metrics_port or 0}"),
        endpoints=[_address(address) for address in config.router],
        resolve_names=any(endpoint_kind(address) == "name" for address in config.router),
        access_log={"off": "", "-": "/dev/stdout"}.get(config.access_log, config.access_log),
        errors_lua=(HERE / "errors.lua").read_text(),
        descriptor_set=str(DESCRIPTOR_SET),
        services=service_names(),
        grpc_prefixes=GRPC_PREFIXES,
        http_routes=http_routes(),
        local_replies=LOCAL_REPLIES,
        origins=origins(config),
    )


def _address(address: str) -> str:
    """An Envoy address, as JSON."""
    if address.startswith("unix:"):
        return json.dumps({"pipe": {"path": address.removeprefix("unix:")}})
    host, port = split_host_port(address)
    return json.dumps({"socket_address": {"address": host, "port_value": port}})
