"""Renders the manifests of deploy/kubernetes: with kubectl's kustomize, or as a chart with Helm's own library."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.fakes.tools import import_or_skip

ROOT = Path(__file__).parents[3]
MANIFESTS = ROOT / "deploy" / "kubernetes"
OVERLAYS = ("cpu", "gpu", "models", "models-gpu")
COMPONENTS = tuple(sorted(path.name for path in (MANIFESTS / "components").iterdir()))
_UNPACKED = ROOT / ".venv-kubectl" / "usr" / "bin" / "kubectl"
KUBECTL = str(_UNPACKED) if _UNPACKED.exists() else shutil.which("kubectl")
HAS_HELM = importlib.util.find_spec("helm_python") is not None
# Not the chart's name: an object that has the chart's name in place of the release's would not be found.
RELEASE = "prod"
COMPONENT = "app.kubernetes.io/component"
# Kinds whose pods are made from a template.
WORKLOADS = ("Deployment", "StatefulSet", "Job")


@dataclass(frozen=True)
class Manifests:
    """Objects that are applied together. `prefix`: what their names begin with."""

    objects: tuple[dict[str, Any], ...]
    prefix: str = ""

    def of(self, *kinds: str) -> Iterator[dict[str, Any]]:
        return (one for one in self.objects if one["kind"] in kinds)

    def named(self, kind: str, name: str) -> dict[str, Any]:
        (found,) = [one for one in self.of(kind) if one["metadata"]["name"] == name]
        return found

    def selected(self, selector: dict[str, str]) -> list[dict[str, Any]]:
        """The workloads whose pods a selector finds."""
        return [one for one in self.of(*WORKLOADS) if selector.items() <= pod_labels(one).items()]


def pod_labels(workload: dict[str, Any]) -> dict[str, str]:
    labels: dict[str, str] = workload["spec"]["template"]["metadata"]["labels"]
    return labels


def pod_of(workload: dict[str, Any]) -> dict[str, Any]:
    pod: dict[str, Any] = workload["spec"]["template"]["spec"]
    return pod


def container_of(workload: dict[str, Any]) -> dict[str, Any]:
    (container,) = pod_of(workload)["containers"]
    assert isinstance(container, dict)
    return container


def environment_of(container: dict[str, Any]) -> dict[str, str]:
    """The variables with a value in the manifest, not those from secrets."""
    return {entry["name"]: entry["value"] for entry in container.get("env", ()) if "value" in entry}


def name_of(one: dict[str, Any]) -> str:
    name: str = one["metadata"]["name"]
    return name


def may_talk(manifests: Manifests) -> set[tuple[str, str, str]]:
    """Who may open connections to whom by the NetworkPolicies: names of two workloads, and of the second one's port.
    Instead of the first name, there may be a namespace's selector, or "None" for anybody."""
    may: set[tuple[str, str, str]] = set()
    for policy in manifests.of("NetworkPolicy"):
        for to in manifests.selected(policy["spec"]["podSelector"]["matchLabels"]):
            ports = {port["name"] for port in container_of(to)["ports"]}
            for rule in policy["spec"]["ingress"]:
                (port,) = [entry["port"] for entry in rule["ports"]]
                assert port in ports
                (peer,) = rule.get("from", [{}])
                pods = peer.get("podSelector", {}).get("matchLabels")
                names = (
                    [name_of(one) for one in manifests.selected(pods)] if pods else [str(peer.get("namespaceSelector"))]
                )
                may |= {(name, name_of(to), port) for name in names}
    return may


@dataclass(frozen=True)
class Reference:
    """The name of an object in another one. `port`: of a Service, where the other object chooses one."""

    kind: str
    name: str
    port: int | None = None


# The keys that have an object's name, or a mapping with it, or several of them; and the kind, if the mapping has none.
_REFERENCES = {
    "claimName": "PersistentVolumeClaim",
    "serviceAccountName": "ServiceAccount",
    "serviceName": "Service",
    "imagePullSecrets": "Secret",
    "secretName": "Secret",
    "secretRef": "Secret",
    "secretKeyRef": "Secret",
    "configMap": "ConfigMap",
    "configMapRef": "ConfigMap",
    "configMapKeyRef": "ConfigMap",
    "scaleTargetRef": "Deployment",
    "parentRefs": "Gateway",
    "backendRefs": "Service",
    "endpointPickerRef": "Service",
}


