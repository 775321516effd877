"""Renders the manifests of deploy/kubernetes with kubectl's kustomize."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]
MANIFESTS = ROOT / "deploy" / "kubernetes"
OVERLAYS = ("cpu", "gpu", "models", "models-gpu")
COMPONENTS = tuple(sorted(path.name for path in (MANIFESTS / "components").iterdir()))
_UNPACKED = ROOT / ".venv-kubectl" / "usr" / "bin" / "kubectl"
KUBECTL = str(_UNPACKED) if _UNPACKED.exists() else shutil.which("kubectl")
PART_OF_QUIRE = {"app.kubernetes.io/part-of": "quire"}
COMPONENT = "app.kubernetes.io/component"
# Kinds whose pods are made from a template.
WORKLOADS = ("Deployment", "StatefulSet", "Job")


@dataclass(frozen=True)
class Manifests:
    """Objects that are applied together."""

    objects: tuple[dict[str, Any], ...]

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
