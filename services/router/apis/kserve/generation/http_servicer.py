"""quire.kserve.v1.KserveService: the HTTP form of the Open Inference Protocol."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from google.api.httpbody_pb2 import HttpBody

from quire.kserve.v1 import kserve_pb2 as pb
from services.router.apis.kserve.generation.body import KserveGenerateBody, TextRequest
from services.router.apis.kserve.generation.infer_body import HEADER_LENGTH, InferBody, parts_of
from services.router.apis.kserve.generation.replies import (
    InferAnswer,
    Live,
    ModelMetadata,
    ModelReady,
    OutputTensor,
    Ready,
    Reply,
    ServerMetadata,
    TensorMetadata,
)
from services.router.apis.kserve.generation.tensors import TEXT_OUTPUT, input_tensors, packed_text
from services.router.apis.kserve.generation.text import TextGeneration
from services.router.apis.kserve.state import EXTENSIONS, SERVER_NAME, ServerState, name_and_version, server_version
from services.router.errors import invalid, not_ready
from services.router.http import JSON, read_body
from services.router.rpc import Calls, Prepared, metadata_of, public


@dataclass(frozen=True, slots=True)
class KserveServicer:
    calls: Calls
    state: ServerState
    generation: TextGeneration

    # The methods for health probes are public, because probes have no API keys. Methods that reveal the names of models
    # need a key.

    @public
    async def GetLive(self, request: pb.GetLiveRequest, context: Any) -> HttpBody:  # noqa: N802
        return _json(Live(live=True))

    @public
    async def GetReady(self, request: pb.GetReadyRequest, context: Any) -> HttpBody:  # noqa: N802
        if not self.state.is_ready:
            raise not_ready("No scheduler is ready.")
        return _json(Ready(ready=True))

    @public
    async def GetServerMetadata(self, request: pb.GetServerMetadataRequest, context: Any) -> HttpBody:  # noqa: N802
        return _json(ServerMetadata(name=SERVER_NAME, version=server_version(), extensions=EXTENSIONS))

    async def GetModelReady(self, request: pb.GetModelReadyRequest, context: Any) -> HttpBody:  # noqa: N802
        name, version = name_and_version(request.model)
        if not self.state.is_model_ready(name, version):
            raise not_ready("No scheduler of this model is ready.")
        return _json(ModelReady(name=name, ready=True))

    async def GetModelMetadata(self, request: pb.GetModelMetadataRequest, context: Any) -> HttpBody:  # noqa: N802
        name, version = name_and_version(request.model)
        model = await self.state.model(name, version)
        versions = self.state.placement.models.versions(model.info.name)
        inputs = [TensorMetadata(name=tensor, datatype=datatype, shape=[1]) for tensor, datatype in input_tensors()]
        outputs = [TensorMetadata(name=TEXT_OUTPUT, datatype="BYTES", shape=[1])]
        return _json(ModelMetadata(name=name, versions=versions, platform=SERVER_NAME, inputs=inputs, outputs=outputs))

    async def Generate(self, request: pb.GenerateRequest, context: Any) -> Prepared:  # noqa: N802
        asked = await self._asked(request.body.data)
        if asked.stream:
            raise invalid("Invalid 'stream': this path does not stream. Use the path 'generate_stream'.", "stream")
        return await self.generation.send(asked, *name_and_version(request.model), context, stream=False)

    async def GenerateStream(self, request: pb.GenerateRequest, context: Any) -> Prepared:  # noqa: N802
        asked = await self._asked(request.body.data)
        return await self.generation.send(asked, *name_and_version(request.model), context, stream=True)

    async def Infer(self, request: pb.InferRequest, context: Any) -> Prepared:  # noqa: N802
        data, threads = request.body.data, self.generation.threads
        # The whole body counts towards the limit on large bodies. `read_body` counts only the JSON, but the binary data
        # after the JSON can be much larger.
        await threads.large_bodies.enter(len(data))
        parts = parts_of(data, metadata_of(context, HEADER_LENGTH))
        given = await read_body(threads, parts.json, InferBody)
        asked = await self.generation.read(len(data), lambda: given.asked(parts.binary))
        (name, version), request_id, wants_bytes = name_and_version(request.model), asked.id, given.wants_bytes

        async def answer_of(text: str, version: str) -> HttpBody:
            answer = InferAnswer(model_name=name, model_version=version, outputs=[])
            if request_id is not None:
                answer.id = request_id
            output = OutputTensor(name=TEXT_OUTPUT, datatype="BYTES", shape=[1])
            answer.outputs.append(output)
            if not wants_bytes:
                output.data = [text]
                return HttpBody(content_type=JSON, data=answer.model_dump_json(exclude_unset=True).encode())
            binary = packed_text(text)
            output.parameters = {"binary_data_size": len(binary)}
            head = answer.model_dump_json(exclude_unset=True).encode()
            await context.send_initial_metadata(((HEADER_LENGTH, str(len(head))),))
            return HttpBody(content_type="application/octet-stream", data=head + binary)

        return await self.generation.text(asked, name, version, context, answer_of)

    async def _asked(self, data: bytes) -> TextRequest:
        """Parses a body and converts it to a TextRequest. Raises ApiError."""
        body = await read_body(self.generation.threads, data, KserveGenerateBody)
        return await self.generation.read(len(data), body.asked)


def _json(reply: Reply) -> HttpBody:
    return HttpBody(content_type=JSON, data=reply.model_dump_json().encode())
