"""What the values of the Helm chart change in the parts and their pods."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from quire.cli.download import DownloadConfig
from quire.cli.stack import SERVICES
from tests.fakes.tools import import_or_skip
from tests.unit.deploy.charts import by_name, plain, stored
from tests.unit.deploy.kubernetes import (
    COMPONENT,
    RELEASE,
    ROOT,
    WORKLOADS,
    container_of,
    environment_of,
    helm,
    name_of,
    pod_of,
)
from tests.unit.deploy.test_containers import MARGIN_S, longest_stop_s, parse

import_or_skip("helm_python", "Helm's library exists for Linux on x86-64 only")


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


def test_schedulers_take_only_workers_of_their_model_and_version() -> None:
    options = {"model": "m", "served-model-name": "chat,alias", "model-version": 20261128}
    manifests = helm(models=[{"name": "new", "options": options}], redis=True)
    variables = environment_of(container_of(manifests.named("Deployment", f"{RELEASE}-new-scheduler")))
    assert variables["QUIRE_WORKER_MODEL"] == "chat@20261128"


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
