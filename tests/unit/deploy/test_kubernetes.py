"""The manifests, rendered by the real kubectl and by Helm: schemas, and what an API server, a kubelet or an operator
would find."""

from __future__ import annotations

import dataclasses
import math
import os
import re
import shlex
import subprocess
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from quire.cli.stack import SERVICES
from services.worker.config import WorkerConfig
from shared.grpc_server import LIVENESS, READINESS
from tests.fakes.ports import free_port
from tests.fakes.tools import needs
from tests.fakes.waiting import HANG_S
from tests.unit.deploy.kubernetes import (
    COMPONENT,
    KUBECTL,
    MANIFESTS,
    ROOT,
    WORKLOADS,
    Manifests,
    container_of,
    environment_of,
    kustomized,
    may_talk,
    name_of,
    pod_labels,
    pod_of,
    rendered,
)
from tests.unit.deploy.renderings import SCALERS, Given, rendering, title
from tests.unit.deploy.test_containers import (
    COMPOSE,
    MARGIN_S,
    image_environment,
    instructions,
    longest_stop_s,
    parse,
)
from tests.unit.test_documented_names import METRICS

pytestmark = needs(KUBECTL, "kubectl")
# The oldest Kubernetes that has everything in use, and the newest that the schemas know.
VERSIONS = ("1.30", kubernetes_validate.latest_version())
SEVERAL_MODELS: list[Given] = [
    (overlay, more)
    for overlay in ("models", "models-gpu")
    for more in (("monitoring", "redis"), {"monitoring": True, "redis": True})
]
CORE_GROUPS = {"v1", "apps", "batch", "policy", "autoscaling", "networking.k8s.io"}
# Kinds that come with an operator.
OPERATOR_KINDS = {"ServiceMonitor", "PrometheusRule", "ScaledObject", "HTTPRoute", "InferencePool"}


@pytest.fixture(params=SEVERAL_MODELS, ids=title, scope="module")
def several_models(request: pytest.FixtureRequest) -> Manifests:
    return rendering(request.param)


def test_core_kinds_have_the_form_of_their_schemas(manifests: Manifests) -> None:
    for one in manifests.objects:
        if one["apiVersion"].partition("/")[0] in CORE_GROUPS:
            for version in VERSIONS:
                kubernetes_validate.validate(one, version, strict=True)
        else:
            assert one["kind"] in OPERATOR_KINDS


def test_workloads_select_their_own_pods_and_nobody_elses(manifests: Manifests) -> None:
    for workload in manifests.of("Deployment", "StatefulSet"):
        assert manifests.selected(workload["spec"]["selector"]["matchLabels"]) == [workload]


def test_services_lead_to_ports_that_containers_have(manifests: Manifests) -> None:
    for service in manifests.of("Service"):
        workloads = manifests.selected(service["spec"]["selector"])
        assert workloads, service["metadata"]["name"]
        for workload in workloads:
            ports = container_of(workload)["ports"]
            known = {port["name"] for port in ports} | {port["containerPort"] for port in ports}
            for port in service["spec"]["ports"]:
                assert port.get("targetPort", port["port"]) in known
    for stateful_set in manifests.of("StatefulSet"):
        service = manifests.named("Service", stateful_set["spec"]["serviceName"])
        assert service["spec"]["clusterIP"] == "None"
        assert manifests.selected(service["spec"]["selector"]) == [stateful_set]


def test_names_have_addresses_before_their_pods_are_ready(manifests: Manifests) -> None:
    """A name without an address looks like a name server that is lost, which an alert tells of."""
    headless = {
        one["metadata"]["labels"][COMPONENT]: one["spec"]["publishNotReadyAddresses"]
        for one in manifests.of("Service")
        if one["spec"].get("clusterIP") == "None"
    }
    assert headless == {"router": True, "scheduler": True, "worker": True}


