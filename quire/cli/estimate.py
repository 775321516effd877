"""`quire estimate MODEL`: how much memory a model needs and which GPUs have enough, computed from its config.json."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from services.worker.implementations import IMPLEMENTATIONS
from services.worker.quantization import ALIASES, CHOICES, COMPUTED, REFUSALS, AtLoad, resolve_quantization
from shared.config import option, resolve

if TYPE_CHECKING:
    from services.worker.models import EncoderConfig, ModelConfig

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
_CPU_ELEMENT_BYTES = 4  # CPUs compute in float32


@dataclass(frozen=True, slots=True)
class EstimateConfig:
    model: str = option(
        "", "Model directory, or name on the Hugging Face hub. If left out, the bundled model.", positional=True
    )
    revision: str = option("", "Branch, tag or commit of a model on the hub. If left out, main.")
    model_impl: str = option(
        "auto",
        "Code of the model's forward pass, as for quire serve. transformers also estimates types that are not proven "
        "exact.",
        choices=IMPLEMENTATIONS,
        aliases={"vllm": "native"},
    )
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
    num_blocks: int  # 0 for an encoder, which has no KV cache
    num_kv_tokens: int
    num_sequences: int  # concurrent sequences of `context` tokens


@dataclass(frozen=True, slots=True)
class Estimate:
    architecture: str
    runs_with: str  # whose code computes the forward pass, and what of the model is left out
    dtype: str
    quantization: str | None
    num_parameters: int
    num_active_parameters: int  # that a token's forward pass takes; fewer than all in mixtures of experts
    weight_gb: float  # on a GPU
    cpu_weight_gb: float | None  # None if CPUs do not compute with what --quantization names, and the worker refuses it
    kv_bytes_per_token: int  # on a GPU
    cpu_kv_bytes_per_token: int
    block_bytes: int
    max_model_len: int
    notes: tuple[str, ...]
    placements: tuple[Placement, ...]


def estimate(model: ModelConfig | EncoderConfig, config: EstimateConfig) -> Estimate:
    from services.worker.models import num_active_parameters, num_parameters, weight_bytes

    at_load = resolve_quantization(config.quantization, model.quantization)
    dtype = model.dtype if config.dtype == "auto" else config.dtype
    dtype = dtype if dtype in _ELEMENT_BYTES else "bfloat16"
    element_bytes = _ELEMENT_BYTES[dtype]
    weights = weight_bytes(model, element_bytes, at_load, COMPUTED["cuda"])
    on_cpu = None
    if at_load is None or at_load.kind in COMPUTED["cpu"].matrices:
        on_cpu = weight_bytes(model, _CPU_ELEMENT_BYTES, at_load, COMPUTED["cpu"]) / 1e9
    return Estimate(
        architecture=model.architecture,
        runs_with=model.runs_with,
        dtype=dtype,
        quantization=at_load.name if at_load else model.quantization.method if model.quantization else None,
        num_parameters=num_parameters(model),
        num_active_parameters=num_active_parameters(model),
        weight_gb=weights / 1e9,
        cpu_weight_gb=on_cpu,
        kv_bytes_per_token=_kv_bytes(model, element_bytes),
        cpu_kv_bytes_per_token=_kv_bytes(model, _CPU_ELEMENT_BYTES),
        block_bytes=_kv_bytes(model, element_bytes) * config.block_size,
        max_model_len=model.max_model_len,
        notes=tuple(_notes(model, at_load, element_bytes)),
        placements=tuple(_placements(model, weights, element_bytes, config)),
    )


def _kv_bytes(model: ModelConfig | EncoderConfig, element_bytes: int, ranks: int = 1) -> int:
    from services.worker.models import ModelConfig, kv_bytes_per_token

    return kv_bytes_per_token(model, element_bytes, ranks) if isinstance(model, ModelConfig) else 0


def _notes(model: ModelConfig | EncoderConfig, at_load: AtLoad | None, element_bytes: int) -> Iterator[str]:
    from services.worker.models import weight_bytes

    for device, size in (("cuda", element_bytes), ("cpu", _CPU_ELEMENT_BYTES)):
        if at_load is None and weight_bytes(model, size, None, COMPUTED[device]) > weight_bytes(model, size):
            name = {"cuda": "GPUs", "cpu": "CPUs"}[device]
            yield f"{name} do not compute with all of the quantized weights: those are turned into floats at load."
    if at_load is not None and at_load.kind not in COMPUTED["cpu"].matrices:
        yield f"CPUs do not compute with --quantization {at_load.name}."
    if at_load is not None and model.declaration.of_experts:
        yield "GPUs compute experts with floats: --quantization leaves them as they are there."


def _placements(
    model: ModelConfig | EncoderConfig, weight_bytes: int, element_bytes: int, config: EstimateConfig
) -> Iterator[Placement]:
    context = min(config.context, model.max_model_len)
    for gpu, memory in GPUS.items():
        for ranks in TENSOR_PARALLEL_SIZES:
            if not can_split(model, ranks):
                continue
            weights = weight_bytes / ranks
            left = memory * config.gpu_memory_utilization - weights
            block_bytes = _kv_bytes(model, element_bytes, ranks) * config.block_size
            if not block_bytes:
                if left >= 0:
                    yield Placement(gpu, ranks, weights / 1e9, 0, 0, 0)
                continue
            num_blocks = int(left // block_bytes)
            num_tokens = num_blocks * config.block_size
            if num_tokens >= context:
                blocks_per_sequence = -(-context // config.block_size)
                yield Placement(gpu, ranks, weights / 1e9, num_blocks, num_tokens, num_blocks // blocks_per_sequence)


def can_split(model: ModelConfig | EncoderConfig, ranks: int) -> bool:
    """Returns whether tensor parallelism can split the model evenly: every rank gets the same number of heads and the
    same part of the MLP's intermediate size, and KV heads can be split or copied evenly. Encoders are not split."""
    if model.is_encoder:
        return ranks == 1
    return model.network.intermediate_size % ranks == 0 and all(
        heads.num_heads % ranks == 0 and (heads.num_kv_heads % ranks == 0 or ranks % heads.num_kv_heads == 0)
        for heads in set(model.declaration.attention)
    )


