"""Names in the manifests, and what one object says of another: whatever is named is there."""

from __future__ import annotations

import pytest

from deploy.envoy.routes import GRPC_PREFIXES
from tests.fakes.tools import needs
from tests.unit.deploy.kubernetes import (
    COMPONENT,
    KUBECTL,
    ROOT,
    WORKLOADS,
    Manifests,
    Reference,
    container_of,
    name_of,
    pod_labels,
    references,
    refused_names,
)
from tests.unit.deploy.renderings import CHARTED, RENDERED, Given, rendering, title

pytestmark = needs(KUBECTL, "kubectl")
WITH_GATEWAY_API = [one for one in (*RENDERED, *CHARTED) if {"gateway-api", "gatewayApi"}.intersection(one[1])]
# Users make these objects: docs/kubernetes.md says how.
MADE_BY_HAND = {
    Reference("Secret", "quire-hub-token"),
    Reference("Secret", "quire-api-key"),
    Reference("Gateway", "inference-gateway"),
    Reference("Service", "quire-endpoint-picker", 9002),
}


def test_every_name_is_taken_once(manifests: Manifests) -> None:
    names = [(one["kind"], one["metadata"]["name"]) for one in manifests.objects]
    assert len(names) == len(set(names))


def test_names_and_labels_are_such_as_kubernetes_takes(manifests: Manifests) -> None:
    assert refused_names(manifests) == []


def test_every_object_that_another_one_names_is_there(manifests: Manifests) -> None:
    kinds = set()
    for one in manifests.objects:
        for reference in references(one):
            kinds.add(reference.kind)
            if reference in MADE_BY_HAND:
                continue
            found = [other for other in manifests.of(reference.kind) if name_of(other) == reference.name]
            assert len(found) == 1, f"{one['kind']} {name_of(one)} names {reference}"
            if reference.port is not None:
                assert reference.port in {port["port"] for port in found[0]["spec"]["ports"]}
    assert kinds >= {"ServiceAccount", "Service"}
    assert ("PersistentVolumeClaim" in kinds) == bool(list(manifests.of("PersistentVolumeClaim")))


def test_objects_that_users_make_are_documented() -> None:
    document = (ROOT / "docs" / "kubernetes.md").read_text()
    assert [one.name for one in MADE_BY_HAND if f"`{one.name}`" not in document] == []


@pytest.mark.parametrize("given", WITH_GATEWAY_API, ids=title)
def test_the_inference_pool_and_the_route_lead_to_the_gateways(given: Given) -> None:
    manifests = rendering(given)
    gateways = [one for one in manifests.of(*WORKLOADS) if pod_labels(one)[COMPONENT] == "gateway"]
    ((pool,), (route,)) = (manifests.of("InferencePool"), manifests.of("HTTPRoute"))
    assert manifests.selected(pool["spec"]["selector"]["matchLabels"]) == gateways
    ports = {port["containerPort"]: port["name"] for port in container_of(gateways[0])["ports"]}
    assert [ports[target["number"]] for target in pool["spec"]["targetPorts"]] == ["http"]
    protocols = []
    for rule in route["spec"]["rules"]:
        (backend,) = rule["backendRefs"]
        service = manifests.named("Service", backend["name"])
        assert manifests.selected(service["spec"]["selector"]) == gateways
        (port,) = (port for port in service["spec"]["ports"] if port["port"] == backend["port"])
        assert port["targetPort"] == "http"
        protocols.append(port["appProtocol"])
    assert protocols == ["kubernetes.io/h2c", "http"]


def test_the_route_leads_every_path_of_grpc_to_a_port_that_speaks_http_2() -> None:
    (route,) = rendering(WITH_GATEWAY_API[0]).of("HTTPRoute")
    grpc, everything = ([match["path"]["value"] for match in rule["matches"]] for rule in route["spec"]["rules"])
    assert everything == ["/"]
    assert all(f"{path}/".startswith(GRPC_PREFIXES) for path in grpc)
    assert all(any(f"{path}/".startswith(prefix) for path in grpc) for prefix in GRPC_PREFIXES)
