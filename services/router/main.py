"""Builds a router from its parts and runs it until SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import logging
import math
import signal
import socket
import sys
import uuid
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from quire.inference.v1 import inference_pb2_grpc
from quire.kserve.v1 import open_inference_pb2_grpc
from services.router.apis.kserve import GrpcInferenceServicer, ServerState, TensorGeneration, server_version
from services.router.apis.typed import InferenceServicer
from services.router.chat import FormChoice
from services.router.config import RouterConfig
from services.router.dispatch import Placement
from services.router.embedding import Embedder
from services.router.errors import ApiError, ErrorKind, unavailable
from services.router.event_loop_lag import observe_lag
from services.router.generation import Generator, PromptLog, Tracing
from services.router.heap import settle_heap
from services.router.metrics import LoadCollector, RequestMetrics, RouterCollector
from services.router.rpc import BoundedServer, Calls, Guarded, SingleRequestServer, details_metadata
from services.router.template import import_renderer
from services.router.text import TextThreads
from shared.config import ConfigError, resolve
from shared.discovery import DiscoveryCollector, Kind, Registry, Source, source_of
from shared.garbage import settle_garbage
from shared.grpc_server import GrpcServer
from shared.log import configure_logging
from shared.malformed import MalformedRequestError, RefusalStyle, UndecodableRequestError
from shared.message_size import ENVELOPE_BYTES
from shared.metrics import registry_of, start_metrics_server
from shared.status import StatusReporter, warnings_as_notes
from shared.telemetry import configure_tracing, shutdown_tracing

if TYPE_CHECKING:
    from services.router.http import ChatService

logger = logging.getLogger(__name__)

# Longest time that a tokenizer thread keeps Python's interpreter lock while the event loop waits for it. The event loop
# needs the lock several times per token. Python's default of 5 ms is longer than a step of a small model.
_SWITCH_INTERVAL_SECONDS = 0.0005

GRPC_SERVICES = ("quire.inference.v1.InferenceService", "inference.GRPCInferenceService")
# Services that the gateway calls for HTTP clients.
HTTP_SERVICES = (
    "quire.openai.v1.OpenAIService",
    "quire.anthropic.v1.AnthropicService",
    "quire.ollama.v1.OllamaService",
    "quire.documents.v1.DocumentService",
    "quire.kserve.v1.KserveService",
)
# Time after the drain timeout for sending an error to each client whose answer is not complete.
LAST_WORDS_S = 0.5
# Packages besides grpcio and protobuf that the HTTP services need. The typed services do not need them.
_HTTP_NEEDS = ("google.api", "prometheus_client", "pydantic", "pydantic_core")


class Router:
    """One router process: its parts, and the order in which they start and stop."""

    def __init__(
        self, config: RouterConfig, tracing_enabled: bool = False, *, schedulers: Source | None = None
    ) -> None:
        """`schedulers`: discovers the schedulers. If left out, they are those of `config.scheduler`."""
        self._config = config
        self.threads = TextThreads(config.tokenizer_threads)
        self._health = asyncio.Event()
        self._is_draining = False
        self._tasks: list[asyncio.Task[None]] = []
        self.ready = asyncio.Event()
        # The id has a random part, because two routers in containers can have equal host names and equal process ids.
        self.id = f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}"
        self.placement = Placement(
            schedulers or source_of(config.scheduler, Kind.SCHEDULER),
            router_id=self.id,
            threads=self.threads,
            scheduler_wait=config.scheduler_wait,
            scheduler_silence=config.scheduler_silence,
            default_model=config.default_model,
            on_change=self._health.set,
        )
        self.metrics = RequestMetrics()
        self.generator = Generator(self.placement, self.metrics, config.max_num_requests, PromptLog(config.log_prompts))
        self.embedder = Embedder(self.generator, self.metrics)
        self.collector = RouterCollector(self.metrics, self.placement, self.id)
        self.calls = calls = Calls(config.api_key, self.metrics)
        typed = calls.typed()
        self._forms = FormChoice(config.tool_call_parser, config.reasoning_parser)
        tracing = Tracing(tracing_enabled)
        missing = _missing(_HTTP_NEEDS)
        generation: TensorGeneration | None = None
        services = GRPC_SERVICES if missing else (*HTTP_SERVICES, *GRPC_SERVICES)
        self._server = GrpcServer(services, _REFUSALS, config.max_body_bytes + ENVELOPE_BYTES)
        if missing:
            logger.warning("not serving the HTTP APIs: these packages are not installed: %s", ", ".join(missing))
        else:
            chats = self._add_openai(calls, tracing)
            self._add_translations(calls, chats)
            self._add_documents(calls)
            generation = self._add_kserve(calls, chats)
        self._add_typed(
            inference_pb2_grpc.add_InferenceServiceServicer_to_server,
            InferenceServicer(typed, self.generator, tracing, self._forms, config.max_n, self.embedder),
        )
        self._add_typed(
            open_inference_pb2_grpc.add_GRPCInferenceServiceServicer_to_server,
            GrpcInferenceServicer(typed, ServerState(self.placement), generation),
        )

    def _add(self, register: Callable[[Any, Any], None], servicer: object) -> None:
        """Adds a servicer with authentication and error handling. `register`: the generated add_…_to_server."""

        @functools.wraps(register)
        def add(servicer: Any, server: object) -> None:
            register(Guarded(servicer), SingleRequestServer(server))

        self._server.add(add, servicer)

    def _add_typed(self, register: Callable[[Any, Any], None], servicer: object) -> None:
        """Adds a typed API's servicer as `_add` does. In addition, makes the server parse large requests on a thread,
        and refuse large requests with too many fields (rpc/wire_bounds.py)."""

        @functools.wraps(register)
        def add(servicer: object, server: object) -> None:
            register(servicer, BoundedServer(server, self.threads))

        self._add(add, servicer)

    def _add_openai(self, calls: Calls, tracing: Tracing) -> ChatService:
        from quire.openai.v1 import openai_pb2_grpc
        from services.router.apis.openai import (
            ClassificationService,
            CohereService,
            CompletionService,
            EmbeddingService,
            OpenAIServicer,
            ScoringService,
        )
        from services.router.http import Answers, ChatService

        answers = Answers(calls, self.generator)
        chats = ChatService(self.generator, answers, tracing, self._forms)
        servicer = OpenAIServicer(
            calls,
            self.placement,
            chats,
            CompletionService(self.generator, answers, tracing),
            EmbeddingService(self.placement, calls, self.embedder, tracing),
            ScoringService(self.placement, calls, self.embedder, tracing),
            ClassificationService(self.placement, calls, self.embedder, tracing),
            CohereService(self.placement, calls, self.embedder, tracing),
            self.metrics,
            registry_of(self.collector, LoadCollector(self.placement, self.id)),
            self.threads,
            self._config.max_n,
        )
        self._add(openai_pb2_grpc.add_OpenAIServiceServicer_to_server, servicer)
        return chats

    def _add_translations(self, calls: Calls, chats: ChatService) -> None:
        """Adds Anthropic's and Ollama's APIs."""
        from quire.anthropic.v1 import anthropic_pb2_grpc
        from quire.ollama.v1 import ollama_pb2_grpc
        from services.router.apis.anthropic import AnthropicServicer, anthropic_error
        from services.router.apis.ollama import OllamaServicer, ollama_error

        metrics, threads = self.metrics, self.threads
        self._add(
            anthropic_pb2_grpc.add_AnthropicServiceServicer_to_server,
            AnthropicServicer(calls.with_errors(anthropic_error), self.placement, chats, metrics, threads),
        )
        ollama_calls = calls.with_errors(ollama_error)
        self._add(
            ollama_pb2_grpc.add_OllamaServiceServicer_to_server,
            OllamaServicer(ollama_calls, self.placement, chats, self.embedder, metrics, threads),
        )

    def _add_documents(self, calls: Calls) -> None:
        from quire.documents.v1 import documents_pb2_grpc
        from services.router.openapi import DocumentServicer

        servicer = DocumentServicer(calls, self.threads, server_version(), self._config.root_path)
        self._add(documents_pb2_grpc.add_DocumentServiceServicer_to_server, servicer)

    def _add_kserve(self, calls: Calls, chats: ChatService) -> TensorGeneration:
        from quire.kserve.v1 import kserve_pb2_grpc
        from services.router.apis.kserve.generation import GrpcGeneration, KserveServicer, TextGeneration, kserve_error
        from services.router.http import Answers

        calls, state = calls.with_errors(kserve_error), ServerState(self.placement)
        generation = TextGeneration(state, Answers(calls, self.generator), chats.tracing, self.threads)
        servicer = KserveServicer(calls, state, generation)
        self._add(kserve_pb2_grpc.add_KserveServiceServicer_to_server, servicer)
        return GrpcGeneration(generation)

    async def start(self) -> list[str]:
        """Starts listening and connects to the schedulers. Returns the bound addresses. Raises OSError if an address
        cannot be bound."""
        addresses = await self._server.start(self._config.listen)
        self.placement.start()
        # Imports the renderer of chat templates on a thread while the router connects to the schedulers. Both take
        # about equally long, so the import hardly delays the start.
        self.threads.start(import_renderer)
        self._tasks = [
            asyncio.create_task(self._keep_health()),
            asyncio.create_task(observe_lag(self.metrics.event_loop_lag)),
        ]
        return addresses

    async def stop(self) -> None:
        """Shuts down gracefully: drains, and closes all connections."""
        self._is_draining = True
        await drain(self.placement, self._server, self._config.drain_timeout)
        for task in self._tasks:
            task.cancel()
        await self.placement.stop()
        self.threads.close()

    async def _keep_health(self) -> None:
        """Sets the gRPC health status: SERVING while at least one scheduler accepts requests."""
        while True:
            await self._health.wait()
            self._health.clear()
            if not self._is_draining:
                await self._server.set_serving(self.placement.is_ready)
            if self.placement.is_ready:
                self.ready.set()


async def drain(placement: Placement, server: GrpcServer, timeout_s: float) -> None:
    """Refuses new requests, and waits up to `timeout_s` for those in progress. Answers that take longer end with an
    error in their API's own shape."""
    stopping = asyncio.create_task(server.stop(math.inf))
    await asyncio.wait([stopping], timeout=timeout_s)
    if not stopping.done():
        placement.fail_all(unavailable("The server stopped before the answer was complete. Try again."))
        # The time for it begins here. If it began with the drain, a router that was suspended at this moment would cut
        # its clients off without a word.
        await server.stop(LAST_WORDS_S)
    await stopping


