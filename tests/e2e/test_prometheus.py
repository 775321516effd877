"""A Prometheus of version 2, which asks for OpenMetrics, scrapes a running stack: every query of every dashboard and of
the guides finds data, also while a worker is lost, and no alert is wrong."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import openai
import pytest
import yaml

from deploy.dashboards.alerts import ALERTS
from deploy.dashboards.boards import BOARDS
from deploy.dashboards.panels import of_chosen_models
from quire.cli.stack import SERVICES
from services.worker.gpu_metrics import GpuCollector
from shared.metrics.exposition import registry_of, start_metrics_server
from tests.e2e.conftest import Server, serving
from tests.e2e.containers import NETWORK, Project, running
from tests.e2e.parts import pid_of
from tests.e2e.prometheus import (
    CAN_HAVE_A_RESOLVER,
    PROMETHEUS,
    RULES,
    Prometheus,
    running_prometheus,
    shipped_prometheus,
)
from tests.fakes import dns_server, nvml
from tests.fakes.ports import free_ports
from tests.fakes.redis_server import needs_redis
from tests.fakes.tools import needs
from tests.fakes.waiting import wait_until

ROOT = Path(__file__).parents[2]
# Grafana puts four scrape intervals here.
WINDOW = "4s"
# What guides to vLLM ask for, by the names of its releases.
OF_GUIDES = (
    "rate(vllm:generation_tokens_total[1m])",
    "histogram_quantile(0.99, rate(vllm:e2e_request_latency_seconds_bucket[5m]))",
    "vllm:num_requests_waiting",
    "vllm:gpu_cache_usage_perc",
    # These are what vLLM's production stack reads.
    "vllm:gpu_prefix_cache_hits_total",
    "vllm:gpu_prefix_cache_queries_total",
)
# What this stack lacks.
ABSENT = {"a GPU", "Redis"}


def of_alerts() -> Iterator[str]:
    """The comparisons of alerts between two series of the same part, as numbers: they have data if the labels match."""
    expressions = {alert.name: alert.expression for alert in ALERTS}
    for name in ("MemoryGrows", "QueueLongerThanBatch"):
        left, right = expressions[name].rsplit(" > ", 1)
        yield f"{left} > bool {right}"


def of_scalers() -> tuple[str, ...]:
    """What KEDA, and prometheus-adapter for the HPA, ask for: of all models and of one. Without a cluster, series have
    no namespace."""
    components = ROOT / "deploy" / "kubernetes" / "components"
    (rule,) = yaml.safe_load((components / "hpa-queue" / "adapter-rules.yaml").read_text())["rules"]["external"]
    (trigger,) = yaml.safe_load((components / "keda" / "scaled-object.yaml").read_text())["spec"]["triggers"]
    keda = trigger["metadata"]["query"]
    return (
        rule["seriesQuery"].replace('namespace!=""', 'namespace=""'),
        rule["metricsQuery"].replace("<<.LabelMatchers>>", 'namespace=""'),
        rule["metricsQuery"].replace("<<.LabelMatchers>>", 'namespace="",model_name="quire-chat"'),
        keda,
        keda.replace("}", ',model_name="quire-chat"}'),
    )


pytestmark = needs(PROMETHEUS, "Prometheus")


@pytest.fixture(scope="module")
def ports() -> list[int]:
    return free_ports(len(SERVICES))


@pytest.fixture(scope="module")
def server(ports: list[int]) -> Iterator[Server]:
    with serving(
        "--metrics-port", str(ports[0]), "--max-num-seqs", "8", "--swap-space", "0.1", model="quire-chat"
    ) as server:
        yield server


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory, ports: list[int], server: Server) -> Iterator[Prometheus]:
    targets = {name: [f"127.0.0.1:{port}"] for name, port in zip(SERVICES, ports, strict=True)}
    with running_prometheus(tmp_path_factory.mktemp("prometheus"), targets) as prometheus:
        yield prometheus


def test_every_query_finds_data(prometheus: Prometheus, server: Server) -> None:
    """Under requests, one of them refused, and while a worker is killed at work. The reader has chosen the model."""
    panels = [panel for board in BOARDS for panel in board.panels if panel.needs not in ABSENT]
    shown = {of_chosen_models(query.expression) for panel in panels for query in panel.queries}
    assert sum('model_name=~"$model"' in query for query in shown) > 40
    queries = shown | {*OF_GUIDES, *of_scalers(), *of_alerts()}
    empty = {query: query.replace("$__rate_interval", WINDOW).replace("$model", "quire-chat") for query in queries}
    assert len(empty) > 70
    assert "$" not in "".join(empty.values())
    killed_at = -math.inf
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:

        def all_have_data() -> bool:
            nonlocal killed_at
            with contextlib.suppress(openai.BadRequestError):
                client.completions.create(model=server.model, prompt="Once", max_tokens=-3)
            story = {"prompt": "Once upon a time", "max_tokens": 200, "extra_body": {"ignore_eos": True}}
            answer = client.completions.create(model=server.model, stream=True, n=2, **story)  # type: ignore[call-overload]
            for index, _ in enumerate(answer):
                # The stack gives up after four kills in a minute.
                is_due = time.monotonic() - killed_at > 30
                if index == 5 and is_due and any("recovery_pause" in query for query in empty):
                    killed_at = time.monotonic()
                    os.kill(pid_of("worker", server), signal.SIGKILL)
            for name in [name for name, query in empty.items() if prometheus.has_data(query)]:
                del empty[name]
            return not empty

        try:
            wait_until(all_have_data, 0.2)
        except TimeoutError:
            pytest.fail(f"no data for {sorted(empty)}")


def test_no_rule_is_wrong(prometheus: Prometheus) -> None:
    def rules() -> list[Any]:
        return [rule for group in (prometheus.ask("rules") or {"groups": []})["groups"] for rule in group["rules"]]

    wait_until(lambda: bool(rules()) and all(rule["health"] != "unknown" for rule in rules()), 0.2)
    assert {rule["health"] for rule in rules()} == {"ok"}
    names = {rule["alert"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]}
    assert {rule["name"] for rule in rules()} == names


def test_all_parts_are_scraped(prometheus: Prometheus) -> None:
    def healths() -> list[str]:
        return [target["health"] for target in (prometheus.ask("targets") or {"activeTargets": []})["activeTargets"]]

    wait_until(lambda: healths() == ["up"] * len(SERVICES), 0.2)


@pytest.fixture(scope="module")
def fleet() -> Iterator[Project]:
    """The containers of docker-compose.yml, with two routers."""
    with running({"redis": 1, "worker": 1, "scheduler": 1, "router": 2, "gateway": 1}) as project:
        yield project


@needs_redis
@needs(CAN_HAVE_A_RESOLVER, "right to run a DNS server and a mount namespace")
def test_the_configuration_of_compose_scrapes_every_container(tmp_path: Path, fleet: Project) -> None:
    """Prometheus finds the containers by DNS."""
    name_server = f"{NETWORK}.250.53"
    with dns_server.serving(name_server, fleet.names), shipped_prometheus(tmp_path, name_server) as prometheus:
        expected = {(name, f"{one.address}:9000"): "up" for name in SERVICES for one in fleet.containers[name]}

        def healths() -> dict[tuple[str, str], str]:
            found = (prometheus.ask("targets") or {"activeTargets": []})["activeTargets"]
            return {(one["labels"]["job"], one["labels"]["instance"]): one["health"] for one in found}

        wait_until(lambda: healths() == expected, 0.2)


@needs_redis
def test_what_needs_redis_finds_data_in_a_fleet_with_redis(tmp_path: Path, fleet: Project) -> None:
    panels = [panel for board in BOARDS for panel in board.panels if panel.needs == "Redis"]
    queries = {query.expression.replace("$__rate_interval", WINDOW) for panel in panels for query in panel.queries}
    assert queries
    targets = {name: [f"{one.address}:9000" for one in fleet.containers[name]] for name in SERVICES}
    with running_prometheus(tmp_path, targets) as prometheus:
        wait_until(lambda: all(map(prometheus.has_data, queries)), 0.2)


def test_what_needs_a_gpu_finds_data_of_a_stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a worker exports with a GPU, from a stand-in for NVIDIA's library: panels, alerts, and what
    prometheus-adapter asks for."""
    panels = [panel for board in BOARDS for panel in board.panels if panel.needs == "a GPU"]
    rules = ROOT / "deploy" / "kubernetes" / "components" / "hpa-gpu" / "adapter-rules.yaml"
    (rule,) = yaml.safe_load(rules.read_text())["rules"]["custom"]
    # Without a cluster, series have neither a namespace nor a pod.
    queries = {
        *(query.expression for panel in panels for query in panel.queries),
        rule["seriesQuery"].replace('!=""', '=""'),
        rule["metricsQuery"].replace("<<.GroupBy>>", "instance").replace("<<.LabelMatchers>>", 'namespace=""'),
    }
    assert len(queries) == 5
    saturated = next(alert.expression for alert in ALERTS if alert.name == "GPUSaturated")
    percent = 75
    nvml.install(
        monkeypatch, nvml.nvml(nvmlDeviceGetUtilizationRates=lambda _: SimpleNamespace(gpu=percent, memory=20))
    )
    port = start_metrics_server("127.0.0.1", 0, registry_of(GpuCollector(nvml.DEVICE)))
    with running_prometheus(tmp_path, {"worker": [f"127.0.0.1:{port}"]}) as prometheus:
        wait_until(lambda: all(map(prometheus.has_data, queries)), 0.2)
        assert not prometheus.has_data(saturated)
        percent = 99
        wait_until(lambda: prometheus.has_data(saturated), 0.2)
