"""The operations of the Open Inference Protocol over HTTP, for the OpenAPI document."""

from __future__ import annotations

from services.router.apis.kserve.generation.body import KserveGenerateBody
from services.router.apis.kserve.generation.infer_body import InferBody
from services.router.apis.kserve.generation.replies import (
    GeneratedText,
    InferAnswer,
    KserveError,
    Live,
    ModelMetadata,
    ModelReady,
    Ready,
    ServerMetadata,
)
from services.router.http import Example, Operation

_TAG = "KServe"
_NAME = {"model": "The model's name; slashes in it may be escaped or not."}
_MODEL = {"model": "quire-chat"}
_EXAMPLE = (Example("The bundled model", _MODEL),)

OPERATIONS = (
    Operation(
        "GET", "/v2/health/live", "serverLive", _TAG, "Checks whether the server is alive", reply=Live,
        error=KserveError, needs_key=False,
    ),
    Operation(
        "GET", "/v2/health/ready", "serverReady", _TAG, "Checks whether the server is ready",
        "200 if a scheduler accepts requests, otherwise 503.", reply=Ready, error=KserveError, needs_key=False,
    ),
    Operation(
        "GET", "/v2", "serverMetadata", _TAG, "Returns the server's name and version", reply=ServerMetadata,
        error=KserveError, needs_key=False,
    ),
    Operation(
        "GET", "/v2/models/{model}/ready", "modelReady", _TAG, "Checks whether a model is ready",
        "200 if a scheduler of the model accepts requests and has a worker, 404 if the model is unknown while others "
        "are ready, otherwise 503.",
        reply=ModelReady, error=KserveError, parameters=_NAME, examples=_EXAMPLE, names_model=True,
    ),
    Operation(
        "GET", "/v2/models/{model}", "modelMetadata", _TAG, "Describes a model's inputs and outputs",
        reply=ModelMetadata, error=KserveError, parameters=_NAME, examples=_EXAMPLE, names_model=True,
    ),
    Operation(
        "POST", "/v2/models/{model}/generate", "kserveGenerate", _TAG, "Continues a text",
        "Triton's generate extension. Unknown fields are refused.",
        body=KserveGenerateBody, reply=GeneratedText, error=KserveError, parameters=_NAME,
        examples=(Example("A text", {**_MODEL, "text_input": "One, two,", "max_tokens": 8}),),
        names_model=True, may_overload=True,
    ),
    Operation(
        "POST", "/v2/models/{model}/generate_stream", "kserveGenerateStream", _TAG, "Continues a text, as a stream",
        "Triton's generate extension. Each event has the new text; there is no closing event.",
        body=KserveGenerateBody, reply=GeneratedText, event=GeneratedText, error=KserveError, parameters=_NAME,
        examples=(Example("A text", {**_MODEL, "text_input": "One, two,", "max_tokens": 8}),),
        names_model=True, may_overload=True,
    ),
    Operation(
        "POST", "/v2/models/{model}/infer", "kserveInfer", _TAG, "Continues a text, with tensors for input and output",
        "Each tensor has one element. Tensors of the request and of the answer may be in binary form, after the JSON.",
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
