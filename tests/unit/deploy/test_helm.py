"""The Helm chart, rendered by Helm itself: the same objects as from kustomize; wrong values and names are refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from deploy.dashboards.alerts import ALERTS
from quire.cli.stack import SERVICES
from tests.fakes.tools import import_or_skip, needs
from tests.unit.deploy.chart_options import definition
from tests.unit.deploy.charts import by_name, scaled, stored
from tests.unit.deploy.kubernetes import (
    KUBECTL,
    MANIFESTS,
    RELEASE,
    ROOT,
    charted,
    helm,
    may_talk,
    name_of,
    refused_names,
    rendered,
)

helm_python = import_or_skip("helm_python", "Helm's library exists for Linux on x86-64 only")
# Each overlay with further components, and the values that stand for them.
PAIRS: list[tuple[str, tuple[str, ...], dict[str, Any]]] = [
    ("cpu", (), {}),
    ("gpu", (), {}),
    ("models", (), {}),
    ("models-gpu", (), {}),
    ("cpu", ("redis",), {"redis": True}),
    ("cpu", ("api-key", "hub-token"), {"apiKey": "quire-api-key", "hubToken": "quire-hub-token"}),
    ("cpu", ("monitoring",), {"monitoring": True}),
    ("cpu", ("gateway-api",), {"gatewayApi": True}),
    ("cpu", ("inference-pool",), {"inferencePool": True}),
    ("cpu", ("hpa-queue",), scaled("hpa-queue")),
    ("cpu", ("hpa-gpu",), scaled("hpa-gpu")),
    ("cpu", ("keda",), scaled("keda")),
    ("cpu", ("models-ephemeral",), stored(kind="ephemeral")),
    ("cpu", ("models-per-worker",), stored(kind="per-worker")),
]  # fmt: skip


@needs(KUBECTL, "kubectl")
@pytest.mark.parametrize(("overlay", "components", "values"), PAIRS, ids=lambda given: str(given)[:30])
def test_helm_and_kustomize_render_the_same(overlay: str, components: tuple[str, ...], values: dict[str, Any]) -> None:
    ours, theirs = by_name(helm(overlay, **values)), by_name(rendered(overlay, components))
    assert set(ours) == set(theirs)
    for name, one in ours.items():
        expected = theirs[name]
        if name[1] == "redis":
            # Its labels and selectors are Helm's own; the rest is the same.
            assert one["spec"].get("ports") == expected["spec"].get("ports")
            if name[0] == "Deployment":
                assert one["spec"]["template"]["spec"] == expected["spec"]["template"]["spec"]
            continue
        if "app.kubernetes.io/part-of" not in expected["metadata"]["labels"]:
            # kustomize's components label few of their objects, and those with less.
            assert expected["metadata"]["labels"].items() <= one["metadata"]["labels"].items()
            expected["metadata"]["labels"] = one["metadata"]["labels"]
        assert one == expected, name


@needs(KUBECTL, "kubectl")
@pytest.mark.parametrize("overlay", ["cpu", "models"])
def test_the_same_neighbours_may_talk(overlay: str) -> None:
    """Redis and its policy have labels of Helm's own, which the comparison above leaves out."""
    ours = {
        (one.removeprefix(f"{RELEASE}-"), other.removeprefix(f"{RELEASE}-"), port)
        for one, other, port in may_talk(helm(overlay, redis=True))
    }
    assert ours == may_talk(rendered(overlay, ("redis",)))


def test_the_lines_of_the_documentation_are_among_the_pairs() -> None:
    document = (ROOT / "docs" / "kubernetes.md").read_text()
    lines = re.findall(r"^helm install (\S+) (\S+)(?: --values (\S+))?$", document, re.MULTILINE)
    assert len(lines) == len(re.findall(r"^helm install", document, re.MULTILINE)) > 0
    for release, chart, values in lines:
        assert (release, ROOT / chart) == ("quire", MANIFESTS)
        assert not values or (ROOT / values).exists()
        assert (Path(values).stem or "cpu", (), {}) in PAIRS


