"""The one model that all worker groups of a scheduler serve. The first claimed worker sets it."""

from __future__ import annotations

from quire.inference.v1 import model_pb2, pooling_pb2
from services.scheduler.core import ErrorKind, Failure, Pool, RefusedError
from services.scheduler.worker_request import WorkerRequest
from shared.model_label import model_label

# Fields that the models of all workers have in common.
_SAME = (
    "name",
    "version",
    "vocab_size",
    "tokenizer_sha256",
    "is_encoder",
    "has_no_output_layer",
    "embedding",
    "classifier",
)


class OtherModelError(Exception):
    """A worker serves another model than the scheduler's workers must serve."""


class FleetModel:
    """The description of the model that all workers serve. The first worker that is claimed sets it; later workers must
    match it."""

    def __init__(self, expected: str = "") -> None:
        """`expected`: NAME or NAME@VERSION of the model that the first worker must serve; empty if any will do."""
        self._expected = expected
        self._info: model_pb2.ModelInfo | None = None

    @property
    def info(self) -> model_pb2.ModelInfo:
        """The model's description. Read it only after a worker was claimed."""
        assert self._info is not None
        return self._info

    @property
    def is_known(self) -> bool:
        return self._info is not None

    @property
    def name_and_version(self) -> tuple[str, str]:
        """Name and version of the model that workers must serve. Both are empty if any model will do."""
        if self._info is not None:
            return self._info.name, self._info.version
        name, _, version = self._expected.partition("@")
        return name, version

    def adopt(self, info: model_pb2.ModelInfo) -> None:
        """Takes the model of the first claimed worker if it is the expected one, and checks the model of every later
        worker. Routers know only the first model, so a later model must have the same name, version, vocabulary size,
        tokenizer, embeddings, prompts of embeddings and classes, must be an encoder if the first is one, and must have
        at least the first model's context. Otherwise raises OtherModelError."""
        if self._info is None:
            label = model_label(info.name, info.version)
            if self._expected not in ("", label):
                raise OtherModelError(f"its model is {label}, not {self._expected}")
            self._info = info
            return
        for name in _SAME:
            ours, theirs = getattr(self._info, name), getattr(info, name)
            if ours != theirs:
                raise OtherModelError(f"its {name} is {theirs!r}, not {ours!r}")
        # A worker of an earlier release sends no prompts. It can serve all the same, because routers put them in place.
        both_sent = self._info.HasField("embedding_prompts") and info.HasField("embedding_prompts")
        if both_sent and self._info.embedding_prompts != info.embedding_prompts:
            raise OtherModelError("its embedding_prompts differ from those of the scheduler's first worker")
        if info.max_model_len < self._info.max_model_len:
            raise OtherModelError(f"its context is {info.max_model_len}, less than {self._info.max_model_len}")

    @property
    def pool(self) -> Pool:
        """The work of making one embedding, or the scores of one sequence. A decoder's scores, and some decoders'
        embeddings, are made of the last token. For these, earlier tokens whose keys and values are cached need not be
        computed again. Every other kind needs all tokens computed."""
        info = self.info
        is_last = info.HasField("classifier") or info.embedding.pooling == pooling_pb2.POOLING_TYPE_LAST
        return Pool(needs_all_tokens=info.is_encoder or not is_last)

    def check_task(self, request: WorkerRequest) -> None:
        """Raises RefusedError if the model cannot do what the request asks for: generate text, make an embedding or
        score labels."""
        problem, info = None, self.info
        if request.classification is not None:
            problem = None if info.HasField("classifier") else "the model is not a classifier"
        elif request.work.gives_vector:
            problem = None if info.HasField("embedding") else "the model gives no embeddings"
        elif info.is_encoder:
            problem = "the model is an encoder: it generates nothing"
        elif info.has_no_output_layer:
            problem = "the model has no output layer: it generates nothing"
        if problem is not None:
            raise RefusedError(Failure(ErrorKind.INVALID_ARGUMENT, problem))