def find_model(config: EstimateConfig) -> ModelConfig | EncoderConfig:
    """Returns the model's configuration. Downloads no weights of a model on the hub. Raises ModelError."""
    from services.worker.checkpoint import CONFIG_FILES, find_checkpoint
    from services.worker.config import WorkerConfig

    worker = WorkerConfig(model=config.model, revision=config.revision, model_impl=config.model_impl)
    checkpoint = find_checkpoint(worker, patterns=CONFIG_FILES)
    return checkpoint.read_encoder_config() or checkpoint.read_config()


def text(result: Estimate, context: int) -> str:
    size = f"{_number(result.num_parameters / 1e9)} billion parameters"
    if result.num_active_parameters < result.num_parameters:
        size += f" ({_number(result.num_active_parameters / 1e9)} billion active per token)"
    kind = result.dtype + (f" and {result.quantization}" if result.quantization else "")
    lines = [f"{result.architecture}: {size}, {_number(result.weight_gb)} GB in {kind}"]
    lines.append(f"It runs with {result.runs_with}.")
    limit = f"context of at most {result.max_model_len:,} tokens"
    if result.block_bytes:
        lines.append(
            f"KV cache: {result.kv_bytes_per_token:,} bytes per token, {result.block_bytes:,} per block; {limit}"
        )
    else:
        lines.append(f"An encoder has no KV cache; {limit}")
    if result.cpu_weight_gb is not None:
        lines.append(f"On a CPU, in float32: {_number(result.cpu_weight_gb)} GB of weights" + _cpu_cache(result))
    lines += [*result.notes, ""]
    columns = ["blocks", "KV tokens", f"× {context:,} tokens"] if result.block_bytes else []
    lines.append(_row("GPU", "ranks", "weights/GPU", *columns))
    for place in result.placements:
        numbers = [f"{n:,}" for n in (place.num_blocks, place.num_kv_tokens, place.num_sequences)]
        weights = f"{place.weight_gb_per_gpu:.1f} GB"
        lines.append(_row(place.gpu, f"{place.tensor_parallel_size}", weights, *(numbers if columns else ())))
    if not result.placements:
        lines.append("The model does not fit on one, two, four or eight of these GPUs.")
    return "\n".join(lines)


def _number(value: float) -> str:
    """Returns a number with three digits or more."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _cpu_cache(result: Estimate) -> str:
    return f", {result.cpu_kv_bytes_per_token:,} bytes of KV cache per token" if result.block_bytes else ""


def _row(gpu: str, ranks: str, weights: str, *numbers: str) -> str:
    row = f"{gpu:<10} {ranks:>5} {weights:>12}"
    return row + "".join(f" {number:>{width}}" for number, width in zip(numbers, (10, 12, 16), strict=False))


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