def test_two_releases_in_one_namespace_do_not_select_each_others_pods() -> None:
    manifests = helm("models", redis=True)
    for one in manifests.of("Service", "Deployment", "StatefulSet", "PodDisruptionBudget", "NetworkPolicy"):
        selector = one["spec"].get("selector") or one["spec"]["podSelector"]
        labels = selector.get("matchLabels", selector)
        assert labels["app.kubernetes.io/instance"] == RELEASE, one["metadata"]["name"]
    assert all(one["metadata"]["name"].startswith(RELEASE) for one in manifests.objects)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"models": []}, "models"),
        ({"models": [{"name": "Not A Name"}]}, "models"),
        ({"models": [{"name": ""}, {"name": "b"}]}, "several models need a name each"),
        ({"models": [{"name": "a"}, {"name": "a"}]}, "several models have the name a"),
        ({"models": [{"name": "a", "download": True, "options": {}}]}, "download needs options.model"),
        ({"models": [{"name": "a", "scaling": "keda"}]}, "needs options.served-model-name"),
        ({"models": [{"name": "a", "scaling": "hpa-queue"}]}, "needs options.served-model-name"),
        (
            {"models": [{"name": "a", "options": {"model": "m"}}], "redis": True},
            "with redis, each model that has a name",
        ),
        ({"router": {"replicas": 0}}, "replicas"),
        ({"models": [{"name": "", "scaling": "magic"}]}, "scaling"),
        ({"mdoels": []}, "mdoels"),
        ({"gateway": {"options": {"--port": 1}}}, "--port"),
        ({"gateway": {"options": {"port": 9090}}}, "port"),
        ({"router": {"options": {"api-key": "secret"}}}, "api-key"),
        ({"router": {"options": {"redis-password": "secret"}}}, "redis-password"),
        ({"models": [{"name": "", "options": {"preset": "fast"}}]}, "preset"),
        ({"models": [{"name": "", "options": {"gpu-memory-utilization": 90}}]}, "gpu-memory-utilization"),
        ({"gateway": {"options": {"max-model-len": 1}}}, "max-model-len"),
        ({"router": {"options": {"max-nn": 1}}}, "max-nn"),
        ({"router": {"options": {"preset": "latency"}}}, "preset"),
        ({"models": [{"name": "", "schedulerOptions": {"model": "m"}}]}, "invalid propertyName 'model'"),
        ({"gateway": {"resources": {"memory": "1Gi"}}}, "memory"),
        ({"gateway": {"serviceType": "Public"}}, "serviceType"),
        ({"router": {"serviceType": "NodePort"}}, "serviceType"),
        ({"router": {"serviceAnnotations": {}}}, "serviceAnnotations"),
        ({"gateway": {"annotations": {"a": 1}}}, "annotations"),
        ({"gateway": {"runtimeClassName": "nvidia"}}, "runtimeClassName"),
        ({"models": [{"name": "", "schedulerPods": {"replicas": 3}}]}, "replicas"),
        (stored(kind="mine"), "kind"),
        (stored(existingClaim=1), "existingClaim"),
        (stored(existingClaim="mine", kind="per-worker"), "existingClaim is shared by all workers"),
        ({"redis": True, "environment": {"QUIRE_REDIS": "redis://r:6379"}}, "leave redis false"),
        (
            {"models": [{"name": "a", "options": {"model": "m"}}], "environment": {"QUIRE_REDIS": "redis://r:6379"}},
            "with redis, each model that has a name",
        ),
        ({"volumes": [{"name": "models", "emptyDir": {}}]}, "volumes"),
        ({"environmentFrom": [{"prefix": "A_"}]}, "environmentFrom"),
        (
            {"models": [{"name": "", "options": {"model": "m"}, "download": True, "storage": {"kind": "per-worker"}}]},
            "a volume that the job and the workers share",
        ),
        ({"environmentFrom": [{"secretRef": "redis"}]}, "secretRef"),
        ({"environmentFrom": [{"secret": {"name": "redis"}}]}, "secret"),
        ({"volumes": [{"secret": {"secretName": "redis"}}]}, "name"),
        ({"monitoring": True, "alerts": {"Unheard": {"limit": 1}}}, "Unheard"),
        ({"monitoring": True, "alerts": {"SlowTokens": {"for": "long"}}}, "for"),
        ({"monitoring": True, "alerts": {"StreamsLost": {"limit": 1}}}, "StreamsLost has no limit"),
        ({"environment": {"A-B": "c"}}, "A-B"),
        ({"monitoringLabels": {"release": 1}}, "release"),
        ({"runbooks": "docs"}, "runbooks"),
        ({"monitoringNamespace": "Metrics"}, "monitoringNamespace"),
        ({"prometheus": "prometheus:9090"}, "prometheus"),
        ({"parentRefs": [{"namespace": "a"}]}, "name"),
        ({"endpointPicker": {"name": "Picker"}}, "endpointPicker"),
        ({"endpointPicker": {"port": 0}}, "endpointPicker"),
        ({"models": [{"name": "", "scaling": "keda", "scaler": {"minimum": 0}}]}, "minimum"),
        (
            {"models": [{"name": "", "scaling": "keda", "scaler": {"minimum": 9}}]},
            "minimum is more than scaler.maximum",
        ),
    ],
)
def test_wrong_values_are_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(helm_python.HelmError, match=words):
        helm(**values)


