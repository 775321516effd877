"""Manifests of kinds that come with an operator have the form of the operator's schemas, as @kubernetes-models on npm
has them. TypeScript finds fields that do not exist, and the packages' own checks find values that are not allowed."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.fakes.tools import NODE, NODE_MODULES, needs, needs_node
from tests.unit.deploy.kubernetes import HAS_HELM, KUBECTL
from tests.unit.deploy.renderings import CHARTED, RENDERED, Given, rendering
from tests.unit.deploy.test_kubernetes import CORE_GROUPS

MODELS = {
    "monitoring.coreos.com/v1": "prometheus-operator",
    "keda.sh/v1alpha1": "keda",
    "gateway.networking.k8s.io/v1": "gateway-api",
}
STRING, NAMED = {"type": "string"}, {"type": "object", "additionalProperties": {"type": "string"}}


def closed(required: tuple[str, ...], **properties: Any) -> dict[str, Any]:
    """The schema of an object without further properties."""
    return {"type": "object", "required": list(required), "additionalProperties": False, "properties": properties}


NUMBER = closed(("number",), number={"type": "integer", "minimum": 1, "maximum": 65535})
# No package has this kind. After config/crd/bases/inference.networking.k8s.io_inferencepools.yaml of
# kubernetes-sigs/gateway-api-inference-extension, August 2026.
INFERENCE_POOL = closed(
    ("selector", "targetPorts"),
    appProtocol={"enum": ["http", "kubernetes.io/h2c"]},
    endpointPickerRef=closed(
        ("name",), failureMode={"enum": ["FailOpen", "FailClose"]}, group=STRING, kind=STRING, name=STRING, port=NUMBER
    ),
    selector=closed(("matchLabels",), matchLabels=NAMED),
    targetPorts={"type": "array", "items": NUMBER, "minItems": 1, "maxItems": 8},
)

pytestmark = needs(KUBECTL, "kubectl")


def operators_objects() -> list[dict[str, Any]]:
    """Returns each object of an operator's kind that any rendering contains, once."""
    renderings: list[Given] = [*RENDERED, *(CHARTED if HAS_HELM else ())]
    everything = (one for given in renderings for one in rendering(given).objects)
    chosen = (one for one in everything if one["apiVersion"].partition("/")[0] not in CORE_GROUPS)
    return list({json.dumps(one, sort_keys=True): one for one in chosen}.values())


def problems(objects: list[dict[str, Any]], directory: Path) -> str:
    """Returns what TypeScript or the packages' checks report about the objects; empty if nothing."""
    lines = []
    for index, one in enumerate(objects):
        kind, package = one["kind"], f"@kubernetes-models/{MODELS[one['apiVersion']]}/{one['apiVersion']}/{one['kind']}"
        lines += [
            f'import {{ {kind} as Kind{index}, I{kind} as Form{index} }} from "{package}";',
            f"const object{index}: Form{index} = {json.dumps(one)};",
            f"new Kind{index}(object{index}).validate();",
        ]
    source = directory / "objects.mts"
    source.write_text("\n".join(lines))
    (directory / "node_modules").symlink_to(NODE_MODULES.resolve())
    compiler = [
        str(NODE),
        str(NODE_MODULES / "typescript" / "bin" / "tsc"),
        "--strict",
        "--skipLibCheck",
        "--target",
        "es2022",
        "--module",
        "nodenext",
    ]
    for command in ([*compiler, str(source)], [str(NODE), str(source.with_suffix(".mjs"))]):
        result = subprocess.run(command, cwd=directory, capture_output=True, text=True)
        if result.returncode:
            return result.stdout + result.stderr
    return ""


@needs_node("@kubernetes-models")
def test_objects_have_the_form_of_their_operator_s_schema(tmp_path: Path) -> None:
    objects = [one for one in operators_objects() if one["apiVersion"] in MODELS]
    assert {one["kind"] for one in objects} == {"ServiceMonitor", "PrometheusRule", "ScaledObject", "HTTPRoute"}
    assert problems(objects, tmp_path) == ""


@needs_node("@kubernetes-models")
@pytest.mark.parametrize(
    ("field", "value", "found"),
    [("minReplicas", 1, "minReplicas\"' does not exist"), ("pollingInterval", 0.5, "must be integer")],
)
def test_what_no_schema_knows_or_allows_is_found(tmp_path: Path, field: str, value: object, found: str) -> None:
    """Shows that the test above can fail."""
    scaled = next(one for one in operators_objects() if one["kind"] == "ScaledObject")
    assert found in problems([scaled | {"spec": scaled["spec"] | {field: value}}], tmp_path)


def test_the_inference_pool_has_the_form_of_its_schema() -> None:
    pools = [one for one in operators_objects() if one["kind"] == "InferencePool"]
    assert pools
    for pool in pools:
        assert pool["apiVersion"] == "inference.networking.k8s.io/v1"
        jsonschema.Draft202012Validator(INFERENCE_POOL).validate(pool["spec"])
