"""What the values of the Helm chart change in scalers, alerts and other operators' objects."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from deploy.dashboards.alerts import ALERTS, Alert
from shared.presets import PRESETS
from tests.fakes.tools import import_or_skip
from tests.unit.deploy.charts import OWN_NAMESPACE, SCALERS, plain, scaled
from tests.unit.deploy.kubernetes import (
    RELEASE,
    helm,
)

import_or_skip("helm_python", "Helm's library exists for Linux on x86-64 only")


def test_prometheus_may_be_in_another_namespace() -> None:
    address = "https://prometheus.metrics:9090"
    manifests = helm(**scaled("keda"), monitoringNamespace="metrics", prometheus=address, redis=True)
    namespaces = {
        peer["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"]
        for policy in manifests.of("NetworkPolicy")
        for rule in policy["spec"]["ingress"]
        for peer in rule.get("from", ())
        if "namespaceSelector" in peer
    }
    assert namespaces == {"metrics"}
    (scaler,) = manifests.of("ScaledObject")
    assert [one["metadata"]["serverAddress"] for one in scaler["spec"]["triggers"]] == [address] * 2


def test_keda_asks_for_the_queue_of_the_model_that_it_scales() -> None:
    models = [
        {"name": name, "options": {"served-model-name": f"{name}-1,alias", "device": "cpu"}, "scaling": "keda"}
        for name in ("a", "b")
    ]
    queries = {
        one["spec"]["scaleTargetRef"]["name"]: [trigger["metadata"]["query"] for trigger in one["spec"]["triggers"]]
        for one in helm(models=models).of("ScaledObject")
    }
    assert queries == {
        f"{RELEASE}-{name}-worker": [
            f'sum(vllm:num_requests_{state}{{namespace="default",job="scheduler",model_name="{name}-1"}})'
            for state in ("waiting", "running")
        ]
        for name in ("a", "b")
    }


@pytest.mark.parametrize(("most", "kept"), [(None, "205"), (256, "205"), (32, "26"), (1, "1")])
def test_scalers_keep_workers_that_run_four_in_five_of_the_most_sequences(most: int | None, kept: str) -> None:
    options = {} if most is None else {"max-num-seqs": most}
    (hpa,) = helm(models=[{"name": "", "options": options, "scaling": "hpa-queue"}]).of(*SCALERS)
    assert [one["external"]["target"]["averageValue"] for one in hpa["spec"]["metrics"]] == ["10", kept]
    (keda,) = helm(models=[{"name": "", "options": options, "scaling": "keda"}]).of(*SCALERS)
    assert [one["metadata"]["threshold"] for one in keda["spec"]["triggers"]] == ["10", kept]
    presets = {name: values["max-num-seqs"] for name, values in PRESETS.items()}
    for name, number in presets.items():
        for at_once in (number, most) if most else (number,):
            preset = {"preset": name} | ({} if at_once == number else {"max-num-seqs": at_once})
            (keda,) = helm(models=[{"name": "", "options": preset, "scaling": "keda"}]).of(*SCALERS)
            assert keda["spec"]["triggers"][1]["metadata"]["threshold"] == str(math.ceil(0.8 * at_once))
    (gpu,) = helm(models=[{"name": "", "options": options, "scaling": "hpa-gpu"}]).of(*SCALERS)
    (usual,) = helm(**scaled("hpa-gpu")).of(*SCALERS)
    assert gpu["spec"]["metrics"] == usual["spec"]["metrics"]


@pytest.mark.parametrize(
    ("scaling", "threshold", "text"), [("hpa-queue", 25, "25"), ("hpa-gpu", 0.65, "0.65"), ("keda", 2.5, "2.5")]
)
def test_a_scaler_has_the_given_bounds_and_threshold(scaling: str, threshold: float, text: str) -> None:
    def spec(**scaler: float) -> dict[str, Any]:
        (found,) = helm(models=[{"name": "", "scaling": scaling, "scaler": scaler}]).of(*SCALERS)
        found_spec: dict[str, Any] = found["spec"]
        return found_spec

    given, usual = spec(minimum=2, maximum=40, threshold=threshold), spec()
    if scaling == "keda":
        expected = usual | {"minReplicaCount": 2, "maxReplicaCount": 40}
        expected["triggers"][0]["metadata"]["threshold"] = text
    else:
        expected = usual | {"minReplicas": 2, "maxReplicas": 40}
        metric = expected["metrics"][0]
        metric[metric["type"].lower()]["target"]["averageValue"] = text
    assert given == expected
    assert given != spec()


def rules_of(**values: Any) -> dict[str, dict[str, Any]]:
    (found,) = helm(monitoring=True, **values).of("PrometheusRule")
    return {rule["alert"]: rule for group in found["spec"]["groups"] for rule in group["rules"]}


def test_alerts_are_changed_as_the_values_say() -> None:
    usual = rules_of()
    changed = rules_of(alerts={"SlowTokens": {"for": "1h", "severity": "info"}, "StreamsLost": {"enabled": False}})
    assert changed.keys() == usual.keys() - {"StreamsLost"}
    assert (changed["SlowTokens"]["for"], changed["SlowTokens"]["labels"]) == ("1h", {"severity": "info"})
    assert {name: rule for name, rule in changed.items() if name != "SlowTokens"} == {
        name: rule for name, rule in usual.items() if name not in ("SlowTokens", "StreamsLost")
    }


@pytest.mark.parametrize("alert", [one for one in ALERTS if one.limit], ids=lambda one: one.name)
def test_another_limit_of_an_alert_is_in_its_expression_and_in_its_sentence(alert: Alert) -> None:
    rule = rules_of(alerts={alert.name: {"limit": 0.125}})[alert.name]
    whole = rf"(?<![0-9.]){re.escape(alert.limit)}(?![0-9])"
    assert len(re.findall(rf"[<>] {re.escape(alert.limit)}(?= |$)", alert.expression)) == 1
    assert plain(rule["expr"]) == re.sub(rf"([<>]) {re.escape(alert.limit)}(?= |$)", r"\1 0.125", alert.expression)
    assert rule["annotations"]["summary"] == re.sub(whole, "0.125", alert.meaning)
    assert rule["annotations"]["limit"] == "0.125"


def test_scalers_and_alerts_see_the_namespace_of_the_release_alone() -> None:
    (keda,) = helm(**scaled("keda")).of("ScaledObject")
    queries = [trigger["metadata"]["query"] for trigger in keda["spec"]["triggers"]]
    for query in (*queries, *(rule["expr"] for rule in rules_of().values())):
        assert query.count("{" + OWN_NAMESPACE) == query.count("{") > 0, query


def test_monitors_and_rules_have_the_labels_that_an_operator_selects_by() -> None:
    manifests = helm(monitoring=True, monitoringLabels={"release": "prometheus"}, runbooks="https://git.local/quire/")
    labelled = [one for one in manifests.objects if one["metadata"]["labels"].get("release") == "prometheus"]
    assert [one["kind"] for one in labelled] == ["ServiceMonitor", "PrometheusRule"]
    rules = [rule for group in labelled[1]["spec"]["groups"] for rule in group["rules"]]
    links = [rule["annotations"]["runbook_url"] for rule in rules]
    assert links == [f"https://git.local/quire/docs/alerts.md#{rule['alert'].lower()}" for rule in rules]
    assert all(one["metadata"]["labels"]["app.kubernetes.io/instance"] == RELEASE for one in labelled)


def test_the_route_belongs_to_the_given_gateways() -> None:
    parents = [{"name": "public", "namespace": "gateways", "sectionName": "https", "port": 443}, {"name": "private"}]
    (route,) = helm(gatewayApi=True, parentRefs=parents).of("HTTPRoute")
    assert route["spec"]["parentRefs"] == parents


def test_the_inference_pool_asks_the_given_endpoint_picker() -> None:
    (usual,) = helm(inferencePool=True).of("InferencePool")
    for given in ({"name": "pool-epp", "port": 9003}, {"port": 9003}, {"name": "pool-epp"}):
        (pool,) = helm(inferencePool=True, endpointPicker=given).of("InferencePool")
        expected = {"name": "quire-endpoint-picker", "port": 9002} | given
        reference = {"name": expected["name"], "port": {"number": expected["port"]}}
        assert pool["spec"] == usual["spec"] | {"endpointPickerRef": usual["spec"]["endpointPickerRef"] | reference}