def test_probes_ask_what_the_documentation_says(manifests: Manifests) -> None:
    """Each of them is answered: tests/e2e/test_kubernetes.py."""
    runs, healthy = ("metrics", "/metrics"), ("http", "/health")
    live, ready = ("grpc", LIVENESS), ("grpc", READINESS)
    questions = {
        "gateway": (runs, runs, healthy),
        "router": (live, live, ready),
        "scheduler": (live, live, ready),
        "worker": (ready, live, ready),
    }
    for workload in manifests.of("Deployment", "StatefulSet"):
        part, container = pod_labels(workload)[COMPONENT], container_of(workload)
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        if part == "redis":
            assert {"livenessProbe", "readinessProbe"} <= container.keys()
            continue
        asked = []
        for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
            if "grpc" in container[kind]:
                assert container[kind]["grpc"]["port"] == ports["grpc"]
                asked.append(("grpc", container[kind]["grpc"]["service"]))
            else:
                asked.append((container[kind]["httpGet"]["port"], container[kind]["httpGet"]["path"]))
        assert tuple(asked) == questions[part], workload["metadata"]["name"]


def test_options_exist_and_addresses_lead_to_services(manifests: Manifests) -> None:
    ports = {"router": 50051, "scheduler": 50052, "worker": 50071, "redis": 6379}
    for workload in manifests.of("Deployment", "StatefulSet"):
        part = pod_labels(workload)[COMPONENT]
        if part not in SERVICES:
            continue
        variables = environment_of(container_of(workload))
        known = {name: value for name, value in variables.items() if name.startswith("QUIRE_")}
        config = parse(SERVICES[part], [], image_environment(part) | known)
        assert config.metrics_port == 9000
        fields = {field.name for field in dataclasses.fields(SERVICES[part])}
        assert {name.removeprefix("QUIRE_").lower() for name in known} <= fields
        addresses = [(other, one) for other in ("router", "scheduler", "worker") for one in getattr(config, other, ())]
        if config.redis:
            addresses.append(("redis", config.redis.removeprefix("redis://")))
        for called, address in addresses:
            host, _, port = address.rpartition(":")
            service = manifests.named("Service", host)
            assert {pod_labels(one)[COMPONENT] for one in manifests.selected(service["spec"]["selector"])} == {called}
            assert int(port) == ports[called]
            assert int(port) in {entry["port"] for entry in service["spec"]["ports"]}


def test_schedulers_use_the_workers_of_their_own_model_and_routers_all_schedulers(several_models: Manifests) -> None:
    manifests, prefix = several_models, several_models.prefix
    models = {}
    for scheduler in (one for one in manifests.of("Deployment") if pod_labels(one)[COMPONENT] == "scheduler"):
        host = environment_of(container_of(scheduler))["QUIRE_WORKER"].partition(":")[0]
        (worker,) = manifests.selected(manifests.named("Service", host)["spec"]["selector"])
        models[environment_of(container_of(worker))["QUIRE_SERVED_MODEL_NAME"]] = pod_labels(scheduler)
        volumes = {volume["name"]: volume for volume in pod_of(worker)["volumes"]}
        manifests.named("PersistentVolumeClaim", volumes["models"]["persistentVolumeClaim"]["claimName"])
    assert {name: labels["model"] for name, labels in models.items()} == {
        "chat": "chat", "embed": "embed"
    }  # fmt: skip
    found = manifests.selected(manifests.named("Service", f"{prefix}scheduler")["spec"]["selector"])
    assert sorted(map(name_of, found)) == [f"{prefix}chat-scheduler", f"{prefix}embed-scheduler"]
    router = manifests.named("Deployment", f"{prefix}router")
    assert environment_of(container_of(router))["QUIRE_DEFAULT_MODEL"] in models


def test_pods_may_take_as_long_to_stop_as_their_part(manifests: Manifests) -> None:
    for workload in manifests.of("Deployment", "StatefulSet"):
        part = pod_labels(workload)[COMPONENT]
        if part not in SERVICES:
            continue
        container, pod = container_of(workload), pod_of(workload)
        config = parse(SERVICES[part], [], environment_of(container))
        assert "lifecycle" not in container, "a preStop would take its time off the grace period"
        assert pod["terminationGracePeriodSeconds"] >= longest_stop_s(part, config) + MARGIN_S


def test_disruption_budgets_allow_to_drain_a_node_and_keep_a_replica(manifests: Manifests) -> None:
    budgets = list(manifests.of("PodDisruptionBudget"))
    covered = [
        name_of(one) for budget in budgets for one in manifests.selected(budget["spec"]["selector"]["matchLabels"])
    ]
    quires = [one for one in manifests.of("Deployment", "StatefulSet") if pod_labels(one)[COMPONENT] in SERVICES]
    assert sorted(covered) == sorted(map(name_of, quires))
    for budget in budgets:
        assert budget["spec"]["maxUnavailable"] == 1
        # Without a worker, no gateway and no router is ready, and none could be evicted.
        assert budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
    assert all(one["spec"]["replicas"] >= 2 for one in quires if pod_labels(one)[COMPONENT] != "worker")


