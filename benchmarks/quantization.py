"""Measures the accuracy of quantized weights relative to float32: `python -m benchmarks.quantization`.

Two trained models predict texts token by token: the bundled model predicts answers to questions that it was not trained
on, and stories260K (if it is in ../shared) predicts its published story. The reference operations compute the logits,
so that the figures measure the quantization schemes, not the kernels.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path

import torch
from gguf import GGMLQuantizationType, quants
from tokenizers import Tokenizer
from torch import Tensor
from transformers import AutoTokenizer

from benchmarks.record import store
from services.worker.models.config import ModelConfig, read_model_config
from services.worker.ops.interface import AttentionBatch
from services.worker.ops.reference import ReferenceOps
from services.worker.pages.kv_cache import allocate_pages
from services.worker.quantization.at_load import AT_LOAD, AtLoad
from services.worker.quantization.kinds.int4 import Int4Weight
from services.worker.quantization.kinds.weight import Weight
from services.worker.weights import load_decoder
from services.worker.weights.gguf_blocks import decode
from services.worker.weights.safetensors_source import SafetensorsSource
from services.worker.weights.source import WeightSource
from training import corpus
from training.evaluate import KIND_NAMES
from training.generate import prompt_ids

ROOT = Path(__file__).parents[1]
BUNDLED = ROOT / "quire" / "models" / "quire-chat"
STORIES = Path(os.environ.get("QUIRE_SHARED", ROOT.parent / "shared")) / "models" / "stories260k"
QUESTIONS_PER_KIND = 5
SEED = 1  # selects the questions; differs from the training text's seed
BLOCK_SIZE = 32
CPU = torch.device("cpu")

Quantizer = Callable[[str, Tensor], Weight]  # takes a layer's name and matrix


@dataclass(frozen=True, slots=True)
class Text:
    token_ids: list[int]
    first_predicted: int  # index of the first token that is judged


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Errors of the logits that predict each judged token, relative to float32. The divergence is in nats."""

    logit_error_max: float
    logit_error_mean: float
    kl_divergence: float
    perplexity: float


def at_load(scheme: AtLoad, tied: bool, layer: str, weight: Tensor) -> Weight:
    return scheme.form.quantize(weight) if scheme.applies(layer, tied) else weight


def int4(group_size: int, layer: str, weight: Tensor) -> Weight:
    """Rounds to nearest, in the layout of AWQ and GPTQ (which round better). Quantizes only projections in the blocks,
    as these formats do, and only those whose input size is a multiple of the group size."""
    if not layer.startswith("model.layers.") or weight.shape[1] % group_size:
        return weight
    return Int4Weight.quantize(weight.half(), group_size)


def ggml(kind: GGMLQuantizationType, everywhere: bool, layer: str, weight: Tensor) -> Weight:
    """Rounds as llama.cpp does, if the input size is a multiple of 32. Its Q4 files store embeddings more precisely."""
    if weight.shape[1] % 32 or not (everywhere or layer.startswith("model.layers.")):
        return weight
    return decode(quants.quantize(weight.numpy(), kind), kind)


def schemes(config: ModelConfig) -> Mapping[str, Quantizer]:
    group_sizes = [size for size in (128, 64, 32) if config.hidden_size % size == 0]
    return {
        "float32": lambda _, weight: weight,
        **{name: partial(at_load, scheme, config.network.tie_word_embeddings) for name, scheme in AT_LOAD.items()},
        **{f"int4-groups-of-{size}": partial(int4, size) for size in group_sizes},
        "gguf-q8_0": partial(ggml, GGMLQuantizationType.Q8_0, True),
        "gguf-q4_0": partial(ggml, GGMLQuantizationType.Q4_0, False),
    }


class Quantizing:
    """A weight source that quantizes the matrices of another source."""

    def __init__(self, source: WeightSource, quantize: Quantizer) -> None:
        self._source, self._quantize = source, quantize

    def weight(self, layer: str) -> Weight:
        weight = self._source.weight(layer)
        assert isinstance(weight, Tensor)
        return self._quantize(layer, weight.float())

    def vector(self, name: str) -> Tensor:
        return self._source.vector(name)


