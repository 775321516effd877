"""`quire estimate MODEL`: how much memory a model needs and which GPUs have enough, computed from its config.json."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from services.worker.quantization import ALIASES, CHOICES, REFUSALS, resolve_quantization
from shared.config import option, resolve

if TYPE_CHECKING:
    from services.worker.models import ModelConfig

# Memory in bytes. A gigabyte is 10⁹ bytes, as in the GPUs' data sheets.
GPUS = {
    "L4": 24e9,
    "A10G": 24e9,
    "RTX 4090": 24e9,
    "L40S": 48e9,
    "A100 40GB": 40e9,
    "A100 80GB": 80e9,
    "H100": 80e9,
    "H200": 141e9,
    "B200": 192e9,
}
TENSOR_PARALLEL_SIZES = (1, 2, 4, 8)
_ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class EstimateConfig:
    model: str = option(
        "", "Model directory, or name on the Hugging Face hub. If left out, the bundled model.", positional=True
    )
    revision: str = option("", "Branch, tag or commit of a model on the hub. If left out, main.")
    dtype: str = option(
        "auto",
        "Data type of the KV cache and of weights that are not quantized. auto: the checkpoint's own.",
        choices=("auto", *_ELEMENT_BYTES),
        aliases={"half": "float16", "float": "float32"},
    )
    quantization: str | None = option(
        None, "Quantize weights at load, or the method that the checkpoint must be quantized with. If left out, "
        "weights stay as the checkpoint stores them.", choices=CHOICES, aliases=ALIASES, refusals=REFUSALS, short="-q",
    )  # fmt: skip
    block_size: int = option(16, "KV slots (token positions) per block.", minimum=1, maximum=1024)
    gpu_memory_utilization: float = option(
        0.9,
        "Fraction of a GPU's memory for weights and KV cache; the rest is for activations.",
        minimum=0.01,
        maximum=1.0,
    )
    context: int = option(2048, "Length of a typical sequence, prompt and output, in tokens.", minimum=1)
    json: bool = option(False, "Print JSON.")


@dataclass(frozen=True, slots=True)
class Placement:
    """A number of GPUs of one type that together hold the model. Each GPU is one tensor-parallel rank."""

    gpu: str
    tensor_parallel_size: int
    weight_gb_per_gpu: float
    num_blocks: int
    num_kv_tokens: int
    num_sequences: int  # concurrent sequences of `context` tokens


@dataclass(frozen=True, slots=True)
class Estimate:
    architecture: str
    dtype: str
    quantization: str | None
    num_parameters: int
    weight_gb: float
    kv_bytes_per_token: int
    block_bytes: int
    max_model_len: int
    placements: tuple[Placement, ...]


def estimate(model: ModelConfig, config: EstimateConfig) -> Estimate:
    from services.worker.models import kv_bytes_per_token, num_parameters, weight_bytes

    at_load = resolve_quantization(config.quantization, model.quantization)
    quantization = at_load.name if at_load else model.quantization.method if model.quantization else None
    dtype = model.dtype if config.dtype == "auto" else config.dtype
    element_bytes = _ELEMENT_BYTES.get(dtype, 2)
    weights = weight_bytes(model, element_bytes, at_load)
    return Estimate(
        architecture=model.architecture,
        dtype=dtype,
        quantization=quantization,
        num_parameters=num_parameters(model),
        weight_gb=weights / 1e9,
        kv_bytes_per_token=kv_bytes_per_token(model, element_bytes),
        block_bytes=kv_bytes_per_token(model, element_bytes) * config.block_size,
        max_model_len=model.max_model_len,
        placements=tuple(_placements(model, weights, element_bytes, config)),
    )


def _placements(
    model: ModelConfig, weight_bytes: int, element_bytes: int, config: EstimateConfig
) -> Iterator[Placement]:
    from services.worker.models import kv_bytes_per_token

    context = min(config.context, model.max_model_len)
    for gpu, memory in GPUS.items():
        for ranks in TENSOR_PARALLEL_SIZES:
            if not can_split(model, ranks):
                continue
            weights = weight_bytes / ranks
            block_bytes = kv_bytes_per_token(model, element_bytes, ranks) * config.block_size
            num_blocks = int((memory * config.gpu_memory_utilization - weights) // block_bytes)
            num_tokens = num_blocks * config.block_size
            if num_tokens >= context:
                blocks_per_sequence = -(-context // config.block_size)
                yield Placement(gpu, ranks, weights / 1e9, num_blocks, num_tokens, num_blocks // blocks_per_sequence)


def can_split(model: ModelConfig, ranks: int) -> bool:
    """Returns whether tensor parallelism can split the model evenly: every rank gets the same number of heads and the
    same part of the MLP's intermediate size, and KV heads can be split or copied evenly."""
    return model.network.intermediate_size % ranks == 0 and all(
        heads.num_heads % ranks == 0 and (heads.num_kv_heads % ranks == 0 or ranks % heads.num_kv_heads == 0)
        for heads in set(model.attention)
    )


def find_model(config: EstimateConfig) -> ModelConfig:
    """Returns the model's configuration. Downloads no weights of a model on the hub. Raises ModelError."""
    from services.worker.checkpoint import find_checkpoint
    from services.worker.config import WorkerConfig

    worker = WorkerConfig(model=config.model, revision=config.revision)
    return find_checkpoint(worker, patterns=["config.json", "generation_config.json"]).read_config()


def text(result: Estimate, context: int) -> str:
    lines = [
        f"{result.architecture}: {result.num_parameters / 1e9:.3g} billion parameters, "
        f"{result.weight_gb:.3g} GB in {result.dtype}" + (f" and {result.quantization}" if result.quantization else ""),
        f"KV cache: {result.kv_bytes_per_token:,} bytes per token, {result.block_bytes:,} per block; "
        f"context of at most {result.max_model_len:,} tokens",
        "",
        f"{'GPU':<10} {'ranks':>5} {'weights/GPU':>12} {'blocks':>10} {'KV tokens':>12} {f'× {context:,} tokens':>16}",
    ]
    lines += [
        f"{place.gpu:<10} {place.tensor_parallel_size:>5} {place.weight_gb_per_gpu:>9.1f} GB {place.num_blocks:>10,} "
        f"{place.num_kv_tokens:>12,} {place.num_sequences:>16,}"
        for place in result.placements
    ]
    if not result.placements:
        lines.append("The model does not fit on one, two, four or eight of these GPUs.")
    return "\n".join(lines)


def main(argv: Sequence[str]) -> int:
    from services.worker.errors import ModelError

    config = resolve(
        EstimateConfig,
        argv,
        prog="quire estimate",
        description="Estimates a model's memory, and which GPUs hold it, from its config.json.",
    )
    try:
        model = find_model(config)
        result = estimate(model, config)
    except ModelError as error:
        print(f"quire estimate: {error}", file=sys.stderr)
        return 1
    print(
        json.dumps(asdict(result), indent=2) if config.json else text(result, min(config.context, model.max_model_len))
    )
    return 0
