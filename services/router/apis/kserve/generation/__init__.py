"""Generation in the Open Inference Protocol, over HTTP and gRPC. This package needs pydantic."""

from services.router.apis.kserve.generation.http_servicer import KserveServicer
from services.router.apis.kserve.generation.infer_messages import GrpcGeneration
from services.router.apis.kserve.generation.paths import OPERATIONS
from services.router.apis.kserve.generation.text import TextGeneration, kserve_error

__all__ = ["OPERATIONS", "GrpcGeneration", "KserveServicer", "TextGeneration", "kserve_error"]