def logits(directory: Path, quantize: Quantizer, texts: Sequence[Text]) -> list[Tensor]:
    """Returns the logits that predict the judged tokens of each text: float32 [num_judged, vocab_size]."""
    config, ops = read_model_config(directory), ReferenceOps(CPU, torch.float32)
    source = Quantizing(SafetensorsSource(directory, config, lambda _: None, CPU), quantize)
    longest = max(len(text.token_ids) for text in texts)
    num_blocks = -(-longest // BLOCK_SIZE)
    with torch.inference_mode():
        decoder = load_decoder(config, ops, source, longest)
        pages = allocate_pages(config, num_blocks, BLOCK_SIZE, CPU, torch.float32)
        blocks = torch.arange(num_blocks, dtype=torch.int32)[None]
        predicted = []
        for text in texts:
            ids = torch.tensor(text.token_ids[:-1])
            positions = torch.arange(len(ids), dtype=torch.int32)
            batch = AttentionBatch(positions, torch.tensor([0, len(ids)], dtype=torch.int32), blocks)
            judged = torch.arange(text.first_predicted - 1, len(ids))
            predicted.append(decoder.logits(decoder.hidden_states(ids, batch, pages, judged)))
        return predicted


def compare(directory: Path, quantizers: Mapping[str, Quantizer], texts: Sequence[Text]) -> dict[str, Accuracy]:
    exact = torch.cat(logits(directory, lambda _, weight: weight, texts))
    targets = torch.tensor([token for text in texts for token in text.token_ids[text.first_predicted :]])
    expected = exact.log_softmax(-1)
    figures = {}
    for name, quantize in quantizers.items():
        computed = torch.cat(logits(directory, quantize, texts))
        logprobs, error = computed.log_softmax(-1), (computed - exact).abs()
        figures[name] = Accuracy(
            logit_error_max=float(error.max()),
            logit_error_mean=float(error.mean()),
            kl_divergence=float((expected.exp() * (expected - logprobs)).sum(-1).mean()),
            perplexity=float((-logprobs.gather(1, targets[:, None])).mean().exp()),
        )
    return figures


def held_out_answers(count: int = QUESTIONS_PER_KIND) -> list[Text]:
    """Returns answers to `count` questions of each kind that the bundled model was not trained on."""
    tokenizer = AutoTokenizer.from_pretrained(BUNDLED)
    texts = []
    for kind in KIND_NAMES:
        for exchange in corpus.held_out_set(SEED, kind, count):
            prompt = prompt_ids(tokenizer, [{"role": "user", "content": exchange.question}])
            answer = tokenizer.encode(exchange.answer, add_special_tokens=False)
            texts.append(Text([*prompt, *answer, tokenizer.eos_token_id], len(prompt)))
    return texts


def published_story() -> list[Text]:
    tokenizer = Tokenizer.from_file(str(STORIES / "tokenizer.json"))
    golden = json.loads((STORIES / "golden.json").read_text())
    return [Text(tokenizer.encode(golden["text"]).ids, 1)]


def measure() -> dict[str, float]:
    """Returns the figures, and prints them as a table with a row per scheme."""
    figures: dict[str, float] = {}
    models = {"quire-chat": (BUNDLED, held_out_answers())}
    if STORIES.is_dir():
        models["stories260k"] = (STORIES, published_story())
    for model, (directory, texts) in models.items():
        print(f"\n{model:24}" + "".join(f"{field.name:>18}" for field in fields(Accuracy)))
        for scheme, accuracy in compare(directory, schemes(read_model_config(directory)), texts).items():
            print(f"  {scheme:22}" + "".join(f"{value:18.5f}" for value in asdict(accuracy).values()))
            figures |= {f"{model} {scheme} {name}": value for name, value in asdict(accuracy).items()}
    return figures


if __name__ == "__main__":
    store("quantization", measure())
