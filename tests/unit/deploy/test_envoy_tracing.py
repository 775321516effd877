"""Where the gateway's spans go, by OpenTelemetry's variables."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from deploy.envoy.config import GatewayConfig
from deploy.envoy.endpoints import EndpointFile
from deploy.envoy.files import SharedFiles
from deploy.envoy.render import render
from deploy.envoy.tracing import Tracing, tracing_of
from tests.unit.deploy.test_envoy_config import accepted

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


# Of a CA that signs nothing. It expires in 2126.
CERTIFICATE = """\
-----BEGIN CERTIFICATE-----
MIIBejCCAR+gAwIBAgIUUmSMf2E7uA4dacJ5RehxwO4IwtowCgYIKoZIzj0EAwIw
ETEPMA0GA1UEAwwGbm9ib2R5MCAXDTI2MTEyNzIzMjYwNloYDzIxMjYxMTAzMjMy
NjA2WjARMQ8wDQYDVQQDDAZub2JvZHkwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNC
AAQ6tc7uYiQsgeo+UW/amIcAKMIPYdFJH3ik0sHP3WWE37p2th0VOISS+xaUeqsq
SDWj/PCP3IEwo0b0Z+Lu8LKSo1MwUTAdBgNVHQ4EFgQUd0UBksyz2FI48I1o93h1
RDGFv30wHwYDVR0jBBgwFoAUd0UBksyz2FI48I1o93h1RDGFv30wDwYDVR0TAQH/
BAUwAwEB/zAKBggqhkjOPQQDAgNJADBGAiEAkafBvF9w2FRt3q7URDNsHS/zxjpq
a/3ybvgNu8Eq5CcCIQDWnmwSgBU6YkmLztbGKy5i3qSKBlp/2BJ9WN+RTYwBwA==
-----END CERTIFICATE-----
"""


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, None),
        ({ENDPOINT: ""}, None),
        ({ENDPOINT: "http://collector:4317"}, Tracing("collector", 4317)),
        ({ENDPOINT: "http://collector"}, Tracing("collector", 4317)),
        ({ENDPOINT: "collector:9", "OTEL_EXPORTER_OTLP_INSECURE": "true"}, Tracing("collector", 9)),
        ({ENDPOINT: "http://a:1", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://b:2"}, Tracing("b", 2)),
        ({ENDPOINT: "https://c:3", "OTEL_EXPORTER_OTLP_CERTIFICATE": __file__}, Tracing("c", 3, ca_file=__file__)),
        (
            {ENDPOINT: "https://c:3", "OTEL_EXPORTER_OTLP_CERTIFICATE": "/none",
             "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE": __file__},
            Tracing("c", 3, ca_file=__file__),
        ),
        (
            {ENDPOINT: "http://c:3", "OTEL_EXPORTER_OTLP_HEADERS": "Api-Key=a%20b, x=1, y=%0a, z"},
            Tracing("c", 3, headers=(("api-key", "a b"), ("x", "1"))),
        ),
        ({ENDPOINT: "http://c:3", "OTEL_BSP_SCHEDULE_DELAY": "100"}, Tracing("c", 3, flush_ms=100)),
        (
            {ENDPOINT: "http://c:3", "OTEL_TRACES_SAMPLER": "TraceIdRatio", "OTEL_TRACES_SAMPLER_ARG": "0.1"},
            Tracing("c", 3, share=0.1),
        ),
        ({ENDPOINT: "http://c:3", "OTEL_TRACES_SAMPLER": "parentbased_always_off"}, None),
        ({ENDPOINT: "http://c:3", "OTEL_RESOURCE_ATTRIBUTES": "a=b"}, Tracing("c", 3, has_attributes=True)),
    ],
)  # fmt: skip
def test_spans_go_where_those_of_the_other_parts_go(variables: dict[str, str], expected: Tracing | None) -> None:
    assert tracing_of(variables) == expected


@pytest.mark.parametrize("address", ["http://", "http://[::1", "http://c:port", "https://c"])
def test_a_wrong_endpoint_costs_only_the_spans(address: str, caplog: pytest.LogCaptureFixture) -> None:
    assert tracing_of({ENDPOINT: address, "OTEL_EXPORTER_OTLP_CERTIFICATE": "/none"}) is None
    assert "the gateway sends no spans" in caplog.text


@pytest.mark.parametrize(
    "tracing",
    [
        Tracing("collector", 4317),
        Tracing(
            "127.0.0.1", 4317, share=0.5, headers=(("api-key", 'x"y %REQ(a)% 5%'),), flush_ms=1, has_attributes=True
        ),
        Tracing("::1", 4317, ca_file="/ca"),
        Tracing("collector.example", 443, ca_file="/ca"),
    ],
)
def test_envoy_takes_what_is_rendered(tracing: Tracing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "a=b")
    if tracing.ca_file:
        tracing = dataclasses.replace(tracing, ca_file=str(tmp_path / "ca.pem"))
        Path(tracing.ca_file).write_text(CERTIFICATE)
    files = SharedFiles(tmp_path)
    files.routers.parent.mkdir()
    EndpointFile(files.routers).write(("127.0.0.1:50051",))
    accepted(render(GatewayConfig(), files, tracing), tmp_path)
