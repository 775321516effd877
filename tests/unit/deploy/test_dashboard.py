"""The dashboard asks for metrics that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml

from quire.scheduler.v1 import scheduler_pb2
from services.scheduler.metrics import LoadCollector, registry

GRAFANA = Path(__file__).parents[3] / "deploy" / "grafana"
DASHBOARD = json.loads((GRAFANA / "dashboards" / "quire.json").read_text())


def asked_of(job: str) -> set[str]:
    """Names of the metrics that panels read from one job."""
    expressions = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    return {name for text in expressions for name in re.findall(rf'([a-z_:]+){{job="{job}"}}', text)}


def test_the_scheduler_has_what_panels_ask_of_it() -> None:
    exposed = {
        sample.name
        for metric in registry(LoadCollector(lambda: "model", scheduler_pb2.Load)).collect()
        for sample in metric.samples
    }

    assert asked_of("scheduler")
    assert asked_of("scheduler") <= exposed


def test_every_panel_uses_the_datasource_that_is_provisioned() -> None:
    sources = yaml.safe_load((GRAFANA / "provisioning" / "datasources" / "prometheus.yaml").read_text())
    (uid,) = (source["uid"] for source in sources["datasources"])

    assert {panel["datasource"]["uid"] for panel in DASHBOARD["panels"]} == {uid}
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