async def run(config: RouterConfig, status: StatusReporter) -> int:
    settle_heap()
    sys.setswitchinterval(_SWITCH_INTERVAL_SECONDS)
    tracing_enabled = configure_tracing("router")
    try:
        registry = Registry(config, advertise=config.advertise)
    except ConfigError as error:
        return _fail(status, str(error))
    schedulers = source_of(config.scheduler, Kind.SCHEDULER, registry)
    router = Router(config, tracing_enabled, schedulers=schedulers)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    if not config.scheduler and not config.redis:
        return _fail(status, "give at least one --scheduler address, or the Redis that knows them with --redis")
    with ExitStack() as start:
        start.enter_context(warnings_as_notes(status))
        try:
            addresses = await router.start()
            if config.metrics_port is not None:
                metrics = registry_of(router.collector, DiscoveryCollector([schedulers], registry))
                start_metrics_server(config.metrics_host, config.metrics_port, metrics)
        except OSError as error:
            start.close()  # Otherwise, `_fail` would report the error twice, because its log line would become a note.
            return _fail(status, str(error))
        logger.info("listening on %s", ", ".join(addresses))
        status.starting("waiting for a scheduler")
        ready = asyncio.create_task(router.ready.wait())
        stop = asyncio.create_task(stopping.wait())
        await asyncio.wait([ready, stop], return_when=asyncio.FIRST_COMPLETED)
    if router.ready.is_set():
        settle_garbage()
        registry.join(Kind.ROUTER, addresses)
        status.ready(listen=",".join(addresses))
    await stop
    logger.info("draining: %d requests in progress", router.generator.num_requests)
    ready.cancel()
    await asyncio.gather(registry.leave(), router.stop())  # the drain does not wait for Redis
    await registry.close()
    shutdown_tracing()
    return 0


