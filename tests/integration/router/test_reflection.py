"""Everything that reflection lists can be found through it, in both of its versions."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from services.router.main import GRPC_SERVICES, HTTP_SERVICES
from tests.integration.router.conftest import StartRouter, fake_scheduler

VERSIONS = ("grpc.reflection.v1", "grpc.reflection.v1alpha")


class ReflectionClient:
    """Keeps what it was told in a pool of its own, in which nothing is that the server did not send."""

    def __init__(self, channel: grpc.aio.Channel, package: str) -> None:
        def message(name: str) -> Any:
            descriptor = descriptor_pool.Default().FindMessageTypeByName(f"{package}.{name}")
            return message_factory.GetMessageClass(descriptor)

        self._request = message("ServerReflectionRequest")
        self._call: Any = channel.stream_stream(
            f"/{package}.ServerReflection/ServerReflectionInfo",
            self._request.SerializeToString,
            message("ServerReflectionResponse").FromString,
        )()
        self.pool = descriptor_pool.DescriptorPool()
        self._known: set[str] = set()

    async def ask(self, **question: Any) -> Any:
        await self._call.write(self._request(**question))
        response = await self._call.read()
        assert response is not grpc.aio.EOF
        return response

    async def services(self) -> list[str]:
        return [service.name for service in (await self.ask(list_services="")).list_services_response.service]

    async def learn(self, symbol: str) -> None:
        response = await self.ask(file_containing_symbol=symbol)
        assert response.WhichOneof("message_response") == "file_descriptor_response", (symbol, response)
        files = map(
            descriptor_pb2.FileDescriptorProto.FromString, response.file_descriptor_response.file_descriptor_proto
        )
        waiting = {file.name: file for file in files if file.name not in self._known}
        while waiting:
            name = next(name for name, file in waiting.items() if self._known.issuperset(file.dependency))
            self.pool.AddSerializedFile(waiting.pop(name).SerializeToString())
            self._known.add(name)


def types_in(descriptor: Any, seen: set[str]) -> Iterator[str]:
    """The full names of a message, its fields' messages and enums, and those inside them; each once."""
    if descriptor.full_name in seen:
        return
    seen.add(descriptor.full_name)
    yield descriptor.full_name
    for field in descriptor.fields:
        if field.enum_type is not None:
            yield field.enum_type.full_name
        if field.message_type is not None:
            yield from types_in(field.message_type, seen)


@pytest.fixture
async def channel(start_router: StartRouter) -> grpc.aio.Channel:
    channel: grpc.aio.Channel = (await start_router(fake_scheduler())).channel
    return channel


@pytest.mark.parametrize("package", VERSIONS)
async def test_every_service_method_and_message_resolves(channel: grpc.aio.Channel, package: str) -> None:
    client = ReflectionClient(channel, package)
    services = await client.services()
    own = {*GRPC_SERVICES, *HTTP_SERVICES, "grpc.health.v1.Health", *(f"{name}.ServerReflection" for name in VERSIONS)}
    assert set(services) == own
    seen: set[str] = set()
    for name in services:
        await client.learn(name)
        service = client.pool.FindServiceByName(name)
        assert service.methods
        for method in service.methods:
            await client.learn(method.full_name)
            for message in (method.input_type, method.output_type):
                for symbol in types_in(message, seen):
                    await client.learn(symbol)


@pytest.mark.parametrize("package", VERSIONS)
async def test_what_is_not_there_is_not_found(channel: grpc.aio.Channel, package: str) -> None:
    client = ReflectionClient(channel, package)
    for symbol in ("no.such.Service", "quire.openai.v1.OpenAIService.None"):
        response = await client.ask(file_containing_symbol=symbol)
        assert response.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]


def test_a_router_loads_the_descriptor_of_each_of_its_services() -> None:
    """In a process of its own: the tests load more than a router does."""
    code = (
        "import asyncio\n"
        "from google.protobuf import descriptor_pool\n"
        "from services.router.config import RouterConfig\n"
        "from services.router.main import GRPC_SERVICES, HTTP_SERVICES, Router\n"
        "async def main(): Router(RouterConfig(scheduler=('127.0.0.1:1',)))\n"
        "asyncio.run(main())\n"
        "for name in (*GRPC_SERVICES, *HTTP_SERVICES): descriptor_pool.Default().FindServiceByName(name)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