def references(node: object) -> Iterator[Reference]:
    """The names of other objects in an object or a part of it."""
    if isinstance(node, list):
        for one in node:
            yield from references(one)
    elif isinstance(node, dict):
        for key, value in node.items():
            if key in _REFERENCES:
                for one in value if isinstance(value, list) else [value]:
                    given: dict[str, Any] = {"name": one} if isinstance(one, str) else one
                    port = given.get("port")
                    number = port["number"] if isinstance(port, dict) else port
                    yield Reference(given.get("kind", _REFERENCES[key]), given["name"], number)
            else:
                # A field's reference is to the container itself.
                assert not re.search(r"(?<!Field)Refs?$", key), f"_REFERENCES lacks {key}"
                yield from references(value)


# How long names of some kinds may be; others may have 253 characters. A Service's name is a label of DNS. A job's name
# is a label of its pods. A StatefulSet's name, a hyphen and a hash of 10 characters are a label of its pods.
_LONGEST_NAMES = {"Service": 63, "Job": 63, "StatefulSet": 52}


def refused_names(manifests: Manifests) -> list[str]:
    """Names and labels that an API server refuses, or with which a controller cannot make pods."""
    refused = []
    for one in manifests.objects:
        name, kind = name_of(one), one["kind"]
        # Only a Service's name must begin with a letter and have no dots, but all names begin with the same word.
        if not re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", name) or len(name) > _LONGEST_NAMES.get(kind, 253):
            refused.append(f"{kind} {name}")
        labels = dict(one["metadata"].get("labels", {}))
        for key, value in [*labels.items(), *(pod_labels(one).items() if kind in WORKLOADS else ())]:
            if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?", value):
                refused.append(f"{kind} {name}: {key}: {value!r}")
    return refused


@functools.cache
def rendered(overlay: str, components: Sequence[str] = ()) -> Manifests:
    """What `kubectl apply -k` would apply, with further components."""
    with tempfile.TemporaryDirectory() as directory:
        # kustomize takes no absolute paths.
        base = os.path.relpath(MANIFESTS, Path(directory).resolve())
        kustomization = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "resources": [f"{base}/overlays/{overlay}"],
            "components": [f"{base}/components/{component}" for component in components],
        }
        return kustomized(Path(directory), yaml.safe_dump(kustomization))


def kustomized(directory: Path, kustomization: str) -> Manifests:
    """Renders a kustomization in an empty directory."""
    assert KUBECTL is not None, "there is no kubectl: make clients unpacks Debian's"
    (directory / "kustomization.yaml").write_text(kustomization)
    result = subprocess.run([KUBECTL, "kustomize", directory], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return Manifests(tuple(yaml.safe_load_all(result.stdout)))


def helm(overlay: str = "cpu", release: str = RELEASE, **values: Any) -> Manifests:
    """What `helm template RELEASE deploy/kubernetes --values values/OVERLAY.yaml` prints, with further values."""
    printed = charted(overlay, release, **values)
    objects = [one for path, text in printed.items() if path.endswith(".yaml") for one in yaml.safe_load_all(text)]
    return Manifests(tuple(one for one in objects if one), f"{release}-")


def charted(overlay: str = "cpu", release: str = RELEASE, **values: Any) -> dict[str, str]:
    """The text of each of the chart's templates, by its path."""
    helm_python = import_or_skip("helm_python", "Helm's library exists for Linux on x86-64 only")
    path = MANIFESTS / "values" / f"{overlay}.yaml"
    given = (yaml.safe_load(path.read_text()) if path.exists() else {}) | values
    with helm_python.Chart.load(MANIFESTS) as chart:
        printed: dict[str, str] = chart.render(values=given, name=release, namespace="default")
    return printed
