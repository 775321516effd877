"""The answers of the Open Inference Protocol's HTTP form."""

from __future__ import annotations

from pydantic import Field

from services.router.openapi.operation import Reply as Reply
from services.router.openapi.operation import may_lack


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
    """`inputs` and `outputs` are those of `infer`; all inputs but `text_input` may be left out."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class KserveError(Reply):
    error: str


class GeneratedText(Reply):
    """Of a whole answer, and of each event of one that streams, which has what is new."""

    model_name: str = Field(description="As the request named it.")
    model_version: str = Field(description="Empty: models have no versions.")
    id: str = may_lack("The request's, where it had one.")
    text_output: str


class OutputTensor(Reply):
    name: str
    datatype: str
    shape: list[int]
    data: list[str] = may_lack("The text, unless it comes after the JSON.")
    parameters: dict[str, int] = may_lack("`binary_data_size`: how many bytes after the JSON are the text.")


class InferAnswer(Reply):
    model_name: str = Field(description="As the request named it.")
    model_version: str = Field(description="Empty: models have no versions.")
    id: str = may_lack("The request's, where it had one.")
    outputs: list[OutputTensor]
