"""KServe's Open Inference Protocol: health, metadata and, in the package `generation`, text generation."""

from services.router.apis.kserve.grpc_servicer import GrpcInferenceServicer, TensorGeneration
from services.router.apis.kserve.state import ServerState, server_version

__all__ = ["GrpcInferenceServicer", "ServerState", "TensorGeneration", "server_version"]
