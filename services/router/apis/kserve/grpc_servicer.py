"""inference.GRPCInferenceService: the gRPC form of the Open Inference Protocol."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from quire.kserve.v1 import open_inference_pb2 as pb
from services.router.apis.kserve.state import GRPC_EXTENSIONS, SERVER_NAME, ServerState, server_version
from services.router.errors import ApiError, ErrorKind
from services.router.rpc import Calls, Prepared, public


class TensorGeneration(Protocol):
    """Generates text from tensors. The implementation needs more libraries than this module, so it can be missing."""

    @property
    def inputs(self) -> list[tuple[str, str]]:
        """Name and datatype of each input tensor."""

    @property
    def output(self) -> str:
        """Name of the output tensor."""

    async def infer(self, request: pb.ModelInferRequest, context: Any) -> Prepared:
        """Prepares an answer of type ModelInferResponse. Raises ApiError."""


@dataclass(frozen=True, slots=True)
class GrpcInferenceServicer:
    calls: Calls
    state: ServerState
    # None if the libraries for generation are not installed.
    generation: TensorGeneration | None

    # The methods for health probes are public, because probes have no API keys. Methods that reveal the names of models
    # need a key.

    @public
    async def ServerLive(self, request: pb.ServerLiveRequest, context: Any) -> pb.ServerLiveResponse:  # noqa: N802
        return pb.ServerLiveResponse(live=True)

    @public
    async def ServerReady(self, request: pb.ServerReadyRequest, context: Any) -> pb.ServerReadyResponse:  # noqa: N802
        return pb.ServerReadyResponse(ready=self.state.is_ready)

    @public
    async def ServerMetadata(  # noqa: N802
        self, request: pb.ServerMetadataRequest, context: Any
    ) -> pb.ServerMetadataResponse:
        return pb.ServerMetadataResponse(name=SERVER_NAME, version=server_version(), extensions=GRPC_EXTENSIONS)

    async def ModelReady(self, request: pb.ModelReadyRequest, context: Any) -> pb.ModelReadyResponse:  # noqa: N802
        return pb.ModelReadyResponse(ready=self.state.is_model_ready(request.name, request.version))

    async def ModelMetadata(  # noqa: N802
        self, request: pb.ModelMetadataRequest, context: Any
    ) -> pb.ModelMetadataResponse:
        model = await self.state.model(request.name, request.version)
        versions = self.state.placement.models.versions(model.info.name)
        if self.generation is None:
            return pb.ModelMetadataResponse(name=request.name, versions=versions, platform=SERVER_NAME)
        tensor = pb.ModelMetadataResponse.TensorMetadata
        return pb.ModelMetadataResponse(
            name=request.name,
            versions=versions,
            platform=SERVER_NAME,
            inputs=[tensor(name=name, datatype=datatype, shape=[1]) for name, datatype in self.generation.inputs],
            outputs=[tensor(name=self.generation.output, datatype="BYTES", shape=[1])],
        )

    async def ModelInfer(self, request: pb.ModelInferRequest, context: Any) -> Prepared:  # noqa: N802
        if self.generation is None:
            raise ApiError(ErrorKind.UNSUPPORTED, "ModelInfer is not available: install quire[router] on the server.")
        return await self.generation.infer(request, context)