def main(argv: Sequence[str]) -> int:
    config = resolve(
        RouterConfig,
        argv,
        prog="quire router",
        description="Runs one router: the HTTP and gRPC APIs in front of schedulers.",
    )
    configure_logging("router", config.log_level, config.log_format)
    return _run_loop(run(config, StatusReporter(config.status_fd)))


def _run_loop(main: Coroutine[Any, Any, int]) -> int:
    """Runs `main` on uvloop if it is installed, because messages take 10% less time than on asyncio's loop
    (docs/performance.md)."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)


def _refusal_trailers(refusal: MalformedRequestError) -> tuple[tuple[str, str | bytes], ...]:
    """Returns the trailing metadata for a malformed request, in the same form as for other errors."""
    is_undecodable = isinstance(refusal, UndecodableRequestError)
    error = ApiError(ErrorKind.UNDECODABLE if is_undecodable else ErrorKind.INVALID_REQUEST, str(refusal))
    return (*error.metadata(), *details_metadata(error))


# For a malformed request, clients get the same status as from gRPC servers in C++, Go and Java.
_REFUSALS = RefusalStyle(ErrorKind.UNDECODABLE.status, _refusal_trailers)


def _missing(modules: Sequence[str]) -> list[str]:
    return [name for name in modules if not _is_there(name)]


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # its parent package is missing
        return False


def _fail(status: StatusReporter, reason: str) -> int:
    logger.error("%s", reason)
    status.failed(reason)
    return 1
