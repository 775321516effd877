"""The Helm chart, rendered by Helm itself: the same objects as kustomize's, and values that are checked."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.dashboards.alerts import ALERTS, Alert
from quire.cli.download import DownloadConfig
from quire.cli.stack import SERVICES
from shared.presets import PRESETS
from tests.fakes.tools import needs
from tests.unit.deploy.kubernetes import (
    COMPONENT,
    KUBECTL,
    MANIFESTS,
    RELEASE,
    ROOT,
    WORKLOADS,
    Manifests,
    charted,
    container_of,
    environment_of,
    helm,
    may_talk,
    name_of,
    pod_of,
    refused_names,
    rendered,
)
from tests.unit.deploy.test_containers import MARGIN_S, longest_stop_s, parse

helm_python = pytest.importorskip("helm_python", reason="Helm's library exists for Linux on x86-64 only")
SCALERS = ("HorizontalPodAutoscaler", "ScaledObject")
# Labels that only Helm sets.
HELMS = {"helm.sh/chart", "app.kubernetes.io/managed-by", "app.kubernetes.io/instance"}


def scaled(scaling: str) -> dict[str, Any]:
    return {"models": [{"name": "", "options": {"device": "cpu"}, "scaling": scaling}]}


def stored(**storage: Any) -> dict[str, Any]:
    return {"models": [{"name": "", "options": {"device": "cpu"}, "storage": storage}]}


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
    ("cpu", ("hpa-queue",), scaled("hpa-queue")),
    ("cpu", ("hpa-gpu",), scaled("hpa-gpu")),
    ("cpu", ("keda",), scaled("keda")),
    ("cpu", ("models-ephemeral",), stored(kind="ephemeral")),
    ("cpu", ("models-per-worker",), stored(kind="per-worker")),
]  # fmt: skip


def plain(node: Any) -> Any:
    """An object without what Helm adds: the release's name in place of the chart's or at the beginning of others, the
    hash at the end of a job's name, and its labels. The order of entries with names does not matter. That each name
    leads to an object is tested in test_kubernetes.py."""
    if isinstance(node, dict):
        return {key: plain(value) for key, value in node.items() if key not in HELMS}
    if isinstance(node, list):
        items = [plain(one) for one in node]
        names = [one.get("name") if isinstance(one, dict) else None for one in items]
        return sorted(items, key=lambda one: str(one["name"])) if items and all(names) else items
    if isinstance(node, str):
        if node == RELEASE:
            return "quire"
        node = node.replace(f"redis://{RELEASE}-", "redis://").removeprefix(f"{RELEASE}-")
        return re.sub(r"^((?:[a-z-]+-)?download)-[0-9a-f]{8}$", r"\1", node)
    return node


def by_name(manifests: Manifests) -> dict[tuple[str, str], Any]:
    found = [plain(one) for one in manifests.objects]
    assert len(found) == len({(one["kind"], one["metadata"]["name"]) for one in found})
    for one in found:
        one["metadata"].setdefault("labels", {})
    return {(one["kind"], one["metadata"]["name"]): one for one in found}


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
                assert container_of(one) == container_of(expected)
            continue
        if "app.kubernetes.io/part-of" not in expected["metadata"]["labels"]:
            # kustomize's components do not label their objects.
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


def test_two_releases_in_one_namespace_do_not_select_each_others_pods() -> None:
    manifests = helm("models", redis=True)
    for one in manifests.of("Service", "Deployment", "StatefulSet", "PodDisruptionBudget", "NetworkPolicy"):
        selector = one["spec"].get("selector") or one["spec"]["podSelector"]
        labels = selector.get("matchLabels", selector)
        assert labels["app.kubernetes.io/instance"] == RELEASE, one["metadata"]["name"]
    assert all(one["metadata"]["name"].startswith(RELEASE) for one in manifests.objects)


def test_images_options_and_pull_secrets_reach_every_part() -> None:
    image = {"registry": "registry.example/team", "tag": "9", "pullPolicy": "Always", "pullSecrets": ["login"]}
    model = {"name": "", "options": {"model": "m", "max-model-len": 8192, "enforce-eager": True}, "download": True}
    manifests = helm(image=image, models=[model], router={"options": {"drain-timeout": 120}})
    for workload in manifests.of(*WORKLOADS):
        container = container_of(workload)
        assert container["image"].startswith("registry.example/team/quire-")
        assert container["image"].endswith(":9")
        assert container["imagePullPolicy"] == "Always"
        assert pod_of(workload)["imagePullSecrets"] == [{"name": "login"}]
    variables = environment_of(container_of(manifests.named("StatefulSet", f"{RELEASE}-worker")))
    assert variables["QUIRE_MODEL"] == "m"
    assert variables["QUIRE_MAX_MODEL_LEN"] == "8192"
    assert variables["QUIRE_ENFORCE_EAGER"] == "true"
    router = container_of(manifests.named("Deployment", f"{RELEASE}-router"))
    assert environment_of(router)["QUIRE_DRAIN_TIMEOUT"] == "120"
    (job,) = manifests.of("Job")
    assert environment_of(container_of(job)) == {"QUIRE_MODEL": "m", "HF_HOME": "/models"}
    assert plain(job["metadata"]["name"]) == "download"


def test_a_model_is_downloaded_as_its_workers_find_it_and_where_they_run() -> None:
    options = {"model": "m", "revision": "v1", "download-dir": "/models/hub", "max-model-len": 8192}
    place = {"nodeSelector": {"gpu": "h100"}, "tolerations": [{"key": "gpu", "operator": "Exists"}]}
    (job,) = helm(models=[{"name": "", "options": options, "download": True, **place}]).of("Job")
    asked = parse(DownloadConfig, [], environment_of(container_of(job)))
    assert asked == DownloadConfig("m", "v1", "/models/hub")
    assert {key: pod_of(job)[key] for key in place} == place


def test_a_job_with_other_pods_has_another_name() -> None:
    """Kubernetes refuses to change the pods of a job: an upgrade must replace it."""

    def job(model: str = "m", **values: Any) -> dict[str, Any]:
        (found,) = helm(models=[{"name": "", "options": {"model": model}, "download": True}], **values).of("Job")
        return found

    changed = [job(), job(model="n"), job(image={"tag": "9"}), job(image={"pullSecrets": ["login"]})]
    assert len({one["metadata"]["name"] for one in changed}) == len(changed)
    assert job() == job(router={"replicas": 3}, redis=True)


def test_a_longer_drain_gets_a_longer_grace_period() -> None:
    drain: dict[str, Any] = {"options": {"drain-timeout": 600.5}}
    models = [{"name": "", "options": drain["options"], "schedulerOptions": drain["options"]}]
    gateway = {"options": {"drain-delay": 100, "drain-timeout": 900}}
    for workload in helm(models=models, router=drain, gateway=gateway).of("Deployment", "StatefulSet"):
        part = workload["metadata"]["labels"][COMPONENT]
        config = parse(SERVICES[part], [], environment_of(container_of(workload)))
        assert config.drain_timeout == (900 if part == "gateway" else 600.5)
        needed = longest_stop_s(part, config) + MARGIN_S
        assert needed <= pod_of(workload)["terminationGracePeriodSeconds"] <= needed + 10


def test_the_token_of_the_hub_reaches_the_worker_and_the_download_alone() -> None:
    models = [{"name": "", "options": {"model": "m"}, "download": True}]
    of_secret = {"secretKeyRef": {"name": "gated", "key": "token", "optional": True}}
    for token, given in (("gated", [of_secret]), ("", [])):
        for workload in helm(models=models, hubToken=token).of(*WORKLOADS):
            asks = workload["metadata"]["labels"][COMPONENT] in ("worker", "download")
            found = [one["valueFrom"] for one in container_of(workload)["env"] if one["name"] == "HF_TOKEN"]
            assert found == (given if asks else [])


def test_a_limit_or_request_replaces_that_of_the_manifest_alone() -> None:
    given = {"limits": {"memory": "99Gi", "nvidia.com/gpu": 1}, "requests": {"cpu": 3}}
    changed = helm(models=[{"name": "", "resources": given}], gateway={"resources": given}, router={"resources": {}})
    usual = by_name(helm())
    for workload in changed.of(*WORKLOADS):
        of_manifest = container_of(usual[workload["kind"], plain(workload["metadata"]["name"])])["resources"]
        expected = {kind: of_manifest[kind] | given[kind] for kind in of_manifest}
        takes = workload["metadata"]["labels"][COMPONENT] in ("gateway", "worker")
        assert container_of(workload)["resources"] == (expected if takes else of_manifest)
        assert {"cpu", "memory"} <= container_of(workload)["resources"]["requests"].keys()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1073741824, "1073741824"),
        (1e6, "1000000"),
        (2**53, "9007199254740992"),
        (-1, "-1"),
        (0, "0"),
        (0.9, "0.9"),
        (0.0005, "0.0005"),
        (1234567.5, "1.2345675e+06"),
        (True, "true"),
        ("1e6", "1e6"),
        ("", ""),
    ],
)
def test_an_option_has_the_text_that_its_part_reads(value: object, text: str) -> None:
    worker = helm(models=[{"name": "", "options": {"step-log": value}}]).named("StatefulSet", f"{RELEASE}-worker")
    assert environment_of(container_of(worker))["QUIRE_STEP_LOG"] == text


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


def test_the_schema_knows_the_alerts() -> None:
    schema = json.loads((MANIFESTS / "values.schema.json").read_text())
    assert set(schema["properties"]["alerts"]["propertyNames"]["enum"]) == {one.name for one in ALERTS}


@pytest.mark.parametrize("part", SERVICES)
def test_the_schema_knows_the_options_of_each_part(part: str) -> None:
    schema = json.loads((MANIFESTS / "values.schema.json").read_text())
    names = {field.name.replace("_", "-") for field in dataclasses.fields(SERVICES[part])} - {"status-fd"}
    assert set(schema["definitions"][f"{part}Options"]["propertyNames"]["enum"]) == names


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
        **dict.fromkeys(("redis", "monitoring", "gatewayApi"), True),
    }
    if words:
        with pytest.raises(helm_python.HelmError, match=words):
            helm(release=release, **everything)
        return
    manifests = helm(release=release, **everything)
    assert refused_names(manifests) == []
    (worker,) = manifests.of("StatefulSet")
    assert name_of(worker) == "-".join(filter(None, (release, model, "worker")))


def test_schedulers_take_only_workers_of_their_model_and_version() -> None:
    options = {"model": "m", "served-model-name": "chat,alias", "model-version": 20261128}
    manifests = helm(models=[{"name": "new", "options": options}], redis=True)
    variables = environment_of(container_of(manifests.named("Deployment", f"{RELEASE}-new-scheduler")))
    assert variables["QUIRE_WORKER_MODEL"] == "chat@20261128"


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
            f'sum(vllm:num_requests_{state}{{job="scheduler",model_name="{name}-1"}})'
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


def test_the_gateway_alone_has_the_given_type_of_service_and_its_annotations() -> None:
    annotations = {"example.com/load-balancer": "internal"}
    given = {"serviceType": "LoadBalancer", "serviceAnnotations": annotations}
    services = list(helm(gateway=given, redis=True, gatewayApi=True).of("Service"))
    types = {one["metadata"]["name"]: one["spec"].get("type", "ClusterIP") for one in services}
    assert types.pop(f"{RELEASE}-gateway") == "LoadBalancer"
    assert set(types.values()) == {"ClusterIP"}
    annotated = {name_of(one): one["metadata"]["annotations"] for one in services if "annotations" in one["metadata"]}
    assert annotated == {f"{RELEASE}-gateway": annotations}


def test_pods_are_placed_as_the_values_say() -> None:
    def settings(name: str) -> dict[str, Any]:
        expression = {"matchExpressions": [{"key": "name", "operator": "In", "values": [name]}]}
        node = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [expression]}}
        return {
            "nodeSelector": {"pool": name},
            "tolerations": [{"key": name, "operator": "Exists"}],
            "affinity": {"nodeAffinity": node},
            "priorityClassName": name,
            "annotations": {"example.com/part": name},
        }

    model = {"name": "", "options": {"model": "m"}, "download": True, "schedulerPods": settings("scheduler")}
    model |= settings("worker") | {"runtimeClassName": "nvidia"}
    manifests = helm(gateway=settings("gateway"), router=settings("router"), models=[model], redis=True)
    for workload in manifests.of(*WORKLOADS):
        part, pod = workload["metadata"]["labels"][COMPONENT], pod_of(workload)
        # The job runs where workers run, but uses no GPU.
        expected = {} if part == "redis" else settings("worker" if part == "download" else part)
        annotations = workload["spec"]["template"]["metadata"].get("annotations", {})
        assert annotations == expected.pop("annotations", {})
        if part not in ("redis", "download"):
            # That of the manifest, which spreads over zones, stays.
            assert pod["affinity"].pop("podAntiAffinity")
        keys = ("nodeSelector", "tolerations", "affinity", "priorityClassName")
        assert {key: pod[key] for key in keys if key in pod} == expected
        assert pod.get("runtimeClassName") == ("nvidia" if part == "worker" else None)


def test_schedulers_have_the_given_resources() -> None:
    given = {"resources": {"requests": {"cpu": 3}, "limits": {"memory": "2Gi"}}}
    manifests = helm(models=[{"name": "", "options": {"device": "cpu"}, "schedulerPods": given}])
    found = container_of(manifests.named("Deployment", f"{RELEASE}-scheduler"))["resources"]
    assert found == {"requests": {"cpu": 3, "memory": "256Mi"}, "limits": {"memory": "2Gi"}}


def test_workers_use_a_claim_that_is_there_already() -> None:
    model = {"name": "", "options": {"model": "m"}, "download": True, "storage": {"existingClaim": "models-of-all"}}
    manifests = helm(models=[model])
    assert not list(manifests.of("PersistentVolumeClaim"))
    claims = {
        workload["kind"]: volume["persistentVolumeClaim"]["claimName"]
        for workload in manifests.of(*WORKLOADS)
        for volume in pod_of(workload)["volumes"]
        if "persistentVolumeClaim" in volume
    }
    assert claims == {"StatefulSet": "models-of-all", "Job": "models-of-all"}


def test_each_worker_has_a_volume_of_the_given_size() -> None:
    storage = {"kind": "per-worker", "size": "90Gi", "storageClassName": "fast", "accessModes": ["ReadWriteOncePod"]}
    (worker,) = helm(**stored(**storage)).of("StatefulSet")
    (claim,) = worker["spec"]["volumeClaimTemplates"]
    expected = {"accessModes": ["ReadWriteOncePod"], "resources": {"requests": {"storage": "90Gi"}}}
    assert claim["spec"] == {**expected, "storageClassName": "fast"}
    (worker,) = helm(**stored(kind="ephemeral", size="9Gi")).of("StatefulSet")
    (volume,) = [one for one in pod_of(worker)["volumes"] if one["name"] == "models"]
    assert volume == {"name": "models", "emptyDir": {"sizeLimit": "9Gi"}}


def test_every_part_has_the_given_secrets_and_volumes() -> None:
    sources = [{"secretRef": {"name": "quire-redis"}}, {"configMapRef": {"name": "tracing", "optional": True}}]
    volume = {"name": "ca", "secret": {"secretName": "quire-redis-ca"}}
    mount = {"name": "ca", "mountPath": "/etc/quire/redis", "readOnly": True}
    models = [{"name": "", "options": {"model": "m", "device": "cpu"}, "download": True}]
    given: dict[str, Any] = {"environmentFrom": sources, "volumes": [volume], "volumeMounts": [mount]}
    usual = by_name(helm(models=models, redis=True))
    for workload in helm(models=models, redis=True, **given).of(*WORKLOADS):
        part, container = workload["metadata"]["labels"][COMPONENT], container_of(workload)
        before = usual[workload["kind"], plain(name_of(workload))]
        if part == "redis":
            assert container == container_of(before)
            continue
        assert container["envFrom"] == sources
        assert sorted(map(str, plain(pod_of(workload)["volumes"]))) == sorted(
            map(str, [*pod_of(before)["volumes"], volume])
        )
        assert mount in container["volumeMounts"]
        assert len(container["volumeMounts"]) == len(container_of(before)["volumeMounts"]) + 1


def test_the_values_of_the_documentation_lead_to_a_redis_of_ones_own() -> None:
    blocks = re.findall(
        r"^```yaml\n(.*?)^```$", (ROOT / "docs" / "kubernetes.md").read_text(), re.MULTILINE | re.DOTALL
    )
    values = yaml.safe_load(blocks[-1])
    for workload in helm(**values).of(*WORKLOADS):
        part, container = workload["metadata"]["labels"][COMPONENT], container_of(workload)
        config = parse(SERVICES[part], [], environment_of(container))
        assert config.redis.startswith("rediss://")
        assert Path(config.redis_ca).parent in {Path(one["mountPath"]) for one in container["volumeMounts"]}
        assert container["envFrom"] == [{"secretRef": {"name": "quire-redis"}}]


def test_schedulers_have_the_preset_of_their_workers() -> None:
    def presets(**more: Any) -> dict[str, str | None]:
        manifests = helm(models=[{"name": "", "options": {"preset": "latency"}, **more}])
        workloads = manifests.of("Deployment", "StatefulSet")
        return {
            one["metadata"]["labels"][COMPONENT]: environment_of(container_of(one)).get("QUIRE_PRESET")
            for one in workloads
        }

    assert presets() == {"gateway": None, "router": None, "scheduler": "latency", "worker": "latency"}
    (worker, scheduler) = (
        environment_of(container_of(one))["QUIRE_MAX_NUM_BATCHED_TOKENS"]
        for part in ("worker", "scheduler")
        for one in helm(
            models=[{"name": "", "options": {"preset": "long-context", "max-num-batched-tokens": 8192}}]
        ).objects
        if one["kind"] in WORKLOADS and one["metadata"]["labels"][COMPONENT] == part
    )
    assert worker == scheduler == "8192"
    assert presets(schedulerOptions={"preset": "throughput"})["scheduler"] == "throughput"


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
    assert rule["expr"] == re.sub(rf"([<>]) {re.escape(alert.limit)}(?= |$)", r"\1 0.125", alert.expression)
    assert rule["annotations"]["summary"] == re.sub(whole, "0.125", alert.meaning)
    assert rule["annotations"]["limit"] == "0.125"


def test_every_part_has_the_given_environment() -> None:
    models = [{"name": "", "options": {"model": "m", "device": "cpu"}, "download": True}]
    given = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4317", "OTEL_TRACES_SAMPLER_ARG": 0.5, "QUIRE_MODEL": "n"}
    for workload in helm(models=models, environment=given, redis=True).of(*WORKLOADS):
        part, variables = workload["metadata"]["labels"][COMPONENT], environment_of(container_of(workload))
        if part == "redis":
            assert not variables
            continue
        assert variables["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://collector:4317"
        assert variables["OTEL_TRACES_SAMPLER_ARG"] == "0.5"
        own = part in ("download", "worker")
        assert variables["QUIRE_MODEL"] == ("m" if own else "n"), "the chart's own values come first"
        names = [entry["name"] for entry in container_of(workload)["env"]]
        assert len(names) == len(set(names))


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
    (usual,) = helm(gatewayApi=True).of("InferencePool")
    for given in ({"name": "pool-epp", "port": 9003}, {"port": 9003}, {"name": "pool-epp"}):
        (pool,) = helm(gatewayApi=True, endpointPicker=given).of("InferencePool")
        expected = {"name": "quire-endpoint-picker", "port": 9002} | given
        reference = {"name": expected["name"], "port": {"number": expected["port"]}}
        assert pool["spec"] == usual["spec"] | {"endpointPickerRef": usual["spec"]["endpointPickerRef"] | reference}


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
