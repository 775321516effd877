"""Requests in which some tokens come as embeddings, and what transformers makes of them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from services.worker.plan.given_embeddings import GivenEmbeddings
from services.worker.plan.sampling_params import SamplingParams
from tests.unit.worker.driver import Request
from tests.unit.worker.tiny_models import VOCAB_SIZE

WITH_LOGPROBS = SamplingParams(temperature=0.0, logprobs=1)


class EmbeddingReference:
    """transformers' output for `inputs_embeds`."""

    def __init__(self, model: Any, seed: int = 0) -> None:
        self._model = model
        self._random = random.Random(seed)
        self._generator = torch.Generator().manual_seed(seed)

    def request(self, length: int, num_outputs: int, given: Sequence[int] = ()) -> Request:
        """`given`: positions of the tokens that come as embeddings. Every other embedding is the id's own."""
        ids = [self._random.randrange(3, VOCAB_SIZE) for _ in range(length)]
        if not given:
            return Request(ids, num_outputs, WITH_LOGPROBS)
        rows = self._embed(ids)
        rows[::2] = torch.randn(rows[::2].shape, generator=self._generator) * rows.std()
        embeddings = GivenEmbeddings(np.array(given, np.int64), rows[list(given)].numpy())
        return Request(ids, num_outputs, WITH_LOGPROBS, embeddings=embeddings)

    def check(self, request: Request) -> None:
        """Every token must be transformers' likeliest, except where two are all but equal."""
        assert request.error is None, request.error
        ids = request.prompt + request.output[:-1]
        logprobs = self._logprobs(ids, request.embeddings)[len(request.prompt) - 1 :]
        tokens = torch.tensor(request.output)[:, None]
        drawn = logprobs.gather(1, tokens)[:, 0]
        assert (logprobs.amax(-1) - drawn).amax() < 1e-4
        np.testing.assert_allclose([logprob for logprob, _ in request.logprobs], drawn, atol=1e-4)

    def _embed(self, ids: list[int]) -> Tensor:
        with torch.no_grad():
            embeddings: Tensor = self._model.get_input_embeddings()(torch.tensor(ids))
        return embeddings

    def _logprobs(self, ids: list[int], given: GivenEmbeddings | None) -> Tensor:
        """Returns [len(ids), vocab]."""
        tokens, embeddings = torch.tensor(ids), self._embed(ids)
        if given is not None:
            embeddings[given.at] = torch.from_numpy(given.rows)
            tokens[given.at] = 0  # the padding token
        inputs = {}
        if getattr(self._model.config.get_text_config(), "hidden_size_per_layer_input", 0):
            inputs["per_layer_inputs"] = self._model.model.get_per_layer_inputs(tokens[None])
        with torch.no_grad():
            output = self._model(inputs_embeds=embeddings[None], use_cache=False, **inputs)
        logprobs: Tensor = output.logits[0].log_softmax(-1)
        return logprobs
