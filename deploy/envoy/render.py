"""Renders Envoy's configuration from one template for all deployments."""

from __future__ import annotations

import base64
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from google.protobuf.duration_pb2 import Duration
from google.rpc import code_pb2, error_details_pb2, status_pb2

from deploy.envoy.config import HEADER_SECONDS, GatewayConfig
from deploy.envoy.endpoints import CLUSTER, envoy_address
from deploy.envoy.files import SharedFiles
from deploy.envoy.hosts import foreign_host
from deploy.envoy.origins import origins
from deploy.envoy.routes import GRPC_PREFIXES, GRPC_WEB, NO_GRPC, error_formats, http_routes, service_names
from deploy.envoy.tracing import CLUSTER as TRACE_CLUSTER
from deploy.envoy.tracing import Tracing

HERE = Path(__file__).parent
DESCRIPTOR_SET = HERE.parent.parent / "quire" / "http_apis.binpb"


@dataclass(frozen=True, slots=True)
class LocalReply:
    """An error body for answers that Envoy generates itself. It is used for answers with the status code `status` if
    `op` is EQ, and with `status` or a higher code if `op` is GE. If `headers` are given, the request must match all of
    them. If `flag` is given, the answer must have this response flag. `sent`: the status code to send instead; None
    keeps Envoy's status code."""

    op: str
    status: int
    message: str
    type: str
    code: str | None
    headers: Sequence[Mapping[str, Any]] = ()
    sent: int | None = None
    # An Envoy response flag, such as LH.
    flag: str = ""
    # Envoy's details of the answer, such as `overload`.
    details: str = ""
    # Whether the answer goes to a gRPC client without passing the Lua filter, so that the error object is added here.
    is_grpc: bool = False

    @property
    def error(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.type, "param": None, "code": self.code}}

    @property
    def grpc_details(self) -> str:
        """`google.rpc.Status` of an UNAVAILABLE that can be tried again after a second, in base64."""
        info = error_details_pb2.ErrorInfo(reason=(self.code or "unknown").upper(), domain="quire")
        retry = error_details_pb2.RetryInfo(retry_delay=Duration(seconds=1))
        status = status_pb2.Status(code=code_pb2.UNAVAILABLE, message=self.message)
        for detail in (info, retry):
            status.details.add().Pack(detail)
        return base64.b64encode(status.SerializeToString(deterministic=True)).decode()

    @property
    def filter(self) -> dict[str, Any]:
        """The Envoy filter that selects the answers that get this body."""
        value = {"default_value": self.status, "runtime_key": f"quire.local_reply.{self.status}"}
        status = {"status_code_filter": {"comparison": {"op": self.op, "value": value}}}
        others = [{"header_filter": {"header": header}} for header in self.headers]
        flags = [{"response_flag_filter": {"flags": [self.flag]}}] if self.flag else []
        details = [_has_details(self.details)] if self.details else []
        filters = [status, *others, *flags, *details]
        return {"and_filter": {"filters": filters}} if len(filters) > 1 else status


def _has_details(details: str) -> Mapping[str, Any]:
    name = "envoy.extensions.access_loggers.filters.cel.v3.ExpressionFilter"
    expression = f"response.code_details == '{details}'"
    return {
        "extension_filter": {
            "name": "cel",
            "typed_config": {"@type": f"type.googleapis.com/{name}", "expression": expression},
        }
    }


def _present(header: str) -> Mapping[str, Any]:
    return {"name": header, "present_match": True}


# The client's original method and path. Envoy's transcoder replaces both by the method and path of a gRPC call.
_METHOD = "%REQ(X-ENVOY-ORIGINAL-METHOD?:METHOD)%"
_PATH = "%REQ(X-ENVOY-ORIGINAL-PATH?:PATH):256%"

_NO_MEMORY = "The gateway has no memory for more requests at the moment; try again later."

# Envoy uses the first entry that matches. It fills in and escapes the %...% substitutions.
LOCAL_REPLIES = (
    LocalReply("EQ", 404, f"There is no {_METHOD} {_PATH} here.", "invalid_request_error", "unknown_url"),
    LocalReply(
        "EQ",
        403,
        "The server does not support upgrades to %REQ(UPGRADE):64%.",
        "invalid_request_error",
        "upgrade_not_supported",
        headers=(_present("upgrade"),),
    ),
    LocalReply(
        "EQ",
        403,
        f"Web pages of %REQ(ORIGIN):256% may not send {_METHOD} requests to this server: see its options "
        "--allowed-origins and --allowed-methods.",
        "invalid_request_error",
        "origin_not_allowed",
    ),
    LocalReply("EQ", 405, f"{_PATH} does not take {_METHOD}.", "invalid_request_error", "method_not_supported"),
    LocalReply("EQ", 408, "The request took too long to arrive.", "invalid_request_error", "request_timeout"),
    LocalReply(
        "EQ",
        415,
        "Compressed bodies are not supported: send it without 'content-encoding: %REQ(CONTENT-ENCODING):64%'.",
        "invalid_request_error",
        "unsupported_content_encoding",
        headers=(_present("content-encoding"),),
    ),
    LocalReply(
        "EQ",
        415,
        "The request body must be JSON, with the header 'content-type: application/json'.",
        "invalid_request_error",
        "unsupported_media_type",
    ),
    LocalReply("EQ", 431, "The request headers are too large.", "invalid_request_error", "headers_too_large"),
    # The transcoder refuses JSON that does not fit the gRPC method's request message. Its error text is passed on.
    LocalReply(
        "EQ",
        400,
        "The request is not valid: %LOCAL_REPLY_BODY%",
        "invalid_request_error",
        None,
        ({"name": ":path", "string_match": {"prefix": "/quire.inference.v1.InferenceService/"}},),
    ),
    # Only Envoy's HTTP/1 codec answers 501: it refuses every transfer-encoding except `chunked`, before the route is
    # known.
    LocalReply(
        "EQ",
        501,
        "The request body needs a content-length header, or 'transfer-encoding: chunked' and no other.",
        "invalid_request_error",
        "unsupported_transfer_encoding",
        sent=400,
    ),
    LocalReply(
        "EQ",
        503,
        "The gateway is shutting down; send the request to another one.",
        "server_error",
        "unavailable",
        flag="LH",
    ),
    # Requests that are refused while the gateway has too little memory. Envoy's status is 503 over HTTP/2 and 500 over
    # HTTP/1.1.
    LocalReply(
        "EQ",
        503,
        _NO_MEMORY,
        "server_error",
        "overloaded",
        headers=(
            {"name": "content-type", "string_match": {"safe_regex": {"regex": r"application/grpc(\+.*)?( *;.*)?"}}},
        ),
        details="overload",
        is_grpc=True,
    ),
    LocalReply("GE", 500, _NO_MEMORY, "server_error", "overloaded", details="overload", sent=503),
    LocalReply("EQ", 503, "No router is available; try again.", "server_error", "unavailable"),
    LocalReply("EQ", 504, "The router did not answer in time.", "server_error", "timeout"),
    LocalReply("GE", 500, "The gateway failed.", "server_error", None),
    LocalReply("GE", 400, "The request is not valid: %RESPONSE_CODE_DETAILS%.", "invalid_request_error", None),
)


