"""quire.inference.v1, the typed gRPC API. This package does not need pydantic."""

from services.router.apis.typed.servicer import InferenceServicer

__all__ = ["InferenceServicer"]
