"""A Prometheus of the version of docker-compose.yml scrapes a running stack by the configuration for one host: every
query of every dashboard and of the guides finds data, also while parts are lost, and no alert is wrong."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import openai
import pytest
import yaml

from deploy.dashboards.alerts import ALERTS
from deploy.dashboards.boards import BOARDS
from deploy.dashboards.panels import Query, of_chosen
from deploy.dashboards.queries import of_all_parts, series
from quire.cli.stack import SERVICES
from quire.scheduler.v1 import scheduler_pb2
from services.scheduler.metrics import LoadCollector
from services.worker.gpu_metrics import GpuCollector
from shared.metrics import catalog
from shared.metrics.exposition import registry_of, start_metrics_server
from tests.e2e.conftest import Server, serving
from tests.e2e.containers import NETWORK, Project, running
from tests.e2e.parts import pid_of
from tests.e2e.prometheus import (
    CAN_HAVE_A_RESOLVER,
    CONFIGURATIONS,
    PROMETHEUS,
    PROMTOOL,
    RULES,
    Prometheus,
    is_unpacked,
    running_prometheus,
    shipped_prometheus,
    targets_of_one_host,
    version_in_compose,
    version_of,
)
from tests.e2e.worker_script import standing_still, stop_at, wait_stopped
from tests.fakes import dns_server, nvml
from tests.fakes.ports import free_ports
from tests.fakes.redis_server import needs_redis
from tests.fakes.tools import needs
from tests.fakes.waiting import HANG_S, wait_until

ROOT = Path(__file__).parents[2]
# Grafana puts at least four scrape intervals here. This is more of them, so that no late scrape matters.
WINDOW = "1m"
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
# The job that scrapes the gateway's port for clients, as guides to vLLM do.
SERVER = "server"
# What this stack lacks.
ABSENT = {"a GPU", "Redis"}
# What can be 0 all the time in panels that ask for it, and why.
MAY_BE_ZERO = {
    'le="': "it is a target in seconds, which a slow machine may miss every time",
    catalog.STREAMS_LOST.name: "every answer goes on after the loss of a part",
    catalog.OUTBOX_MESSAGES.name: "messages wait only while a connection takes none",
    catalog.SLOW_CLIENT_PAUSES.name: "the client reads",
    catalog.WORKER_SEQUENCE_ERRORS.name: "no sequence fails in the worker",
    catalog.SCHEDULERS_STALE.name: "the addresses are fixed, so discovery loses no scheduler",
    catalog.DISCOVERY_SILENCE.name: "fixed addresses need no source that could be silent; Redis is one",
}
# What is above 0 only while sequences run or wait.
AT_WORK = (
    catalog.NUM_REQUESTS_RUNNING.name, catalog.NUM_REQUESTS_WAITING.name, catalog.KV_CACHE_USAGE.name,
    catalog.GPU_CACHE_USAGE.name, catalog.STEP_LOOP_STALL.name, "envoy_http_downstream_rq_active",
)  # fmt: skip
# Labels whose values stand for different code each.
OF_LABELS = (
    *(series(catalog.PROMPT_TOKENS_BY_SOURCE, source=source)
      for source in ("local_compute", "local_cache_hit", "external_kv_transfer")),
    *(series(catalog.WORKER_TOKENS, kind=kind) for kind in ("scheduled", "sampled")),
)  # fmt: skip
# Longer than a block of the KV cache, so that later prompts find it there.
STORY = "Once upon a time, there was a little girl named Lily."
# What Prometheus before version 3 sends.
ACCEPT_OF_VERSION_2 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)


def at_server(query: str) -> str:
    """Asks only for what the gateway's port for clients serves."""
    return re.sub(r"vllm:\w+", rf'\g<0>{{job="{SERVER}"}}', query)


def of_alerts() -> Iterator[str]:
    """The comparisons of alerts between two series of the same part, and of those about the gateway, as numbers: they
    have data if the labels match, and if the gateway has the series."""
    expressions = {alert.name: alert.expression for alert in ALERTS}
    for name in ("MemoryGrows", "QueueLongerThanBatch", "GatewayErrors"):
        left, right = expressions[name].split(" and ")[0].rsplit(" > ", 1)
        yield f"{left} > bool {right}"
    yield expressions["NoHealthyRouter"].replace(" == ", " == bool ")


def labels_of(query: Query) -> set[str]:
    """The labels by which a panel's query divides its series, and those that its legend names. Series have a namespace
    only in a cluster, and this model has no version."""
    by = {name for names in re.findall(r"\bby \(([^)]*)\)", query.expression) for name in names.split(", ")}
    return (by | {*re.findall(r"\{\{(\w+)\}\}", query.legend)}) - {"le", "namespace", "model_version"}


