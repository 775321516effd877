"""inference.GRPCInferenceService: the gRPC form of the Open Inference Protocol."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from quire.kserve.v1 import open_inference_pb2 as pb
from services.router.calls import Calls, rpc
from services.router.kserve.state import SERVER_NAME, ServerState, server_version


@dataclass(frozen=True, slots=True)
class GrpcInferenceServicer:
    calls: Calls
    state: ServerState

    # Probes carry no keys; what says which models there are asks for one.

    @rpc
    async def ServerLive(self, request: pb.ServerLiveRequest, context: Any) -> pb.ServerLiveResponse:  # noqa: N802
        return pb.ServerLiveResponse(live=True)

    @rpc
    async def ServerReady(self, request: pb.ServerReadyRequest, context: Any) -> pb.ServerReadyResponse:  # noqa: N802
        return pb.ServerReadyResponse(ready=self.state.is_ready)

    @rpc
    async def ServerMetadata(  # noqa: N802
        self, request: pb.ServerMetadataRequest, context: Any
    ) -> pb.ServerMetadataResponse:
        return pb.ServerMetadataResponse(name=SERVER_NAME, version=server_version())

    @rpc
    async def ModelReady(self, request: pb.ModelReadyRequest, context: Any) -> pb.ModelReadyResponse:  # noqa: N802
        self.calls.authenticate(context)
        return pb.ModelReadyResponse(ready=await self.state.is_model_ready(request.name, request.version))

    @rpc
    async def ModelMetadata(  # noqa: N802
        self, request: pb.ModelMetadataRequest, context: Any
    ) -> pb.ModelMetadataResponse:
        self.calls.authenticate(context)
        await self.state.model(request.name, request.version)
        return pb.ModelMetadataResponse(name=request.name, platform=SERVER_NAME)
