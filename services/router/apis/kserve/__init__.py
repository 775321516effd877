"""KServe's Open Inference Protocol: whether the server and its models are alive and ready, and what they are."""

from services.router.apis.kserve.grpc_servicer import GrpcInferenceServicer, TensorGeneration
from services.router.apis.kserve.state import ServerState, server_version

__all__ = ["GrpcInferenceServicer", "ServerState", "TensorGeneration", "server_version"]