# The largest body that is read to its end before it is refused (quire/cli/large_bodies.py). To larger ones, and to
# those that do not announce their length, Envoy answers itself.
MOST_READ_BYTES = 256 * 1024 * 1024
# Number of them that are read at a time; others wait. Each can take 256 KiB of the gateway's memory.
MAX_READ_AT_ONCE = 128
# Envoy waits a random time before each retry: at most 0.25 s (max_interval in envoy.yaml.j2), half of it on average.
_MEAN_RETRY_PAUSE_S = 0.125
# Paths of readiness checks.
_PROBES = ("/health", "/ping", "/v2/health/ready")
_HEALTH_PATHS = rf"({'|'.join(_PROBES)})(\?.*)?"


def too_large(config: GatewayConfig) -> LocalReply:
    message = f"The request body is too large: at most {config.max_body_bytes} bytes are allowed."
    return LocalReply("EQ", 413, message, "invalid_request_error", "request_too_large")


def _wrong_host(foreign: Sequence[Mapping[str, Any]]) -> LocalReply:
    return LocalReply(
        "EQ",
        403,
        "Requests for the host %REQ(:AUTHORITY):256% are not allowed: see the server's option --allowed-hosts.",
        "invalid_request_error",
        "host_not_allowed",
        headers=foreign,
    )


def render(config: GatewayConfig, files: SharedFiles, tracing: Tracing | None = None) -> str:
    """Renders Envoy's configuration as YAML. `tracing`: where spans go; None: there are none. If `config.listen` is
    empty, `config.host` must be an IP address and `config.port` must not be 0."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    foreign, browsers = foreign_host(config), origins(config)
    return environment.get_template("envoy.yaml.j2").render(
        config=config,
        admin=_address(files.admin(config)),
        drain_file=str(files.drain),
        num_retries=2 + math.ceil(config.router_wait / _MEAN_RETRY_PAUSE_S),
        health_paths=_HEALTH_PATHS,
        probe_paths=(*_PROBES, "/v2/health/live", "/metrics"),
        document_paths=("/docs", "/openapi.json"),
        listen=_address(config.listen or f"{config.host}:{config.port}"),
        cluster=CLUSTER,
        endpoint_file=str(files.routers),
        endpoint_directory=str(files.routers.parent),
        large_body={
            "name": "content-length",
            "range_match": {"start": config.max_body_bytes + 1, "end": MOST_READ_BYTES + 1},
        },
        no_grpc=NO_GRPC,
        max_read_at_once=MAX_READ_AT_ONCE,
        large_bodies=_address(f"unix:{files.large_bodies}"),
        tracing=tracing,
        trace_cluster=TRACE_CLUSTER,
        access_log={"off": "", "-": "/dev/stdout"}.get(config.access_log, config.access_log),
        lua=_lua(config),
        descriptor_set=str(DESCRIPTOR_SET),
        services=service_names(),
        grpc_prefixes=GRPC_PREFIXES,
        grpc_web=GRPC_WEB,
        http_routes=http_routes(),
        error_formats=error_formats(),
        local_replies=(*([_wrong_host(foreign)] if foreign else ()), too_large(config), *LOCAL_REPLIES),
        refused=(*([foreign] if foreign else ()), *browsers.refused),
        origins=browsers,
        header_seconds=HEADER_SECONDS,
        bounds_unsent=sys.platform == "linux",
    )


def _lua(config: GatewayConfig) -> str:
    """Returns the code of the Lua filter. The order of the files matters: later files use definitions of earlier
    files."""
    pieces = [f"local max_header_bytes = {config.max_header_kib * 1024}"]
    if config.root_path:
        pieces += [f"local root_path = {json.dumps(config.root_path)}", (HERE / "root_path.lua").read_text()]
    files = ("grpc_errors.lua", "errors.lua", "requests.lua")
    return "\n".join((*pieces, *((HERE / name).read_text() for name in files)))


def _address(address: str) -> str:
    """Returns an Envoy address as JSON."""
    return json.dumps(envoy_address(address))
