"""What the Open Inference Protocol's HTTP form serves, for the document."""

from __future__ import annotations

from services.router.kserve.body import KserveGenerateBody
from services.router.kserve.infer_body import InferBody
from services.router.kserve.replies import (
    GeneratedText,
    InferAnswer,
    KserveError,
    Live,
    ModelMetadata,
    ModelReady,
    Ready,
    ServerMetadata,
)
from services.router.openapi.operation import Example, Operation

_TAG = "KServe"
_NAME = {"model": "The model's name; slashes in it may be escaped or not."}
_MODEL = {"model": "quire-chat"}
_EXAMPLE = (Example("The bundled model", _MODEL),)

OPERATIONS = (
    Operation(
        "GET", "/v2/health/live", "serverLive", _TAG, "Whether the server answers at all", reply=Live,
        error=KserveError, needs_key=False,
    ),
    Operation(
        "GET", "/v2/health/ready", "serverReady", _TAG, "Whether some scheduler can take requests",
        "The answer is 200 where one can, and 503 where none can.", reply=Ready, error=KserveError, needs_key=False,
    ),
    Operation(
        "GET", "/v2", "serverMetadata", _TAG, "The server's name and version", reply=ServerMetadata,
        error=KserveError, needs_key=False,
    ),
    Operation(
        "GET", "/v2/models/{model}/ready", "modelReady", _TAG, "Whether some scheduler of a model can take requests",
        "The answer is 200 where one can, 503 where none can now, and 404 where others are ready and it is unknown.",
        reply=ModelReady, error=KserveError, parameters=_NAME, examples=_EXAMPLE, names_model=True,
    ),
    Operation(
        "GET", "/v2/models/{model}", "modelMetadata", _TAG, "What a model takes and gives",
        reply=ModelMetadata, error=KserveError, parameters=_NAME, examples=_EXAMPLE, names_model=True,
    ),
    Operation(
        "POST", "/v2/models/{model}/generate", "kserveGenerate", _TAG, "Continues a text",
        "As Triton's generate extension has it. Fields that it does not know are refused.",
        body=KserveGenerateBody, reply=GeneratedText, error=KserveError, parameters=_NAME,
        examples=(Example("A text", {**_MODEL, "text_input": "One, two,", "max_tokens": 8}),),
        names_model=True, may_overload=True,
    ),
    Operation(
        "POST", "/v2/models/{model}/generate_stream", "kserveGenerateStream", _TAG, "Continues a text, piece by piece",
        "As Triton's generate extension has it: each event has new text, and the stream ends after the last one.",
        body=KserveGenerateBody, reply=GeneratedText, event=GeneratedText, error=KserveError, parameters=_NAME,
        examples=(Example("A text", {**_MODEL, "text_input": "One, two,", "max_tokens": 8}),),
        names_model=True, may_overload=True,
    ),
    Operation(
        "POST", "/v2/models/{model}/infer", "kserveInfer", _TAG, "Continues a text that comes as a tensor",
        "Tensors have one element each. They may come in binary form, after the JSON, as may the answer's.",
        body=InferBody, reply=InferAnswer, binary_type="application/octet-stream", error=KserveError, parameters=_NAME,
        examples=(
            Example(
                "A text",
                {
                    **_MODEL,
                    "inputs": [
                        {"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["One, two,"]},
                        {"name": "max_tokens", "datatype": "INT32", "shape": [1], "data": [8]},
                    ],
                },
            ),
        ),
        names_model=True, may_overload=True,
    ),
)  # fmt: skip
