"""Puts a worker together: checkpoint, device, weights, KV cache, and the runner over them."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch

from services.worker.batch_state import Limits
from services.worker.checkpoint import find_checkpoint
from services.worker.config import WorkerConfig
from services.worker.errors import ModelError
from services.worker.kv_cache import (
    HostPages,
    allocate_pages,
    count_blocks,
    count_host_blocks,
    resolve_kv_cache_dtype,
    resolve_max_model_len,
)
from services.worker.model_runner import ModelRunner
from services.worker.models.config import ModelConfig
from services.worker.models.decoder import Decoder
from services.worker.models.weights import open_weights
from services.worker.ops import create_ops, fallback_reason
from services.worker.ops.interface import AttentionShape
from services.worker.progress import Report, per_percent
from services.worker.quantization.at_load import resolve_quantization
from services.worker.served_model import ServedModel
from services.worker.speed import Speed, measure_steps, measure_swap
from services.worker.threads import physical_cores

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Engine:
    runner: ModelRunner
    speed: Speed
    model: ServedModel


def load_engine(config: WorkerConfig, report: Report) -> Engine:
    """To be called on the thread that will run the steps, as CPU thread pools belong to the thread that uses them.
    Raises ModelError."""
    report("finding the model", None)
    checkpoint = find_checkpoint(config, per_percent(report, "downloading the model"))
    model = checkpoint.read_config()
    tokenizer = checkpoint.read_tokenizer()
    at_load = resolve_quantization(config.quantization, model.quantization)
    device = resolve_device(config.device)
    dtype = resolve_dtype(config.dtype, model.dtype, device)
    if device.type == "cpu":
        torch.set_num_threads(config.num_threads or physical_cores())
    ops = create_ops(device, dtype)
    kv_dtype = resolve_kv_cache_dtype(config.kv_cache_dtype, ops)
    progress = per_percent(report, "loading weights")
    source = open_weights(checkpoint.path, model, ops, config.load_format, at_load, progress)
    with torch.inference_mode():
        decoder = Decoder(model, ops, source, _longest(config, model))
    shape = AttentionShape(model.num_heads, model.num_kv_heads, model.head_dim, config.block_size, dtype, kv_dtype)
    try:
        ops.prepare_attention(shape, config.max_num_seqs, config.max_num_batched_tokens)
    except ValueError as error:
        raise ModelError(f"attention of this model cannot run on {device}: {error}") from error
    num_blocks = count_blocks(config, model, device, kv_dtype)
    max_model_len = resolve_max_model_len(config, model, num_blocks * config.block_size)
    limits = Limits(
        num_blocks,
        config.block_size,
        config.max_num_seqs,
        config.max_num_batched_tokens,
        max_model_len,
        model.vocab_size,
        count_host_blocks(config, model, kv_dtype),
    )
    with torch.inference_mode():
        pages = allocate_pages(model, num_blocks, config.block_size, device, kv_dtype)
        host_pages = HostPages(pages, limits.num_host_blocks)
        swap_seconds = measure_swap(host_pages, num_blocks, device)
    runner = ModelRunner(decoder, ops, pages, limits, host_pages)
    report("measuring a step", None)
    speed = Speed(swap_seconds, *measure_steps(runner))
    dtype_name = str(dtype).removeprefix("torch.")
    logger.info(
        "serving %s on %s in %s: %d KV blocks of %d tokens (%d tokens), at most %d per sequence; %s",
        checkpoint.names[0], device, dtype_name, num_blocks, config.block_size, num_blocks * config.block_size,
        max_model_len, describe_numerics(device, dtype),
    )  # fmt: skip
    return Engine(
        runner,
        speed,
        ServedModel(checkpoint.names, model, max_model_len, dtype_name, tokenizer),
    )


def resolve_device(name: str) -> torch.device:
    """Raises ModelError for a device that is not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, _, index = name.partition(":")
    if kind not in ("cpu", "cuda") or (index and not index.isdigit()):
        raise ModelError(f"--device is {name!r}: use auto, cpu, cuda or cuda:N")
    if kind == "cuda" and int(index or 0) >= torch.cuda.device_count():
        raise ModelError(f"--device is {name}, but torch sees {torch.cuda.device_count()} CUDA devices here")
    return torch.device(name)


def resolve_dtype(name: str, checkpoint_dtype: str, device: torch.device) -> torch.dtype:
    """Raises ModelError for a type that the device does not compute in."""
    dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if device.type == "cpu":
        if name not in ("auto", "float32"):
            raise ModelError(f"--dtype is {name}, but on a CPU Quire computes in float32 only")
        return torch.float32
    return dtypes.get(checkpoint_dtype if name == "auto" else name, torch.bfloat16)


def describe_numerics(device: torch.device, dtype: torch.dtype) -> str:
    """For the log: which operations run, and whether a sequence's tokens depend on what shares its batch."""
    reason = fallback_reason(device, dtype)
    if reason is not None:
        return reason
    if device.type == "cuda":
        return "Triton kernels; a sequence's tokens may depend on what shares its batch"
    threads = torch.get_num_threads()
    return f"compiled kernels on {threads} threads, batch-invariant: the same tokens whatever shares a batch"


def _longest(config: WorkerConfig, model: ModelConfig) -> int:
    """Positions that RoPE tables are made for, before the KV cache has its say."""
    return min(config.max_model_len or model.max_model_len, model.max_model_len)
