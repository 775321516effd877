"""A Prometheus of version 2, which asks for OpenMetrics, scrapes a running stack: every query of every dashboard and of
the guides finds data, also while a worker is lost, and no alert is wrong."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import signal
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

import openai
import pytest
import yaml

from deploy.dashboards.boards import BOARDS
from quire.cli.stack import SERVICES
from tests.e2e.conftest import ROOT, Server, serving
from tests.e2e.parts import pid_of
from tests.fakes.ports import free_port, free_ports
from tests.fakes.waiting import HANG_S, wait_until

UNPACKED = ROOT / ".venv-prometheus" / "usr" / "bin" / "prometheus"
PROMETHEUS = str(UNPACKED) if UNPACKED.exists() else shutil.which("prometheus")
RULES = ROOT / "deploy" / "prometheus" / "rules.yml"
# Grafana puts four scrape intervals here.
WINDOW = "4s"
# What guides to vLLM ask for, by the names of its releases.
OF_GUIDES = (
    "rate(vllm:generation_tokens_total[1m])",
    "histogram_quantile(0.99, rate(vllm:e2e_request_latency_seconds_bucket[5m]))",
    "vllm:num_requests_waiting",
    "vllm:gpu_cache_usage_perc",
)
# What this stack lacks.
ABSENT = {"a GPU", "Redis", "swap space"}

pytestmark = pytest.mark.skipif(PROMETHEUS is None, reason="there is no Prometheus: make clients unpacks Debian's")


class Prometheus:
    def __init__(self, address: str) -> None:
        self._address = address

    def ask(self, path: str, **parameters: str) -> Any:
        """None while it does not answer."""
        url = f"http://{self._address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url) as response:
                return json.load(response)["data"]
        except urllib.error.URLError:
            return None

    def has_data(self, query: str) -> bool:
        found = self.ask("query", query=query)
        return found is not None and any(not math.isnan(float(one["value"][1])) for one in found["result"])


@pytest.fixture(scope="module")
def ports() -> list[int]:
    return free_ports(len(SERVICES))


@pytest.fixture(scope="module")
def server(ports: list[int]) -> Iterator[Server]:
    with serving("--metrics-port", str(ports[0]), "--max-num-seqs", "8", model="quire-chat") as server:
        yield server


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory, ports: list[int], server: Server) -> Iterator[Prometheus]:
    directory = tmp_path_factory.mktemp("prometheus")
    jobs = [
        {"job_name": name, "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}
        for name, port in zip(SERVICES, ports, strict=True)
    ]
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(RULES)],
        "scrape_configs": jobs,
    }
    (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_port()}"
    command = [
        str(PROMETHEUS), f"--config.file={directory}/prometheus.yml", f"--storage.tsdb.path={directory}/data",
        f"--web.listen-address={address}", "--log.level=warn",
    ]  # fmt: skip
    process = subprocess.Popen(command, env={**os.environ, "GOMAXPROCS": "1"})
    prometheus = Prometheus(address)
    try:
        wait_until(lambda: prometheus.ask("status/buildinfo") is not None, 0.1)
        yield prometheus
    finally:
        process.kill()
        process.wait(HANG_S)


def test_every_query_finds_data(prometheus: Prometheus, server: Server) -> None:
    """Under requests, one of them refused, and while a worker is killed at work."""
    panels = [panel for board in BOARDS for panel in board.panels if panel.needs not in ABSENT]
    queries = {query.expression for panel in panels for query in panel.queries} | {*OF_GUIDES}
    empty = {query: query.replace("$__rate_interval", WINDOW) for query in queries}
    assert len(empty) > 70
    assert "$" not in "".join(empty.values())
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:

        def all_have_data() -> bool:
            with contextlib.suppress(openai.BadRequestError):
                client.completions.create(model=server.model, prompt="Once", max_tokens=-3)
            story = {"prompt": "Once upon a time", "max_tokens": 200, "extra_body": {"ignore_eos": True}}
            answer = client.completions.create(model=server.model, stream=True, n=2, **story)  # type: ignore[call-overload]
            for index, _ in enumerate(answer):
                if index == 5 and any("recovery_pause" in query for query in empty):
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
