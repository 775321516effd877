"""The operations of the typed API in the OpenAPI document. The gateway serves each gRPC method also as JSON over HTTP,
under the method's gRPC path."""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import MethodDescriptor

from quire.inference.v1 import inference_pb2
from services.router.http import Example, Operation
from services.router.openapi.comments import proto_comments

_SERVICE = inference_pb2.DESCRIPTOR.services_by_name["InferenceService"]
_TAG = "Typed API (gRPC over HTTP)"
_HOW = (
    "Bodies use protobuf's JSON mapping: requests may write `maxTokens` or `max_tokens`; answers write `maxTokens`. "
    "Answers leave out fields with default values (0, false, empty). Unknown fields of a request are ignored."
)
_STREAMS = "The answer is a streamed array. If its last element has no `final`, the answer is incomplete."

_SHORT = {"stop": {"maxTokens": 16}, "sampling": {"temperature": 0}}
_EXAMPLES: dict[str, tuple[Example, ...]] = {
    "Generate": (Example("A text to continue", {"text": "One, two,", "options": _SHORT}),),
    "Chat": (
        Example("A question", {"messages": [{"role": "user", "content": "What is 7 plus 5?"}], "options": _SHORT}),
    ),
    "Embed": (Example("Two texts", {"inputs": [{"text": "Hello"}, {"text": "Goodbye"}]}),),
    "Score": (Example("A text against two", {"text1": ["Hello"], "text2": ["Hello", "Goodbye"]}),),
    "Tokenize": (Example("A text", {"text": "One, two,"}),),
    "Detokenize": (Example("Three tokens", {"tokenIds": [70, 71, 72]}),),
    "ListModels": (Example("No fields", {}),),
}


def _operation(method: MethodDescriptor) -> Operation:
    summary, _, rest = proto_comments()[method.full_name].partition(". ")
    words: list[Any] = [rest, _HOW, _STREAMS if method.server_streaming else ""]
    return Operation(
        "POST",
        f"/{_SERVICE.full_name}/{method.name}",
        f"inference{method.name}",
        _TAG,
        summary.removesuffix("."),
        " ".join(filter(None, words)),
        body=method.input_type,
        reply=method.output_type,
        is_array=method.server_streaming,
        examples=_EXAMPLES[method.name],
        names_model=method.name != "ListModels",
        may_overload=True,
    )


OPERATIONS = tuple(map(_operation, _SERVICE.methods))
