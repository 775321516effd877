"""The dashboard asks for metrics that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml
from prometheus_client import CollectorRegistry

from quire.scheduler.v1 import scheduler_pb2
from services.router.metrics import RequestMetrics, RouterCollector, registry_of
from services.scheduler.metrics import LoadCollector, registry

GRAFANA = Path(__file__).parents[3] / "deploy" / "grafana"
RULES = yaml.safe_load((GRAFANA.parent / "prometheus" / "rules.yml").read_text())
DASHBOARD = json.loads((GRAFANA / "dashboards" / "quire.json").read_text())


def asked_of(job: str) -> set[str]:
    """Names of the metrics that panels and alerts read from one job."""
    expressions = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    expressions += [rule["expr"] for group in RULES["groups"] for rule in group["rules"]]
    return {name for text in expressions for name in re.findall(rf'([a-z0-9_:]+){{job="{job}"[,}}]', text)}


def names(collector_registry: CollectorRegistry) -> set[str]:
    return {sample.name for metric in collector_registry.collect() for sample in metric.samples}


def test_each_part_has_what_panels_ask_of_it() -> None:
    scheduler = names(registry(LoadCollector(lambda: "model", scheduler_pb2.Load, lambda: (0.0, 0.0))))
    assert asked_of("scheduler")
    assert asked_of("scheduler") <= scheduler
    requests = RequestMetrics()
    with_one_request(requests)
    router = names(registry_of([RouterCollector(requests, NoSchedulers(), "router")]))  # type: ignore[arg-type]
    assert asked_of("router")
    assert asked_of("router") <= router
    assert not router & scheduler, "a dashboard that does not ask by job would count twice"


def with_one_request(requests: RequestMetrics) -> None:
    timer = requests.start("model", 3)
    timer.tokens(0, 1, 0.0)
    timer.tokens(0, 1, 1.0)
    timer.finished("stop")
    timer.closed(completed=True)


class NoModels:
    num_conflicts = 0


class NoRoster:
    num_stale = 0


class NoSchedulers:
    connections = ()
    roster = NoRoster()
    models = NoModels()
    num_parked = 0
    num_resubmissions = 0
    num_pauses = 0


def test_an_event_loop_that_is_held_up_is_an_alert() -> None:
    (expression,) = (
        rule["expr"] for group in RULES["groups"] for rule in group["rules"] if rule["alert"] == "QuireEventLoopHeldUp"
    )
    assert {"quire:event_loop_lag_seconds_count", "quire:event_loop_lag_seconds_bucket"} <= asked_of("router")
    # The threshold is one of the histogram's bounds.
    (bound,) = re.findall(r'le="([0-9.]+)"', expression)
    samples = registry_of([RouterCollector(RequestMetrics(), NoSchedulers(), "router")]).collect()  # type: ignore[arg-type]
    assert bound in {sample.labels.get("le") for metric in samples for sample in metric.samples}


def test_every_panel_uses_the_datasource_that_is_provisioned() -> None:
    sources = yaml.safe_load((GRAFANA / "provisioning" / "datasources" / "prometheus.yaml").read_text())
    (uid,) = (source["uid"] for source in sources["datasources"])

    assert {panel["datasource"]["uid"] for panel in DASHBOARD["panels"]} == {uid}
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
