"""Dashboards, alerts and docs/metrics.md are those of the catalog of metrics, and parts have what they ask for."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import generate_latest

from deploy.dashboards.alerts import ALERTS
from deploy.dashboards.boards import BOARDS
from deploy.dashboards.files import files
from deploy.dashboards.panels import of_chosen
from services.router.errors import ErrorKind
from services.router.metrics import ChoiceEnd, RequestMetrics, RouterCollector
from services.router.metrics.requests import MAX_MODELS
from shared.metrics import Metric, Part, catalog, registry_of
from tests.unit.deploy.vllm_metrics import VLLM_METRICS

ROOT = Path(__file__).parents[3]
GRAFANA = ROOT / "deploy" / "grafana"


def expressions() -> list[str]:
    queries = [query.expression for board in BOARDS for panel in board.panels for query in panel.queries]
    return queries + [alert.expression for alert in ALERTS]


@pytest.mark.parametrize("name", files())
def test_a_file_is_what_the_code_writes(name: str) -> None:
    assert (ROOT / name).read_text() == files()[name], "run python -m deploy.dashboards"


def test_no_other_dashboard_lies_there() -> None:
    assert {path.stem for path in (GRAFANA / "dashboards").iterdir()} == {board.uid for board in BOARDS}


def test_every_metric_is_asked_for_by_a_part_that_has_it() -> None:
    metrics = {metric.name: metric for metric in catalog.ALL}
    asked = [(name, labels) for text in expressions() for name, labels in re.findall(r"([a-z0-9_:]+){([^}]*)}", text)]
    assert len(asked) > 60
    for name, labels in asked:
        if not name.startswith(("vllm:", "quire:")):
            continue
        metric = metrics.get(name) or metrics[re.sub(r"_(total|bucket|count|sum)$", "", name)]
        jobs = re.findall(r'job=~?"([^"]+)"', labels)[0].split("|")
        assert {*jobs} <= {part.value for part in metric.parts}, name


def test_panels_show_the_namespaces_and_models_that_the_reader_chooses() -> None:
    assert of_chosen('sum(rate(vllm:generation_tokens_total{job="router"}[5m]))') == (
        'sum(rate(vllm:generation_tokens_total{namespace=~"$namespace",model_name=~"$model",job="router"}[5m]))'
    )
    assert of_chosen('process_cpu_seconds_total{job="router"} / quire:event_loop_lag_seconds_count{job="router"}') == (
        'process_cpu_seconds_total{namespace=~"$namespace",job="router"} / '
        'quire:event_loop_lag_seconds_count{namespace=~"$namespace",job="router"}'
    )
    for board in BOARDS:
        shown = json.loads(files()[f"deploy/grafana/dashboards/{board.uid}.json"])
        source, namespace, model = shown["templating"]["list"]
        assert (source["name"], source["query"]) == ("source", "prometheus")
        assert [namespace["name"], model["name"]] == ["namespace", "model"]
        assert namespace["query"] == "label_values(quire:schedulers_ready, namespace)"
        assert model["query"] == 'label_values(quire:schedulers_ready{namespace=~"$namespace"}, model_name)'
        for choice in (namespace, model):
            assert choice["datasource"]["uid"] == "${source}"
            assert choice["allValue"] == ".*"


def test_names_are_prometheus_own() -> None:
    for metric in catalog.ALL:
        assert re.fullmatch(r"(vllm|quire):[a-z0-9_]+", metric.name)
        assert not metric.name.endswith("_total") or metric.kind == "histogram"
        assert bool(metric.bounds) == (metric.kind == "histogram")
        assert [*metric.bounds] == sorted(metric.bounds)
    assert len({metric.name for metric in catalog.ALL}) == len(catalog.ALL)


def kinds() -> dict[str, str]:
    return {metric.name + "_total" * (metric.kind == "counter"): metric.kind for metric in catalog.ALL}


def test_metrics_that_autoscalers_and_dashboards_of_vllm_ask_for_have_its_kinds() -> None:
    asked = {
        "vllm:num_requests_waiting": "gauge", "vllm:num_requests_running": "gauge", "vllm:kv_cache_usage_perc": "gauge",
        "vllm:generation_tokens_total": "counter", "vllm:prompt_tokens_total": "counter",
        "vllm:request_success_total": "counter", "vllm:prefix_cache_hits_total": "counter",
        "vllm:time_to_first_token_seconds": "histogram", "vllm:inter_token_latency_seconds": "histogram",
        "vllm:e2e_request_latency_seconds": "histogram", "vllm:iteration_tokens_total": "histogram",
    }  # fmt: skip
    assert asked.items() <= kinds().items()


def test_all_that_vllm_has_too_keeps_its_kind() -> None:
    both = VLLM_METRICS.keys() & kinds().keys()
    assert len(both) > 30
    assert {one: kinds()[one] for one in both} == {one: VLLM_METRICS[one] for one in both}
    assert VLLM_METRICS.keys() - both <= catalog.LEFT_OUT.keys()


# Bucket bounds of vLLM 0.33 (vllm/v1/metrics/buckets.py).
_LATENCY = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_FIRST = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560,
)  # fmt: skip
_NEXT = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_STEP = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
# Up to the length of the longest sequence of a model of 131,072 tokens.
_TOKENS = (
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000,
)  # fmt: skip
VLLM_BUCKETS = {
    catalog.E2E_REQUEST_LATENCY: _LATENCY, catalog.REQUEST_QUEUE_TIME: _LATENCY, catalog.REQUEST_PREFILL_TIME: _LATENCY,
    catalog.REQUEST_DECODE_TIME: _LATENCY, catalog.REQUEST_INFERENCE_TIME: _LATENCY,
    catalog.TIME_TO_FIRST_TOKEN: _FIRST, catalog.INTER_TOKEN_LATENCY: _NEXT, catalog.TIME_PER_OUTPUT_TOKEN: _NEXT,
    catalog.REQUEST_TIME_PER_OUTPUT_TOKEN: _NEXT, catalog.ITERATION_TOKENS: _STEP,
    catalog.REQUEST_PROMPT_TOKENS: _TOKENS, catalog.REQUEST_GENERATION_TOKENS: _TOKENS,
    catalog.REQUEST_MAX_NUM_GENERATION_TOKENS: _TOKENS, catalog.REQUEST_PARAMS_MAX_TOKENS: _TOKENS,
    catalog.REQUEST_PREFILL_KV_COMPUTED_TOKENS: _TOKENS,
    catalog.REQUEST_PARAMS_N: (1, 2, 5, 10, 20), catalog.REQUEST_NUM_PREEMPTIONS: (1, 2, 3, 4, 5, 10, 20),
}  # fmt: skip
# Labels of vLLM 0.33 besides model_name and engine.
VLLM_LABELS = {
    catalog.REQUEST_SUCCESS: {"finished_reason"}, catalog.PROMPT_TOKENS_BY_SOURCE: {"source"},
    catalog.PROMPT_TOKENS_CACHED_BY_SOURCE: {"source"}, catalog.NUM_REQUESTS_WAITING_BY_REASON: {"reason"},
    catalog.ADMISSION_REJECTIONS: {"reason"}, catalog.ENGINE_SLEEP_STATE: {"sleep_state"},
}  # fmt: skip
VLLM = [metric for metric in catalog.ALL if metric.name.startswith("vllm:")]


def test_histograms_of_vllm_have_its_bounds_and_those_of_alerts() -> None:
    histograms = {metric for metric in VLLM if metric.kind == "histogram"}
    assert histograms == VLLM_BUCKETS.keys()
    of_alerts = {_FIRST: {catalog.FIRST_TOKEN_TARGET_S}, _NEXT: {catalog.PER_TOKEN_TARGET_S}}
    for metric, theirs in VLLM_BUCKETS.items():
        assert set(theirs) <= set(metric.bounds)
        added = set(metric.bounds) - set(theirs)
        # A router serves models that are longer than one that vLLM serves.
        longer = {bound for bound in added if theirs is _TOKENS and bound > theirs[-1]}
        assert added - longer == of_alerts.get(theirs, set()), metric.name


def test_metrics_of_vllm_have_its_labels_but_for_the_engine() -> None:
    for metric in VLLM:
        if metric is not catalog.CACHE_CONFIG_INFO:
            assert set(metric.labels) == {*catalog.MODEL, *VLLM_LABELS.get(metric, ())}, metric.name


def test_what_is_left_out_is_not_there() -> None:
    assert not catalog.LEFT_OUT.keys() & kinds().keys()


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


def router_registry(requests: RequestMetrics) -> Any:
    return registry_of(RouterCollector(requests, NoSchedulers(), "r"))  # type: ignore[arg-type]


def one_request(**changes: Any) -> RequestMetrics:
    """Of a choice with a prompt of 10 tokens, of which a cache had 6, and 3 output tokens."""
    requests = RequestMetrics()
    timer = requests.start("model", n=2)
    start = timer.start
    timer.tokens(0, 1, start + 2.0, range(10))
    timer.tokens(0, 2, start + 3.0, range(10), is_recovered=changes.get("num_losses", 0) > 0)
    end: dict[str, Any] = {
        "reason": "stop", "num_prompt_tokens": 10, "num_tokens": 3, "max_num_tokens": 50, "num_cached_tokens": 6,
        "num_host_cached_tokens": 2, "num_preemptions": 1, "scheduled_at": start + 0.5,
    }  # fmt: skip
    timer.ended(0, ChoiceEnd(**end | changes))
    timer.closed(completed=True)
    return requests


def test_a_router_has_all_of_its_metrics() -> None:
    requests = one_request(num_losses=1)
    requests.errors["internal"] += 1
    requests.ignored_fields["chat"] += 1
    found = {metric.name for metric in router_registry(requests).collect()}
    assert found == {metric.name for metric in catalog.ALL if metric.parts[0] is Part.ROUTER and not is_of_all(metric)}


def test_a_router_keeps_the_series_of_the_models_that_were_asked_for_last() -> None:
    """However many versions come and go."""
    requests = RequestMetrics()
    for number in range(3 * MAX_MODELS):
        requests.start("canary", f"v{number}")
        requests.start("model")
    kept = {number for number in range(3 * MAX_MODELS) if ("canary", f"v{number}") in requests.models}
    assert kept == set(range(2 * MAX_MODELS + 1, 3 * MAX_MODELS))
    assert f"the series of the {MAX_MODELS} models" in files()["docs/metrics.md"]
    count = 'vllm:request_params_n_count{model_name="model",router="r"} 300.0'
    assert count in generate_latest(router_registry(requests)).decode()


def is_of_all(metric: Metric) -> bool:
    return not {Part.WORKER, Part.GATEWAY}.isdisjoint(metric.parts)


def test_a_request_is_measured_as_vllm_does() -> None:
    registry = router_registry(one_request())
    labels = {"model_name": "model", "router": "r"}

    def value(name: str, **further: str) -> float | None:
        found: float | None = registry.get_sample_value(name, labels | further)
        return found

    def total(metric: Metric) -> float | None:
        assert value(f"{metric.name}_count") == 1
        return value(f"{metric.name}_sum")

    assert total(catalog.REQUEST_QUEUE_TIME) == pytest.approx(0.5)
    assert total(catalog.REQUEST_PREFILL_TIME) == pytest.approx(1.5)
    assert total(catalog.REQUEST_DECODE_TIME) == pytest.approx(1.0)
    assert total(catalog.REQUEST_INFERENCE_TIME) == pytest.approx(2.5)
    assert total(catalog.TIME_TO_FIRST_TOKEN) == pytest.approx(2.0)
    assert total(catalog.REQUEST_TIME_PER_OUTPUT_TOKEN) == pytest.approx(0.5)
    assert total(catalog.E2E_REQUEST_LATENCY) is not None
    assert value("vllm:prompt_tokens_total") == 10
    assert total(catalog.REQUEST_PROMPT_TOKENS) == 10
    assert total(catalog.REQUEST_PREFILL_KV_COMPUTED_TOKENS) == 4
    assert total(catalog.REQUEST_GENERATION_TOKENS) == total(catalog.REQUEST_MAX_NUM_GENERATION_TOKENS) == 3
    assert total(catalog.REQUEST_PARAMS_MAX_TOKENS) == 50
    assert total(catalog.REQUEST_PARAMS_N) == 2
    assert total(catalog.REQUEST_NUM_PREEMPTIONS) == 1
    name = "vllm:prompt_tokens_by_source_total"
    sources = ("local_compute", "local_cache_hit", "external_kv_transfer")
    assert [value(name, source=source) for source in sources] == [4, 4, 2]
    assert value("vllm:prompt_tokens_cached_total") == 6
    assert value("quire:streams_recovered_total") == 0


def test_streams_that_were_recovered_or_lost_are_counted() -> None:
    requests = one_request(num_losses=2)
    timer = requests.start("model")
    timer.failed(ErrorKind.UNAVAILABLE)
    timer.closed(completed=False, losses=[0, 1])
    registry = router_registry(requests)
    labels = {"model_name": "model", "router": "r"}
    assert registry.get_sample_value("quire:streams_recovered_total", labels) == 1
    assert registry.get_sample_value("quire:streams_lost_total", labels) == 1
    assert registry.get_sample_value("quire:recovery_pause_seconds_sum", labels) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("kind", "ends"),
    [
        (ErrorKind.UNAVAILABLE, {"error": 2}),
        (ErrorKind.INTERNAL, {"error": 2}),
        (None, {"abort": 2}),
        (ErrorKind.TIMEOUT, {"abort": 2}),
        (ErrorKind.OVERLOADED, {}),
        (ErrorKind.INVALID_REQUEST, {}),
    ],
)
def test_only_own_faults_count_against_the_availability(kind: ErrorKind | None, ends: dict[str, int]) -> None:
    """Of two choices of three, because one has ended."""
    requests = RequestMetrics()
    timer = requests.start("model", n=3)
    timer.ended(1, ChoiceEnd("stop", 4))
    if kind is not None:
        timer.failed(kind)
    timer.closed(completed=False, losses=[0, 0])
    finished = requests.of_model("model", "").finished
    assert {reason: count for reason, count in finished.items() if count} == {"stop": 1, **ends}


def test_prompts_count_when_they_are_computed_and_once_for_each_choice() -> None:
    requests = RequestMetrics()
    timer, metrics = requests.start("model", n=2), requests.of_model("model", "")
    assert metrics.num_prompt_tokens == 0
    timer.tokens(0, 1, 1.0, range(7))
    timer.tokens(0, 1, 2.0, range(7))
    assert metrics.num_prompt_tokens == 7
    timer.tokens(1, 1, 2.0, range(7))
    timer.ended(1, ChoiceEnd("stop", 7, num_tokens=1))
    assert metrics.num_prompt_tokens == 14
    timer.ended(2, ChoiceEnd("stop", 5))  # of an embedding
    assert metrics.num_prompt_tokens == 19


def test_the_threshold_of_a_held_up_event_loop_is_a_bound() -> None:
    (alert,) = (alert for alert in ALERTS if alert.name == "EventLoopHeldUp")
    (bound,) = re.findall(r'le="([0-9.]+)"', alert.expression)
    assert float(bound) in catalog.EVENT_LOOP_LAG.bounds


def test_every_panel_uses_the_chosen_source_which_is_at_first_the_provisioned_one() -> None:
    sources = yaml.safe_load((GRAFANA / "provisioning" / "datasources" / "prometheus.yaml").read_text())
    assert [(one["type"], one["isDefault"]) for one in sources["datasources"]] == [("prometheus", True)]
    uid = "${source}"
    for path in (GRAFANA / "dashboards").iterdir():
        panels = [panel for panel in json.loads(path.read_text())["panels"] if panel["type"] != "row"]
        assert {panel["datasource"]["uid"] for panel in panels} == {uid}
        assert {target["datasource"]["uid"] for panel in panels for target in panel["targets"]} == {uid}


def test_every_dashboard_is_loaded_from_where_it_lies() -> None:
    provider = yaml.safe_load((GRAFANA / "provisioning" / "dashboards" / "quire.yaml").read_text())
    (path,) = (one["options"]["path"] for one in provider["providers"])
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    assert f"./deploy/grafana/dashboards:{path}:ro" in compose["services"]["grafana"]["volumes"]