def of_scalers() -> tuple[str, ...]:
    """What KEDA, and prometheus-adapter for the HPA, ask for: of all models and of one. Without a cluster, series have
    no namespace."""
    components = ROOT / "deploy" / "kubernetes" / "components"
    rules = yaml.safe_load((components / "hpa-queue" / "adapter-rules.yaml").read_text())["rules"]["external"]
    triggers = yaml.safe_load((components / "keda" / "scaled-object.yaml").read_text())["spec"]["triggers"]
    of_keda = [trigger["metadata"]["query"] for trigger in triggers]
    queries = [
        query
        for rule in rules
        for query in (
            rule["seriesQuery"].replace('namespace!=""', 'namespace=""'),
            rule["metricsQuery"].replace("<<.LabelMatchers>>", 'namespace=""'),
            rule["metricsQuery"].replace("<<.LabelMatchers>>", 'namespace="",model_name="quire-chat"'),
        )
    ]
    return (*queries, *of_keda, *(query.replace("}", ',model_name="quire-chat"}') for query in of_keda))


pytestmark = needs(PROMETHEUS, "Prometheus")


@pytest.fixture(scope="module")
def ports() -> list[int]:
    return free_ports(len(SERVICES))


@pytest.fixture(scope="module")
def server(ports: list[int]) -> Iterator[Server]:
    """A server with room for two stories in its KV cache, and for few sequences in its queue. It waits for parts that
    stand still as long as the test does."""
    cache = ("--num-gpu-blocks-override", "32", "--block-size", "8", "--swap-space", "0.1")
    limits = ("--max-num-seqs", "8", "--max-num-queued-reqs", "8")
    waits = (f"{name}={HANG_S}" for name in ("--step-timeout", "--worker-timeout", "--scheduler-wait"))
    with serving("--metrics-port", str(ports[0]), *cache, *limits, *waits, model="quire-chat") as server:
        yield server


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory, ports: list[int], server: Server) -> Iterator[Prometheus]:
    targets = {**targets_of_one_host(ports), SERVER: [f"127.0.0.1:{server.direct_port}"]}
    with running_prometheus(tmp_path_factory.mktemp("prometheus"), targets) as prometheus:
        yield prometheus


def test_it_is_the_version_of_compose() -> None:
    """As far as the first number. A program that the Makefile has not unpacked may be of any version."""
    for program in (PROMETHEUS, PROMTOOL):
        if is_unpacked(program):
            assert version_of(str(program)) == version_in_compose("prometheus"), program


