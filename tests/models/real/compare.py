"""Compares a real model with transformers in float32: the worker in this process, and `quire serve` over HTTP."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import openai
import torch
import transformers

from tests.e2e.conftest import Server, serving
from tests.fakes.waiting import HANG_S
from tests.models.real.catalogue import Real
from tests.models.real.prompts import NUM_TOKENS, TEXTS, prompt_ids, question, tokenizer_of
from tests.unit.worker.driver import Driver, Request
from tests.unit.worker.tiny_encoders import embed_together, embeddings, make_encoder_runner, normalized
from tests.unit.worker.tiny_models import make_runner

TOLERANCE = 1e-5  # of an embedding's numbers
BLOCK_SIZE = 16
MAX_PROMPT = 512


@dataclass(frozen=True)
class Reference:
    """What transformers makes of the prompts."""

    tokenizer: Any
    prompts: list[list[int]]
    outputs: list[list[int]]  # of a decoder
    vectors: list[Any]  # of an encoder: the mean of the last hidden states, of length 1

    def texts(self) -> list[str]:
        """Returns what each output adds to the text of its prompt: some decoders drop a space at the beginning."""
        return [
            self._text(ids + out)[len(self._text(ids)) :] for ids, out in zip(self.prompts, self.outputs, strict=True)
        ]

    def _text(self, token_ids: list[int]) -> str:
        text: str = self.tokenizer.decode(token_ids, skip_special_tokens=True)
        return text


def _whole(text: str) -> str:
    """The last token can begin a character that no token completes. transformers shows it as U+FFFD, Quire does not."""
    return text.rstrip("\ufffd")


def refer(real: Real) -> Reference:
    tokenizer = tokenizer_of(real.directory)
    prompts = [prompt_ids(tokenizer, text) for text in TEXTS]
    if real.is_encoder:
        prompts = [list(tokenizer(text)["input_ids"]) for text in TEXTS]
    auto: Any = transformers.AutoModel if real.is_encoder else transformers.AutoModelForCausalLM
    model = auto.from_pretrained(real.directory, dtype=torch.float32, attn_implementation="eager").eval()
    outputs: list[list[int]] = []
    vectors: list[Any] = []
    with torch.no_grad():
        for prompt in prompts:
            ids = torch.tensor([prompt])
            if real.is_encoder:
                vectors.append(normalized(model(ids).last_hidden_state[0].mean(0)))
            else:
                outputs.append(_generate(model, ids))
    return Reference(tokenizer, prompts, outputs, vectors)


def _generate(model: Any, ids: torch.Tensor) -> list[int]:
    """Greedily, past the end token. No setting of the checkpoint changes the choice of a token."""
    choice: Any = transformers.GenerationConfig(do_sample=False, max_new_tokens=NUM_TOKENS, pad_token_id=0)
    generated = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=choice, eos_token_id=None)
    return generated[0, ids.shape[1] :].tolist()  # type: ignore[no-any-return]


def compare_in_process(real: Real, reference: Reference) -> str:
    """Returns how many tokens or vectors are equal. Raises AssertionError at the first that is not."""
    if real.is_encoder:
        runner = make_encoder_runner(real.directory, pooling_type="mean", max_num_batched_tokens=MAX_PROMPT)
        found = embeddings(embed_together(runner, reference.prompts))
        difference = max(
            float(np.abs(own - expected).max()) for own, expected in zip(found, reference.vectors, strict=True)
        )
        assert difference <= TOLERANCE, f"an embedding differs by {difference:.1e}"
        return f"{len(found)} vectors to {difference:.0e}"
    num_blocks = sum(-(-(len(prompt) + NUM_TOKENS) // BLOCK_SIZE) for prompt in reference.prompts)
    runner = make_runner(real.directory, BLOCK_SIZE, num_blocks, max_num_batched_tokens=64)
    requests = [Request(prompt, NUM_TOKENS) for prompt in reference.prompts]
    Driver(runner, seed=len(real.name), max_chunk=16, preempt=0.01).run(*requests)
    for request, expected in zip(requests, reference.outputs, strict=True):
        assert request.error is None, request.error
        assert request.output == expected, (
            f"{reference.tokenizer.decode(request.output)!r} instead of {reference.tokenizer.decode(expected)!r}"
        )
    num_tokens = sum(map(len, reference.outputs))
    return f"{num_tokens} of {num_tokens} tokens"


def compare_over_http(real: Real, reference: Reference) -> str:
    """Asks everything at once. Returns how many texts or vectors are equal. Raises AssertionError if one is not."""
    options = ("--pooling-type", "mean") if real.is_encoder else ()
    with (
        serving(str(real.directory), "--served-model-name", "real", *options, model="real") as server,
        ThreadPoolExecutor(len(TEXTS)) as threads,
    ):
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=HANG_S)
        if real.is_encoder:
            found = client.embeddings.create(model="real", input=list(TEXTS)).data
            for own, expected in zip(found, reference.vectors, strict=True):
                np.testing.assert_allclose(own.embedding, expected, atol=TOLERANCE)
            return f"{len(found)} vectors"
        has_template = bool(reference.tokenizer.chat_template)
        texts = list(threads.map(lambda text: _ask(client, server, text, has_template), TEXTS))
    for text, expected_text in zip(texts, reference.texts(), strict=True):
        assert _whole(text) == _whole(expected_text), f"{text!r} instead of {expected_text!r}"
    return f"{len(texts)} of {len(texts)} texts"


def _ask(client: openai.OpenAI, server: Server, text: str, is_chat: bool) -> str:
    free = {"ignore_eos": True, "repetition_penalty": 1.0}
    if is_chat:
        answer = client.chat.completions.create(
            model=server.model, messages=[question(text)], temperature=0, max_tokens=NUM_TOKENS, extra_body=free
        )
        return answer.choices[0].message.content or ""
    completion = client.completions.create(
        model=server.model, prompt=text, temperature=0, max_tokens=NUM_TOKENS, extra_body=free
    )
    return completion.choices[0].text
