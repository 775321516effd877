"""The answers of the Open Inference Protocol's HTTP form."""

from __future__ import annotations

from services.router.openapi.operation import Reply as Reply


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
    """`inputs` and `outputs` are empty: what goes in and comes out is text, by other paths than this protocol's."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]
