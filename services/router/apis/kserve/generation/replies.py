"""Types of the answers of the Open Inference Protocol over HTTP."""

from __future__ import annotations

from pydantic import Field

from services.router.http import Reply as Reply
from services.router.http import may_lack


class Live(Reply):
    live: bool


class Ready(Reply):
    ready: bool


class ModelReady(Reply):
    name: str
    ready: bool


class ServerMetadata(Reply):
    name: str
    version: str
    extensions: list[str]


class TensorMetadata(Reply):
    name: str
    datatype: str
    shape: list[int]


class ModelMetadata(Reply):
    """Description of a model: the tensors of its `infer` requests and answers. Only `text_input` is required."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class KserveError(Reply):
    error: str


class GeneratedText(Reply):
    """A whole answer, or one event of a streamed answer, with its new text."""

    model_name: str = Field(description="The request's name of the model.")
    model_version: str = Field(description="The version that answered; empty if the model has none.")
    id: str = may_lack("Id of the request, if it had one.")
    text_output: str


class OutputTensor(Reply):
    name: str
    datatype: str
    shape: list[int]
    data: list[str] = may_lack("The text; absent if it is sent after the JSON.")
    parameters: dict[str, int] = may_lack("`binary_data_size`: number of bytes of the text after the JSON.")


class InferAnswer(Reply):
    model_name: str = Field(description="The request's name of the model.")
    model_version: str = Field(description="The version that answered; empty if the model has none.")
    id: str = may_lack("Id of the request, if it had one.")
    outputs: list[OutputTensor]
