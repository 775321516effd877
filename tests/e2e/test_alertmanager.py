"""An alert of the rules goes from a metric through Prometheus and Alertmanager to whom it concerns."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.dashboards.alerts import ALERTS
from tests.e2e.conftest import ROOT
from tests.e2e.prometheus import (
    ALERTMANAGER,
    AMTOOL,
    PROMETHEUS,
    is_unpacked,
    running_alertmanager,
    running_prometheus,
    version_in_compose,
    version_of,
)
from tests.fakes.tools import needs
from tests.fakes.waiting import HANG_S, wait_until

CONFIG = ROOT / "deploy" / "alertmanager" / "alertmanager.yml"
needs_alertmanager = needs(ALERTMANAGER and AMTOOL and PROMETHEUS, "Alertmanager")


class Part:
    """Serves a router's metrics that get worse with each scrape, and receives the notifications."""

    def __init__(self) -> None:
        self.num_lost = 0
        self.notifications: queue.Queue[tuple[str, dict[str, Any]]] = queue.Queue()

    def metrics(self) -> str:
        self.num_lost += 1
        return (
            "# TYPE quire:streams_lost_total counter\n"
            f'quire:streams_lost_total{{model_name="m"}} {self.num_lost}\n'
            "# TYPE quire:discovery_silence_seconds gauge\n"
            'quire:discovery_silence_seconds{kind="scheduler"} 100\n'
        )


@contextmanager
def served(part: Part) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = part.metrics().encode()
            self.send_response(200)
            self.send_header("content-type", "text/plain; version=0.0.4")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            part.notifications.put((self.path, body))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@needs_alertmanager
def test_it_is_the_version_of_compose() -> None:
    """As far as the first number. A program that the Makefile has not unpacked may be of any version."""
    for program in (ALERTMANAGER[-1], AMTOOL):
        if is_unpacked(program):
            assert version_of(str(program)) == version_in_compose("alertmanager"), program


@needs_alertmanager
def test_a_lost_stream_calls_the_one_on_call(tmp_path: Path) -> None:
    part = Part()
    with served(part) as address:
        config = yaml.safe_load(CONFIG.read_text())
        config["route"]["group_wait"] = "0s"
        for receiver in config["receivers"]:
            receiver["webhook_configs"] = [{"url": f"http://{address}/{receiver['name']}"}]
        with (
            running_alertmanager(tmp_path, config) as alertmanager,
            running_prometheus(tmp_path, {"router": [address]}, alertmanager),
        ):
            path, notification = part.notifications.get(timeout=HANG_S)
    (alert,) = notification["alerts"]
    assert (path, alert["labels"]["alertname"], alert["status"]) == ("/on-call", "StreamsLost", "firing")
    (known,) = [one for one in ALERTS if one.name == "StreamsLost"]
    assert alert["annotations"]["summary"] == known.meaning
    assert alert["annotations"]["runbook_url"] == "docs/alerts.md#streamslost"


@needs_alertmanager
@pytest.mark.parametrize(
    ("cause", "followers"),
    [
        (
            {"alertname": "NoReadyScheduler"},
            [
                {"alertname": "NoHealthyRouter", "instance": "gateway:9000"},
                {"alertname": "GatewayErrors"},
                {"alertname": "ModelWithoutScheduler", "model_name": "a"},
                {"alertname": "ModelNotReady", "model_name": "a"},
                {"alertname": "LowSuccessRate", "model_name": "a"},
                {"alertname": "AvailabilityBurnsFast", "model_name": "a"},
                {"alertname": "HighQueueDepth"},
            ],
        ),
        (
            {"alertname": "ModelWithoutScheduler", "model_name": "a"},
            [
                {"alertname": "LowSuccessRate", "model_name": "a"},
                {"alertname": "AvailabilityBurnsSlowly", "model_name": "a"},
                {"alertname": "SlowFirstToken", "model_name": "a"},
            ],
        ),
    ],
    ids=["all", "one-model"],
)
def test_what_follows_from_another_alert_is_not_told(
    tmp_path: Path, cause: dict[str, str], followers: list[dict[str, str]]
) -> None:
    """And is told if the cause is in another namespace or of another model, or another alert fires."""
    others = [{"alertname": "StreamsLost", "namespace": "one"}]
    # These two are causes themselves.
    others += [one | {"namespace": "two"} for one in followers if not one["alertname"].startswith("Model")]
    if "model_name" in cause:
        others += [one | {"namespace": "one", "model_name": "b"} for one in followers]
    here = [one | {"namespace": "one"} for one in (cause, *followers)]
    with running_alertmanager(tmp_path, yaml.safe_load(CONFIG.read_text())) as alertmanager:
        url = f"http://{alertmanager}/api/v2/alerts"
        body = json.dumps([{"labels": labels | {"severity": "critical"}} for labels in (*here, *others)]).encode()
        urllib.request.urlopen(urllib.request.Request(url, body, {"content-type": "application/json"})).close()

        def told() -> list[dict[str, str]]:
            """The labels of the alerts that are told. It takes a moment until the first ones are judged."""
            with urllib.request.urlopen(url) as response:
                found = json.load(response)
            assert len(found) == len(here) + len(others)
            return [one["labels"] for one in found if not one["status"]["inhibitedBy"]]

        expected = sorted(json.dumps(one | {"severity": "critical"}, sort_keys=True) for one in (here[0], *others))
        wait_until(lambda: sorted(json.dumps(one, sort_keys=True) for one in told()) == expected, 0.1)


@needs_alertmanager
@pytest.mark.parametrize(
    ("labels", "receiver"), [("severity=critical", "on-call"), ("severity=warning", "team"), ("severity=info", "team")]
)
def test_severity_decides_who_is_told(labels: str, receiver: str) -> None:
    command = [str(AMTOOL), "config", "routes", "test", f"--config.file={CONFIG}", labels]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == receiver


@needs_alertmanager
def test_the_configuration_is_valid_and_names_alerts_that_exist() -> None:
    subprocess.run([str(AMTOOL), "check-config", str(CONFIG)], check=True, capture_output=True)
    names = {alert.name for alert in ALERTS}
    for rule in yaml.safe_load(CONFIG.read_text())["inhibit_rules"]:
        for matcher in (*rule["source_matchers"], *rule["target_matchers"]):
            text = matcher.partition('"')[2].rstrip('"')
            for name in text.split("|"):
                assert name in names
