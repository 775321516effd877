"""Emulates grpcurl: reads the service's descriptors by reflection, and converts JSON to messages and back."""

from __future__ import annotations

import shlex
from typing import Any

import grpc
from google.protobuf import json_format
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from tests.fakes.waiting import HANG_S


def grpcurl(command: str) -> list[dict[str, Any]]:
    """Runs a command line `grpcurl -plaintext -d BODY ADDRESS SERVICE/METHOD`. Returns the messages that it prints."""
    program, plaintext, data, body, address, path = shlex.split(command)
    assert (program, plaintext, data) == ("grpcurl", "-plaintext", "-d")
    with grpc.insecure_channel(address) as channel:
        pool = DescriptorPool(ProtoReflectionDescriptorDatabase(channel))
        service, _, name = path.partition("/")
        method = pool.FindServiceByName(service).methods_by_name[name]
        request = json_format.Parse(body, GetMessageClass(method.input_type)())
        # On the wire, a single reply equals a stream of one message.
        replies = channel.unary_stream(
            f"/{path}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )(request, timeout=HANG_S)
        return [json_format.MessageToDict(reply) for reply in replies]
