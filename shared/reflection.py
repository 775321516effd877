"""gRPC server reflection in both versions: current clients ask for `v1`, older clients for `v1alpha`.

grpcio-reflection implements only v1alpha. Both versions have the same messages on the wire, so one servicer answers
both.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool
from grpc_reflection.v1alpha import reflection, reflection_pb2, reflection_pb2_grpc

_ALPHA = "grpc.reflection.v1alpha"
_V1 = "grpc.reflection.v1"
_V1_FILE = "grpc/reflection/v1/reflection.proto"
NAMES = (f"{_V1}.ServerReflection", f"{_ALPHA}.ServerReflection")


def add_reflection(services: Iterable[str], server: Any) -> None:
    """Adds the reflection services v1 and v1alpha to `server`. `services`: full names of the other services to list.
    Their descriptors must be loaded."""
    _load_v1()
    servicer = _Reflection([*services, *NAMES])
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(servicer, server)
    handler = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        reflection_pb2.ServerReflectionRequest.FromString,
        reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(NAMES[0], {"ServerReflectionInfo": handler})])


class _Reflection(reflection.aio.ReflectionServicer):  # type: ignore[misc]  # grpc's class has no types
    def _file_containing_symbol(self, request: Any, fully_qualified_name: str) -> Any:
        """Answers with the proto file that declares a symbol. Also finds methods, as the protocol requires. The base
        class does not find methods, because the descriptor pool does not count them as symbols."""
        try:
            service: Any = self._pool.FindMethodByName(fully_qualified_name).containing_service
        except KeyError:
            return super()._file_containing_symbol(request, fully_qualified_name)
        return self._file_by_filename(request, service.file.name)


def _load_v1() -> None:
    """Adds the proto file of the reflection service's version v1 to the descriptor pool. The file is a copy of
    v1alpha's file under the package name of v1."""
    pool = descriptor_pool.Default()
    try:
        pool.FindFileByName(_V1_FILE)
    except KeyError:
        file = descriptor_pb2.FileDescriptorProto()
        reflection_pb2.DESCRIPTOR.CopyToProto(file)
        file.name, file.package = _V1_FILE, _V1
        file.ClearField("options")
        for message in file.message_type:
            for field in message.field:
                if field.type_name:
                    field.type_name = field.type_name.replace(f".{_ALPHA}.", f".{_V1}.")
        for method in file.service[0].method:
            method.input_type = method.input_type.replace(f".{_ALPHA}.", f".{_V1}.")
            method.output_type = method.output_type.replace(f".{_ALPHA}.", f".{_V1}.")
        pool.AddSerializedFile(file.SerializeToString())
