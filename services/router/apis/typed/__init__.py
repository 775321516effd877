"""quire.inference.v1, the typed API over gRPC. It needs no pydantic."""

from services.router.apis.typed.servicer import InferenceServicer

__all__ = ["InferenceServicer"]