def test_containers_have_no_privileges_and_bounded_memory(manifests: Manifests) -> None:
    for workload in manifests.of(*WORKLOADS):
        container, pod = container_of(workload), pod_of(workload)
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
        }  # fmt: skip
        assert {"cpu", "memory"} <= set(container["resources"]["requests"])
        assert "memory" in container["resources"]["limits"]
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        claimed = {one["metadata"]["name"] for one in workload["spec"].get("volumeClaimTemplates", ())}
        assert set(mounts) == {volume["name"] for volume in pod["volumes"]} | claimed
        part = pod_labels(workload)[COMPONENT]
        if part in SERVICES:
            (user,) = instructions(part, "USER")
            security = pod["securityContext"]
            assert user == f"{security['runAsUser']}:{security['runAsGroup']}"
            assert "/tmp" in mounts.values()


def test_replicas_are_spread_over_nodes_and_zones_and_workers_have_memory_to_share(manifests: Manifests) -> None:
    for workload in manifests.of("Deployment", "StatefulSet"):
        part, pod = pod_labels(workload)[COMPONENT], pod_of(workload)
        if part not in SERVICES:
            continue
        (spread,) = pod["topologySpreadConstraints"]
        assert (spread["maxSkew"], spread["topologyKey"]) == (1, "kubernetes.io/hostname")
        (preferred,) = pod["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
        term = preferred["podAffinityTerm"]
        assert term["topologyKey"] == "topology.kubernetes.io/zone"
        for one in (spread, term):
            assert manifests.selected(one["labelSelector"]["matchLabels"]) == [workload]
        if part == "worker":
            (shared,) = [one for one in container_of(workload)["volumeMounts"] if one["mountPath"] == "/dev/shm"]
            (volume,) = [one for one in pod["volumes"] if one["name"] == shared["name"]]
            assert volume["emptyDir"]["medium"] == "Memory"


def test_workers_may_load_for_an_hour_before_they_are_started_again(manifests: Manifests) -> None:
    for workload in manifests.of("Deployment", "StatefulSet"):
        part = pod_labels(workload)[COMPONENT]
        if part in SERVICES:
            probe = container_of(workload)["startupProbe"]
            assert probe["periodSeconds"] * probe["failureThreshold"] >= (3600 if part == "worker" else 60)


def test_images_are_those_of_compose(manifests: Manifests) -> None:
    images = {service["image"] for service in COMPOSE["services"].values()}
    for workload in manifests.of(*WORKLOADS):
        assert container_of(workload)["image"] in images


@pytest.mark.parametrize(("overlay", "models"), [("cpu", ("",)), ("models", ("chat-", "embed-"))])
def test_only_the_right_neighbours_talk(overlay: str, models: tuple[str, ...]) -> None:
    manifests = rendered(overlay, ("redis",))
    parts = {"gateway", "router", *(f"{model}{part}" for model in models for part in ("scheduler", "worker"))}
    prometheus = str({"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}})
    assert may_talk(manifests) == {
        ("None", "gateway", "http"),
        ("gateway", "router", "grpc"),
        *(("router", f"{model}scheduler", "grpc") for model in models),
        *((f"{model}scheduler", f"{model}worker", "grpc") for model in models),
        *((prometheus, part, "metrics") for part in parts),
        *((part, "redis", "redis") for part in parts),
    }


def test_schedulers_of_several_models_know_their_own_worker(several_models: Manifests) -> None:
    """Also if they find the workers of all models in Redis."""
    for model in ("chat", "embed"):
        names = [f"{several_models.prefix}{model}-{part}" for part in ("scheduler", "worker")]
        variables = environment_of(container_of(several_models.named("Deployment", names[0])))
        served = environment_of(container_of(several_models.named("StatefulSet", names[1])))
        assert variables["QUIRE_WORKER_MODEL"] == served["QUIRE_SERVED_MODEL_NAME"] == model


def test_a_model_among_several_has_a_download_and_a_scaler_of_its_own() -> None:
    manifests = rendered("models-gpu")
    worker = manifests.named("StatefulSet", "chat-worker")
    job = manifests.named("Job", "chat-download")
    assert environment_of(container_of(job))["QUIRE_MODEL"] == environment_of(container_of(worker))["QUIRE_MODEL"]
    volumes = [next(one for one in pod_of(of)["volumes"] if one["name"] == "models") for of in (job, worker)]
    assert volumes[0] == volumes[1]
    scaler = manifests.named("HorizontalPodAutoscaler", "chat-worker")["spec"]
    assert scaler["scaleTargetRef"]["name"] == "chat-worker"
    assert "replicas" not in worker["spec"]
    served = environment_of(container_of(worker))["QUIRE_SERVED_MODEL_NAME"]
    selectors = [metric["external"]["metric"]["selector"] for metric in scaler["metrics"]]
    assert selectors == [{"matchLabels": {"model_name": served}}] * 2


def test_a_job_that_has_ended_goes_so_that_a_changed_one_can_be_applied() -> None:
    """Kubernetes refuses to change the pods of a job that exists."""
    manifests = rendered("models-gpu")
    assert all(job["spec"]["ttlSecondsAfterFinished"] == 600 for job in manifests.of("Job"))
    document = (ROOT / "docs" / "kubernetes.md").read_text()
    assert "Ten minutes after its end" in document
    (name,) = re.findall(r"`kubectl -n quire delete job (\S+) --ignore-not-found`", document)
    assert manifests.named("Job", name)


def test_all_scalers_remove_workers_one_at_a_time() -> None:
    components = MANIFESTS / "components"
    (keda,) = yaml.safe_load_all((components / "keda" / "scaled-object.yaml").read_text())
    fallback = {"failureThreshold": 3, "replicas": 1, "behavior": "currentReplicasIfHigher"}
    assert keda["spec"]["fallback"] == fallback, "without Prometheus, no worker comes or goes"
    assert [trigger["metadata"]["ignoreNullValues"] for trigger in keda["spec"]["triggers"]] == ["false"] * 2
    behaviors = [keda["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]]
    for name in ("hpa-gpu", "hpa-queue"):
        (scaler,) = yaml.safe_load_all((components / name / "hpa.yaml").read_text())
        behaviors.append(scaler["spec"]["behavior"])
    assert behaviors == [behaviors[0]] * 3
    assert behaviors[0]["scaleDown"]["policies"] == [{"type": "Pods", "value": 1, "periodSeconds": 60}]


def test_workers_take_as_many_threads_as_they_ask_for_cpus(manifests: Manifests) -> None:
    """By default they take one for each core of the node."""
    for workload in manifests.of("StatefulSet"):
        container = container_of(workload)
        (threads,) = [one for one in container["env"] if one["name"] == "QUIRE_NUM_THREADS"]
        assert threads["valueFrom"] == {"resourceFieldRef": {"resource": "requests.cpu"}}
        assert int(container["resources"]["requests"]["cpu"]) >= 1


def test_keda_finds_the_workers_of_a_model_whose_names_have_a_prefix(tmp_path: Path) -> None:
    base = os.path.relpath(MANIFESTS, tmp_path.resolve())
    kustomization = {
        "namePrefix": "chat-",
        "resources": [f"{base}/model"],
        "components": [f"{base}/components/keda"],
        # kustomize reads such a file from the directory itself or one below it.
        "configurations": ["names.yaml"],
    }
    (tmp_path / "names.yaml").write_text((MANIFESTS / "components" / "keda" / "names.yaml").read_text())
    manifests = kustomized(tmp_path, yaml.safe_dump(kustomization))
    (scaler,) = manifests.of("ScaledObject")
    assert scaler["spec"]["scaleTargetRef"]["name"] == "chat-worker"


@pytest.mark.parametrize(("overlay", "name"), [("gpu", "worker"), ("models-gpu", "chat-worker")])
def test_a_gpu_is_asked_for_and_its_taint_tolerated(overlay: str, name: str) -> None:
    worker = rendered(overlay).named("StatefulSet", name)
    resources = container_of(worker)["resources"]
    assert resources["limits"]["nvidia.com/gpu"] == resources["requests"]["nvidia.com/gpu"] == 1
    assert "nvidia.com/gpu.product" in pod_of(worker)["nodeSelector"]
    assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in pod_of(worker)["tolerations"]
    (token,) = [entry for entry in container_of(worker)["env"] if entry["name"] == "HF_TOKEN"]
    assert token["valueFrom"]["secretKeyRef"]["name"] == "quire-hub-token"


@pytest.mark.parametrize("scaler", SCALERS)
def test_scaling_goes_by_metrics_that_exist(scaler: str) -> None:
    manifests = rendered("gpu", (scaler,))
    (one,) = manifests.of("HorizontalPodAutoscaler", "ScaledObject")
    target = one["spec"]["scaleTargetRef"]
    manifests.named(target["kind"], target["name"])
    text = yaml.safe_dump(one)
    rules = MANIFESTS / "components" / scaler / "adapter-rules.yaml"
    if rules.exists():
        text = rules.read_text()
        names, exposed = (re.findall(pattern, text) for pattern in (r"\{as: (\w+)\}", r"'([a-z]+:\w+)\{"))
        assert [metric[metric["type"].lower()]["metric"]["name"] for metric in one["spec"]["metrics"]] == names
        assert names == [name.replace("vllm:", "quire_").replace(":", "_") for name in exposed]
    named = set(re.findall(r"(?:vllm|quire):\w+", text))
    assert named
    assert named <= METRICS


def test_scalers_have_the_targets_of_the_documentation() -> None:
    """10 waiting sequences for each worker, or 80 % of its GPU's time, or of the sequences that it runs at once."""
    of = {scaler: rendered("gpu", (scaler,)).of("HorizontalPodAutoscaler", "ScaledObject") for scaler in SCALERS}
    found = {scaler: [one["spec"] for one in ones] for scaler, ones in of.items()}
    ((queue, running), (gpu,)) = (found["hpa-queue"][0]["metrics"], found["hpa-gpu"][0]["metrics"])
    assert queue["external"]["target"] == {"type": "AverageValue", "averageValue": "10"}
    most = math.ceil(0.8 * WorkerConfig().max_num_seqs)
    assert running["external"]["target"] == {"type": "AverageValue", "averageValue": str(most)}
    assert gpu["pods"]["target"] == {"type": "AverageValue", "averageValue": "800m"}
    assert [trigger["metadata"]["threshold"] for trigger in found["keda"][0]["triggers"]] == ["10", str(most)]


@pytest.mark.parametrize("scaler", SCALERS)
def test_a_scaler_alone_says_how_many_workers_there_are(scaler: str) -> None:
    """Otherwise, applying the manifests again would set the number back."""
    assert "replicas" not in rendered("gpu", (scaler,)).named("StatefulSet", "worker")["spec"]


def test_two_scalers_cannot_be_applied_together() -> None:
    with pytest.raises(AssertionError, match="already registered"):
        rendered("cpu", ("hpa-gpu", "hpa-queue"))


def test_prometheus_finds_every_part_under_the_job_that_alerts_expect(several_models: Manifests) -> None:
    (monitor,) = several_models.of("ServiceMonitor")
    (endpoint,) = monitor["spec"]["endpoints"]
    jobs = {}
    for service in several_models.of("Service"):
        if monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items():
            assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
            jobs[name_of(service)] = service["metadata"]["labels"][monitor["spec"]["jobLabel"]]
    parts = ("gateway", "router", "scheduler", "chat-worker", "embed-worker")
    assert jobs == {f"{several_models.prefix}{part}": part.split("-")[-1] for part in parts}


def test_the_rules_and_dashboards_are_those_of_compose() -> None:
    manifests = rendered("cpu", ("monitoring",))
    (rules,) = manifests.of("PrometheusRule")
    assert rules["spec"] == yaml.safe_load((ROOT / "deploy" / "prometheus" / "rules.yml").read_text())
    found = {name: text for one in manifests.of("ConfigMap") for name, text in one["data"].items()}
    files = (ROOT / "deploy" / "grafana" / "dashboards").glob("*.json")
    assert found == {path.name: path.read_text() for path in files}
    assert all(one["metadata"]["labels"]["grafana_dashboard"] == "1" for one in manifests.of("ConfigMap"))


def test_every_file_is_used() -> None:
    """A manifest that no kustomization names would never be applied."""
    for directory in {path.parent for path in MANIFESTS.rglob("kustomization.yaml")}:
        text = (directory / "kustomization.yaml").read_text()
        others = {path.name for path in directory.glob("*.yaml")} - {"kustomization.yaml", "adapter-rules.yaml"}
        assert all(name in text for name in others), directory.relative_to(Path(ROOT))


def test_the_overlay_of_the_documentation_renders(tmp_path: Path) -> None:
    document = (ROOT / "docs" / "kubernetes.md").read_text()
    overlay, pull_secret, _ = re.findall(r"^```yaml\n(.*?)^```$", document, re.MULTILINE | re.DOTALL)
    # In the document, the overlay is two directories below the source tree.
    assert "../../deploy" in overlay
    manifests = kustomized(tmp_path, overlay.replace("../../deploy", os.path.relpath(ROOT / "deploy", tmp_path)))
    images = {container_of(one)["image"] for one in manifests.of("Deployment", "StatefulSet")}
    assert images == {f"registry.example/quire-{part}:0.1.0" for part in ("gateway", "router", "scheduler", "worker")}
    worker = container_of(manifests.named("StatefulSet", "worker"))
    assert environment_of(worker)["QUIRE_MODEL"] == "meta-llama/Llama-3.1-8B-Instruct"
    assert list(manifests.of("HorizontalPodAutoscaler"))
    assert "quire-hub-token" in document
    assert "quire-api-key" in document
    base = {"resources": [os.path.relpath(MANIFESTS / "overlays" / "cpu", tmp_path)]}
    (account,) = kustomized(tmp_path, yaml.safe_dump(base) + pull_secret).of("ServiceAccount")
    assert account["imagePullSecrets"] == [{"name": "registry-login"}]


def documented_commands() -> list[str]:
    """The lines for kubectl in the documentation."""
    document = (ROOT / "docs" / "kubernetes.md").read_text()
    return [line.removesuffix(" &") for line in re.findall(r"^kubectl .+$", document, re.MULTILINE)]


def commands_in_sentences() -> list[str]:
    """What documents say in a sentence or a table. `kubectl kustomize` needs no API server."""
    documents = ("kubernetes.md", "troubleshooting.md", "alerts.md", "operations.md")
    text = "\n".join((ROOT / "docs" / name).read_text() for name in documents)
    found = dict.fromkeys(re.findall(r"`(kubectl [^`]+)`", text))
    return [line for line in found if not line.startswith("kubectl kustomize")]


@pytest.mark.parametrize("line", [*documented_commands(), *commands_in_sentences()])
def test_kubectl_understands_the_commands_of_the_documentation(line: str) -> None:
    """Each fails only because no API server answers."""
    _, *words = shlex.split(line)
    command = [str(KUBECTL), "--server", f"http://127.0.0.1:{free_port()}", "--request-timeout", "5s", *words]
    environment = {**os.environ, "KUBECONFIG": os.devnull}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=HANG_S)
    assert result.returncode == 1
    assert "refused" in result.stderr


def test_the_commands_of_the_documentation_name_what_is_there() -> None:
    manifests, text = rendered("cpu"), "\n".join(documented_commands())
    for path in re.findall(r"-k (\S+)", text):
        assert (ROOT / path / "kustomization.yaml").exists()
    kinds = {"deployment": "Deployment", "service": "Service", "statefulset": "StatefulSet"}
    named = re.findall(r" (deployment|service|statefulset)/(\S+)", text)
    assert {kind for kind, _ in named} == kinds.keys()
    for kind, name in named:
        assert manifests.named(kinds[kind], name)
    for name, port in re.findall(r"port-forward service/(\S+) \d+:(\d+)", text):
        assert int(port) in {one["port"] for one in manifests.named("Service", name)["spec"]["ports"]}
    for name, number in re.findall(r"delete pod (\S+)-(\d+)", text):
        assert int(number) < manifests.named("StatefulSet", name)["spec"]["replicas"]
    with_secrets = [*rendered("gpu").objects, *rendered("cpu", ("api-key",)).objects]
    for name, key in re.findall(r"create secret generic (\S+) --from-literal=(\w+)=", text):
        assert f"{{'key': '{key}', 'name': '{name}'" in str(with_secrets)
