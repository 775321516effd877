"""The one model that a scheduler's worker groups serve, fixed by the first of them."""

from __future__ import annotations

from quire.inference.v1 import model_pb2, pooling_pb2
from services.scheduler.core import ErrorKind, Failure, Pool, RefusedError, SequenceRequest


class OtherModelError(Exception):
    """A worker group serves another model than the groups before it."""


class FleetModel:
    """The model's description. The first worker that is claimed sets it; later workers must match it."""

    def __init__(self) -> None:
        self._info: model_pb2.ModelInfo | None = None

    @property
    def info(self) -> model_pb2.ModelInfo:
        """The model's description. Call it only once a group was claimed."""
        assert self._info is not None
        return self._info

    @property
    def is_known(self) -> bool:
        return self._info is not None

    def adopt(self, info: model_pb2.ModelInfo) -> None:
        """Checks a claimed worker's model, and keeps it if it is the first. Routers know the first group's model, so
        later groups must support everything that the first supports. Raises OtherModelError if a later group does not.
        """
        if self._info is None:
            self._info = info
            return
        for name in ("name", "vocab_size", "tokenizer_sha256", "is_encoder", "embedding"):
            ours, theirs = getattr(self._info, name), getattr(info, name)
            if ours != theirs:
                raise OtherModelError(f"its {name} is {theirs!r}, not {ours!r}")
        if info.max_model_len < self._info.max_model_len:
            raise OtherModelError(f"its context is {info.max_model_len}, less than {self._info.max_model_len}")

    @property
    def pool(self) -> Pool:
        """The work of making one vector. If the vector comes from a decoder's last token, only that token must be
        computed when the keys and values of the others are cached. Every other kind of vector needs all tokens.
        """
        is_last = self.info.embedding.pooling == pooling_pb2.POOLING_TYPE_LAST and not self.info.is_encoder
        return Pool(needs_all_tokens=not is_last)

    def check_task(self, request: SequenceRequest) -> None:
        """Raises RefusedError if the model cannot do the request's work."""
        problem = None
        if request.work.gives_vector and not self.info.HasField("embedding"):
            problem = "the model gives no embeddings"
        elif not request.work.gives_vector and self.info.is_encoder:
            problem = "the model is an encoder: it gives embeddings and generates nothing"
        if problem is not None:
            raise RefusedError(Failure(ErrorKind.INVALID_ARGUMENT, problem))
