"""What the Open Inference Protocol's HTTP form serves, for the document."""

from __future__ import annotations

from services.router.kserve.replies import Live, ModelMetadata, ModelReady, Ready, ServerMetadata
from services.router.openapi.operation import Example, Operation

_TAG = "KServe"
_NAME = {"model": "The model's name; slashes in it may be escaped or not."}
_EXAMPLE = (Example("The bundled model", {"model": "quire-chat"}),)

OPERATIONS = (
    Operation(
        "GET", "/v2/health/live", "serverLive", _TAG, "Whether the server answers at all", reply=Live, needs_key=False,
    ),
    Operation(
        "GET", "/v2/health/ready", "serverReady", _TAG, "Whether some scheduler can take requests",
        "The answer is 200 where one can, and 503 where none can.", reply=Ready, needs_key=False,
    ),
    Operation(
        "GET", "/v2", "serverMetadata", _TAG, "The server's name and version", reply=ServerMetadata, needs_key=False,
    ),
    Operation(
        "GET", "/v2/models/{model}/ready", "modelReady", _TAG, "Whether some scheduler of a model can take requests",
        "The answer is 200 where one can, 503 where none can now, and 404 where others are ready and it is unknown.",
        reply=ModelReady, parameters=_NAME, examples=_EXAMPLE, names_model=True,
    ),
    Operation(
        "GET", "/v2/models/{model}", "modelMetadata", _TAG, "What a model takes and gives",
        reply=ModelMetadata, parameters=_NAME, examples=_EXAMPLE, names_model=True,
    ),
)  # fmt: skip