@needs(PROMTOOL, "promtool")
def test_promtool_reads_the_configuration_for_one_host() -> None:
    command = [str(PROMTOOL), "check", "config", "one-host.yml"]
    result = subprocess.run(command, cwd=CONFIGURATIONS, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "SUCCESS: 1 rule files found" in result.stdout


def test_every_query_finds_data(prometheus: Prometheus, server: Server) -> None:
    """While there are more requests than there is room for, and while the worker and then the scheduler are killed at
    work. The reader has chosen the model. Every query is above 0 at some moment, except for what MAY_BE_ZERO names and
    for comparisons of alerts."""
    panels = [panel for board in BOARDS for panel in board.panels if panel.needs not in ABSENT]
    shown = {of_chosen(query.expression) for panel in panels for query in panel.queries}
    assert sum('model_name=~"$model"' in query for query in shown) > 40
    compared = {*of_alerts()}
    queries = shown | compared | {*OF_GUIDES, *map(at_server, OF_GUIDES), *of_scalers(), *OF_LABELS}
    may_be_zero = compared | {query for query in queries if any(part in query for part in MAY_BE_ZERO)}
    assert all(any(part in query for query in shown) for part in MAY_BE_ZERO)
    choices = {"$__rate_interval": WINDOW, "$namespace": ".*", "$model": "quire-chat"}
    missing = {query: query for query in queries}
    for choice, value in choices.items():
        missing = {query: asked.replace(choice, value) for query, asked in missing.items()}
    assert len(missing) > 90
    assert "$" not in "".join(missing.values())

    def without_data(*parts: str) -> list[str]:
        """The queries that have had no data so far, or only 0. `parts`: looks only for queries that have one of them in
        them."""
        asked = [query for query in missing if not parts or any(part in query for part in parts)]
        for query in asked:
            highest = prometheus.highest(missing[query])
            if highest > 0 or (highest == 0 and query in may_be_zero):
                del missing[query]
        return sorted(missing.keys() & asked)

    def wait_for_data(look: Callable[[], list[str]]) -> None:
        try:
            wait_until(lambda: not look(), 0.2)
        except TimeoutError:
            pytest.fail(f"no data, or always 0: {look()}")

    with (
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
        ThreadPoolExecutor() as pool,
    ):

        def tell_stories() -> None:
            story = {"prompt": STORY, "n": 12, "max_tokens": 100, "extra_body": {"ignore_eos": True}}
            client.completions.create(model=server.model, **story)  # type: ignore[call-overload]

        @contextlib.contextmanager
        def stories_interrupted() -> Iterator[int]:
            """Yields the process id of the worker, which stands still in the middle of stories. Waits for their end."""
            worker = pid_of("worker", server)
            server.script.give(worker, stop_at(num_sequences=2, num_tokens=60))
            told = pool.submit(tell_stories)
            wait_stopped(worker, [told])
            with standing_still(worker):
                yield worker
            told.result(HANG_S)

        with stories_interrupted() as worker:
            wait_for_data(lambda: without_data(*AT_WORK))
            # Prometheus sees a counter grow only if it has seen the counter before.
            wait_until(lambda: prometheus.has_data(series(catalog.ADMISSION_REJECTIONS)), 0.2)
            with pytest.raises(openai.RateLimitError):
                tell_stories()
            os.kill(worker, signal.SIGKILL)
        with stories_interrupted():
            os.kill(pid_of("scheduler", server), signal.SIGKILL)
            # The next scheduler does not know its model before a worker answers it.
            wait_for_data(lambda: without_data(catalog.SEQUENCES_PARKED.name))

        def without_data_after_stories() -> list[str]:
            tell_stories()
            with pytest.raises(openai.BadRequestError):
                client.completions.create(model=server.model, prompt="Once", max_tokens=-3)
            return without_data()

        wait_for_data(without_data_after_stories)
    assert prometheus.highest(series(catalog.STREAMS_LOST)) == 0
    unlabelled = {query: labels_of(query) for panel in panels for query in panel.queries if labels_of(query)}

    def lack_labels() -> list[Query]:
        for query, names in list(unlabelled.items()):
            asked = of_chosen(query.expression)
            for choice, value in choices.items():
                asked = asked.replace(choice, value)
            if names <= prometheus.label_names(asked):
                del unlabelled[query]
        return [*unlabelled]

    wait_until(lambda: not lack_labels(), 1.0)


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

    wait_until(lambda: healths() == ["up"] * (len(SERVICES) + 1), 0.2)


def test_version_2_gets_the_same_names(ports: list[int], server: Server) -> None:
    """It asks for OpenMetrics, in which `vllm:` would be `vllm_`."""
    for port in (*ports, server.direct_port):
        request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"Accept": ACCEPT_OF_VERSION_2})
        with urllib.request.urlopen(request) as response:
            assert response.headers["content-type"].startswith("text/plain")
            names = response.read().decode()
        assert re.search("^(vllm|quire):", names, re.MULTILINE)
        assert not re.search("^(vllm|quire)_", names, re.MULTILINE)


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
    queries |= {of_all_parts(catalog.DISCOVERY_SILENCE)}
    targets = {name: [f"{one.address}:9000" for one in fleet.containers[name]] for name in SERVICES}
    with running_prometheus(tmp_path, targets) as prometheus:
        wait_until(lambda: all(prometheus.highest(query) > 0 for query in queries), 0.2)


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
    alerts = {alert.name: alert.expression for alert in ALERTS}
    saturated, underused = alerts["GPUSaturated"], alerts["GPUUnderused"]
    percent, num_waiting = 75, 2
    nvml.install(
        monkeypatch, nvml.nvml(nvmlDeviceGetUtilizationRates=lambda _: SimpleNamespace(gpu=percent, memory=20))
    )
    gpu = GpuCollector(nvml.DEVICE, "chat", "")
    load = LoadCollector(lambda: ("chat", ""), lambda: scheduler_pb2.Load(num_waiting=num_waiting), lambda: (0.0, 0.0))
    ports = {
        job: start_metrics_server("127.0.0.1", 0, registry_of(collector))
        for job, collector in (("worker", gpu), ("scheduler", load))
    }
    with running_prometheus(tmp_path, {job: [f"127.0.0.1:{port}"] for job, port in ports.items()}) as prometheus:
        wait_until(lambda: all(prometheus.highest(query) > 0 for query in queries), 0.2)
        assert not prometheus.has_data(saturated)
        assert not prometheus.has_data(underused)
        percent = 60
        wait_until(lambda: prometheus.has_data(underused), 0.2)
        num_waiting = 0
        wait_until(lambda: not prometheus.has_data(underused), 0.2)
        percent = 99
        wait_until(lambda: prometheus.has_data(saturated), 0.2)
