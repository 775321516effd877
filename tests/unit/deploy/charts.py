"""What the tests of the Helm chart share: values, and objects without what Helm adds."""

from __future__ import annotations

import re
from typing import Any

from tests.unit.deploy.kubernetes import (
    RELEASE,
    Manifests,
)

SCALERS = ("HorizontalPodAutoscaler", "ScaledObject")
# What Helm adds to the selectors of queries.
OWN_NAMESPACE = 'namespace="default",'
# Labels that only Helm sets.
HELMS = {"helm.sh/chart", "app.kubernetes.io/managed-by", "app.kubernetes.io/instance"}


def scaled(scaling: str) -> dict[str, Any]:
    return {"models": [{"name": "", "options": {"device": "cpu"}, "scaling": scaling}]}


def stored(**storage: Any) -> dict[str, Any]:
    return {"models": [{"name": "", "options": {"device": "cpu"}, "storage": storage}]}


def plain(node: Any) -> Any:
    """An object without what Helm adds: the release's name in place of the chart's or at the beginning of others, its
    namespace in queries, the hash at the end of a job's name, and its labels. The order of entries with names does not
    matter. That each name leads to an object is tested in test_kubernetes.py."""
    if isinstance(node, dict):
        return {key: plain(value) for key, value in node.items() if key not in HELMS}
    if isinstance(node, list):
        items = [plain(one) for one in node]
        names = [one.get("name") if isinstance(one, dict) else None for one in items]
        return sorted(items, key=lambda one: str(one["name"])) if items and all(names) else items
    if isinstance(node, str):
        if node == RELEASE:
            return "quire"
        node = node.replace(OWN_NAMESPACE, "")
        node = node.replace(f"redis://{RELEASE}-", "redis://").removeprefix(f"{RELEASE}-")
        return re.sub(r"^((?:[a-z-]+-)?download)-[0-9a-f]{8}$", r"\1", node)
    return node


def by_name(manifests: Manifests) -> dict[tuple[str, str], Any]:
    found = [plain(one) for one in manifests.objects]
    assert len(found) == len({(one["kind"], one["metadata"]["name"]) for one in found})
    for one in found:
        one["metadata"].setdefault("labels", {})
    return {(one["kind"], one["metadata"]["name"]): one for one in found}
