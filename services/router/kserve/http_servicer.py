"""quire.kserve.v1.KserveService: the HTTP form of the Open Inference Protocol."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from google.api.httpbody_pb2 import HttpBody

from quire.kserve.v1 import kserve_pb2 as pb
from services.router.answers import JSON
from services.router.calls import Calls, rpc
from services.router.errors import unavailable
from services.router.kserve.replies import Live, ModelMetadata, ModelReady, Ready, Reply, ServerMetadata
from services.router.kserve.state import SERVER_NAME, ServerState, name_and_version, server_version


@dataclass(frozen=True, slots=True)
class KserveServicer:
    calls: Calls
    state: ServerState

    # Probes carry no keys; what says which models there are asks for one.

    @rpc
    async def GetLive(self, request: pb.GetLiveRequest, context: Any) -> HttpBody:  # noqa: N802
        return _json(Live(live=True))

    @rpc
    async def GetReady(self, request: pb.GetReadyRequest, context: Any) -> HttpBody:  # noqa: N802
        if not self.state.is_ready:
            raise unavailable("No scheduler is ready.")
        return _json(Ready(ready=True))

    @rpc
    async def GetServerMetadata(self, request: pb.GetServerMetadataRequest, context: Any) -> HttpBody:  # noqa: N802
        return _json(ServerMetadata(name=SERVER_NAME, version=server_version(), extensions=[]))

    @rpc
    async def GetModelReady(self, request: pb.GetModelReadyRequest, context: Any) -> HttpBody:  # noqa: N802
        self.calls.authenticate(context)
        if not await self.state.is_model_ready(*name_and_version(request.model)):
            raise unavailable("No scheduler of this model is ready.")
        return _json(ModelReady(name=request.model, ready=True))

    @rpc
    async def GetModelMetadata(self, request: pb.GetModelMetadataRequest, context: Any) -> HttpBody:  # noqa: N802
        self.calls.authenticate(context)
        await self.state.model(*name_and_version(request.model))
        metadata = ModelMetadata(name=request.model, versions=[], platform=SERVER_NAME, inputs=[], outputs=[])
        return _json(metadata)


def _json(reply: Reply) -> HttpBody:
    return HttpBody(content_type=JSON, data=reply.model_dump_json().encode())
