"""The containers of the manifests for Kubernetes, run as processes: they find each other, pass their probes, answer,
and stop within their grace period."""

from __future__ import annotations

import urllib.request
from contextlib import suppress
from typing import Any

import grpc
import openai
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from quire.cli.stack import SERVICES
from tests.e2e.containers import Service, running
from tests.fakes.redis_server import SERVER
from tests.fakes.waiting import HANG_S, wait_until
from tests.unit.deploy.kubernetes import (
    COMPONENT,
    KUBECTL,
    Manifests,
    container_of,
    environment_of,
    pod_labels,
    pod_of,
    rendered,
)

pytestmark = pytest.mark.skipif(KUBECTL is None, reason="there is no kubectl: make clients unpacks Debian's")
COMPONENTS = () if SERVER is None else ("redis",)
PROBES = ("startupProbe", "livenessProbe", "readinessProbe")


def services_of(manifests: Manifests) -> dict[str, Service]:
    """Each workload, found under the names of the Services that select its pods."""
    found = {}
    for workload in manifests.of("Deployment", "StatefulSet"):
        container, part = container_of(workload), pod_labels(workload)[COMPONENT]
        services = (one for one in manifests.of("Service") if workload in manifests.selected(one["spec"]["selector"]))
        found[workload["metadata"]["name"]] = Service(
            part=part if part in SERVICES else "",
            command=tuple(container.get("args", ())),
            environment=environment_of(container),
            grace_s=pod_of(workload).get("terminationGracePeriodSeconds", 30),
            names=tuple(one["metadata"]["name"] for one in services),
        )
    return found


def passes(probe: dict[str, Any], ports: dict[str, int], address: str) -> bool:
    """Asks once, as a kubelet does."""
    if "grpc" in probe:
        with grpc.insecure_channel(f"{address}:{probe['grpc']['port']}") as channel, suppress(grpc.RpcError):
            check = health_pb2.HealthCheckRequest(service=probe["grpc"]["service"])
            answer = health_pb2_grpc.HealthStub(channel).Check(check, timeout=HANG_S)
            return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
        return False
    url = f"http://{address}:{ports[probe['httpGet']['port']]}{probe['httpGet']['path']}"
    with suppress(OSError), urllib.request.urlopen(url, timeout=HANG_S) as response:
        return bool(200 <= response.status < 400)
    return False


def test_pods_pass_their_probes_and_answer() -> None:
    manifests = rendered("cpu", COMPONENTS)
    workloads = list(manifests.of("Deployment", "StatefulSet"))
    numbers = {one["metadata"]["name"]: one["spec"]["replicas"] for one in workloads}
    with running(numbers, services_of(manifests)) as project:
        for name, containers in project.containers.items():
            if not project.services[name].part:
                continue
            (workload,) = [one for one in workloads if one["metadata"]["name"] == name]
            definition = container_of(workload)
            ports = {port["name"]: port["containerPort"] for port in definition["ports"]}
            for container in containers:
                for probe in (definition[kind] for kind in PROBES):
                    wait_until(lambda: passes(probe, ports, container.address), 0.2)  # noqa: B023 - called at once
        for gateway in project.containers["gateway"]:
            client = openai.OpenAI(base_url=f"http://{gateway.address}:8000/v1", api_key="none", max_retries=0)
            answer = client.chat.completions.create(
                model="quire-chat", messages=[{"role": "user", "content": "What is 7 plus 5?"}], temperature=0
            )
            assert "12" in (answer.choices[0].message.content or "")