def test_words_for_options_that_are_not_set_are_taken() -> None:
    options = {
        "model": "m",
        "max-model-len": -1,
        "quantization": "None",
        "swap-space": "auto",
        "max-num-batched-tokens": "4k",
    }
    manifests = helm(models=[{"name": "", "options": options}])
    assert next(manifests.of("StatefulSet"))


def test_the_schema_knows_the_alerts() -> None:
    schema = json.loads((MANIFESTS / "values.schema.json").read_text())
    assert set(schema["properties"]["alerts"]["propertyNames"]["enum"]) == {one.name for one in ALERTS}


@pytest.mark.parametrize("part", SERVICES)
def test_the_schema_knows_the_options_of_each_part(part: str) -> None:
    schema = json.loads((MANIFESTS / "values.schema.json").read_text())
    assert schema["definitions"][f"{part}Options"] == definition(part), "python -m tests.unit.deploy.chart_options"


@pytest.mark.parametrize(
    ("release", "model", "words"),
    [
        ("r" * 45, "", ""),
        ("r" * 46, "", "r-worker has 53 characters, and Kubernetes allows 52"),
        ("r" * 4, "m" * 40, ""),
        ("r" * 4, "m" * 41, "m-worker has 53 characters, and Kubernetes allows 52"),
        ("true", "7", ""),
        ("r2", "null", ""),
        ("2r", "", "2r must begin with a letter and have no dots"),
        ("r.2", "", "r.2 must begin with a letter and have no dots"),
    ],
)
def test_names_that_kubernetes_refuses_are_refused_and_no_others(release: str, model: str, words: str) -> None:
    options = {"model": "m", "served-model-name": "m"}
    everything: dict[str, Any] = {
        "models": [{"name": model, "options": options, "download": True, "scaling": "keda"}],
        **dict.fromkeys(("redis", "monitoring", "gatewayApi", "inferencePool"), True),
    }
    if words:
        with pytest.raises(helm_python.HelmError, match=words):
            helm(release=release, **everything)
        return
    manifests = helm(release=release, **everything)
    assert refused_names(manifests) == []
    (worker,) = manifests.of("StatefulSet")
    assert name_of(worker) == "-".join(filter(None, (release, model, "worker")))


def test_after_an_installation_helm_says_how_to_ask_a_question() -> None:
    (notes,) = (text for path, text in charted(release="chat").items() if path.endswith("NOTES.txt"))
    found = re.findall(
        r"--namespace default port-forward service/(\S+) (\d+):(\d+)\n  curl http://localhost:(\d+)/", notes
    )
    ((service, local, port, asked),) = found
    assert local == asked
    assert int(port) in {one["port"] for one in helm(release="chat").named("Service", service)["spec"]["ports"]}
    assert "ReadWriteMany" not in notes
    ((name, value),) = re.findall(r"get pods --selector (\S+)=(\S+)\n", notes)
    assert {one["metadata"]["labels"][name] for one in helm(release="chat").objects} == {value}


@pytest.mark.parametrize(
    ("model", "is_warned"),
    [
        ({"workers": 2}, True),
        ({"scaling": "keda"}, True),
        ({"workers": 1}, False),
        ({"workers": 2, "storage": {"accessModes": ["ReadWriteMany"]}}, False),
        ({"workers": 2, "storage": {"kind": "per-worker"}}, False),
        ({"workers": 2, "storage": {"existingClaim": "models"}}, False),
    ],
)
def test_helm_says_so_if_workers_share_a_volume_of_one_node(model: dict[str, Any], is_warned: bool) -> None:
    (notes,) = (text for path, text in charted(models=[{"name": "", **model}]).items() if path.endswith("NOTES.txt"))
    assert ("share a volume with ReadWriteOnce" in notes) == is_warned


def test_the_linter_has_nothing_to_say() -> None:
    messages = helm_python.lint(MANIFESTS, strict=True)["messages"]
    assert [message for message in messages if message["error"] != "icon is recommended"] == []
