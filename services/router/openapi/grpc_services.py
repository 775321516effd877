"""Lists the gRPC services on the gateway's port, for the OpenAPI document."""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import Descriptor, ServiceDescriptor

from quire.inference.v1 import inference_pb2
from quire.kserve.v1 import open_inference_pb2
from services.router.openapi.comments import proto_comments
from services.router.openapi.messages import REF, schema_name

_OURS: tuple[ServiceDescriptor, ...] = (
    inference_pb2.DESCRIPTOR.services_by_name["InferenceService"],
    open_inference_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"],
)
# gRPC's standard services, which every router serves.
_STANDARD = (
    ("grpc.health.v1.Health", "Reports whether the server, or one of its services, can take calls."),
    ("grpc.reflection.v1.ServerReflection", "Describes these services to tools such as grpcurl."),
)


def grpc_services() -> list[dict[str, Any]]:
    """Returns each service's name and description, and the methods of Quire's own services."""
    standard = [{"name": name, "description": text, "methods": []} for name, text in _STANDARD]
    return [*map(_described, _OURS), *standard]


def _type(message: Descriptor) -> dict[str, Any]:
    """Returns a reference to the message's schema if it is a message of the typed API, because the OpenAPI document
    contains these schemas. Otherwise returns a schema with the message's name."""
    is_ours = message.file.package == inference_pb2.DESCRIPTOR.package
    return {"$ref": REF + schema_name(message)} if is_ours else {"const": message.full_name}


def _described(service: ServiceDescriptor) -> dict[str, Any]:
    comments = proto_comments()
    return {
        "name": service.full_name,
        "description": comments[service.full_name],
        "methods": [
            {
                "name": method.name,
                "request": _type(method.input_type),
                "response": _type(method.output_type),
                "streams": method.server_streaming,
                "description": comments[method.full_name],
            }
            for method in service.methods
        ],
    }
