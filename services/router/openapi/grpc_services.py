"""The gRPC services of the gateway's port, as the document lists them."""

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
# gRPC's own services, which every router has.
_STANDARD = (
    ("grpc.health.v1.Health", "Tells whether the server, or one of its services by name, can take calls."),
    ("grpc.reflection.v1.ServerReflection", "Describes these services to tools such as grpcurl."),
)


def grpc_services() -> list[dict[str, Any]]:
    """Each with its name, what it is for, and its methods where they are ours."""
    standard = [{"name": name, "description": text, "methods": []} for name, text in _STANDARD]
    return [*map(_described, _OURS), *standard]


def _type(message: Descriptor) -> dict[str, Any]:
    """A reference where the document has the message's schema, as it has those of the typed API."""
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
