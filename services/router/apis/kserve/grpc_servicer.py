"""inference.GRPCInferenceService: the gRPC form of the Open Inference Protocol."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quire.kserve.v1 import open_inference_pb2 as pb
from services.router.apis.kserve.state import SERVER_NAME, ServerState, server_version
from services.router.errors import ApiError, ErrorKind
from services.router.rpc.calls import Calls, Prepared, open_rpc, rpc

if TYPE_CHECKING:
    from services.router.apis.kserve.generation.text import TextGeneration


@dataclass(frozen=True, slots=True)
class GrpcInferenceServicer:
    calls: Calls
    state: ServerState
    # None where what it needs is not installed.
    generation: TextGeneration | None

    # Probes carry no keys; what says which models there are asks for one.

    @open_rpc
    async def ServerLive(self, request: pb.ServerLiveRequest, context: Any) -> pb.ServerLiveResponse:  # noqa: N802
        return pb.ServerLiveResponse(live=True)

    @open_rpc
    async def ServerReady(self, request: pb.ServerReadyRequest, context: Any) -> pb.ServerReadyResponse:  # noqa: N802
        return pb.ServerReadyResponse(ready=self.state.is_ready)

    @open_rpc
    async def ServerMetadata(  # noqa: N802
        self, request: pb.ServerMetadataRequest, context: Any
    ) -> pb.ServerMetadataResponse:
        return pb.ServerMetadataResponse(name=SERVER_NAME, version=server_version())

    @rpc
    async def ModelReady(self, request: pb.ModelReadyRequest, context: Any) -> pb.ModelReadyResponse:  # noqa: N802
        return pb.ModelReadyResponse(ready=await self.state.is_model_ready(request.name, request.version))

    @rpc
    async def ModelMetadata(  # noqa: N802
        self, request: pb.ModelMetadataRequest, context: Any
    ) -> pb.ModelMetadataResponse:
        await self.state.model(request.name, request.version)
        if self.generation is None:
            return pb.ModelMetadataResponse(name=request.name, platform=SERVER_NAME)
        from services.router.apis.kserve.generation.tensors import TEXT_OUTPUT, input_tensors

        tensor = pb.ModelMetadataResponse.TensorMetadata
        return pb.ModelMetadataResponse(
            name=request.name,
            platform=SERVER_NAME,
            inputs=[tensor(name=name, datatype=datatype, shape=[1]) for name, datatype in input_tensors()],
            outputs=[tensor(name=TEXT_OUTPUT, datatype="BYTES", shape=[1])],
        )

    @rpc
    async def ModelInfer(self, request: pb.ModelInferRequest, context: Any) -> Prepared:  # noqa: N802
        if self.generation is None:
            raise ApiError(ErrorKind.UNSUPPORTED, "This server has not what ModelInfer needs: install quire[router].")
        from services.router.apis.kserve.generation.infer_messages import asked, response

        wanted = await self.generation.read(request.ByteSize(), lambda: asked(request))
        name, request_id, is_raw = request.model_name, request.id, bool(request.raw_input_contents)

        async def answer(text: str) -> pb.ModelInferResponse:
            return response(name, request_id, text, is_raw=is_raw)

        return await self.generation.text(wanted, name, request.model_version, context, answer)
