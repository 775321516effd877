"""The renderings of the manifests that tests look at, by kubectl and by Helm."""

from __future__ import annotations

from typing import Any

from tests.unit.deploy.kubernetes import COMPONENTS, OVERLAYS, Manifests, helm, rendered

# Only one of them may scale the workers.
SCALERS = ("hpa-gpu", "hpa-queue", "keda")
# Instead of the volume that all workers and the download share.
VOLUMES = ("models-ephemeral", "models-per-worker")
OTHERS = tuple(component for component in COMPONENTS if component not in (*SCALERS, *VOLUMES))
# An overlay with further components, or the chart with the overlay's values and further values.
Given = tuple[str, tuple[str, ...] | dict[str, Any]]
# Every overlay as it is, and all components.
RENDERED: list[Given] = [
    *((overlay, ()) for overlay in OVERLAYS),
    *(("cpu", tuple(sorted({*OTHERS, scaler} - {"network-policy", "worker-policy"}))) for scaler in SCALERS),
    *(("gpu", (volume,)) for volume in VOLUMES),
]
# Every file of values, with switches of the chart.
CHARTED: list[Given] = [
    ("cpu", {}),
    ("gpu", {"apiKey": "quire-api-key"}),
    ("models", {"redis": True}),
    (
        "models-gpu",
        {"redis": True, "monitoring": True, "gatewayApi": True, "inferencePool": True, "apiKey": "quire-api-key"},
    ),
    ("cpu", {"models": [{"name": "m", "options": {"model": "m", "served-model-name": "m"}, "scaling": "keda"}]}),
    ("cpu", {"models": [{"name": "", "options": {"device": "cpu"}, "storage": {"kind": "per-worker"}}]}),
]


def rendering(given: Given) -> Manifests:
    overlay, more = given
    return helm(overlay, **more) if isinstance(more, dict) else rendered(overlay, more)


def title(given: Given) -> str:
    overlay, more = given
    return "+".join((f"helm {overlay}" if isinstance(more, dict) else overlay, *more))
