"""Puts a worker together: checkpoint, device, weights, KV cache, and the runner over them."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from services.worker.architectures import EncoderConfig, ModelConfig, weight_bytes
from services.worker.checkpoint import ServedModel, check_max_model_len, find_checkpoint
from services.worker.config import WorkerConfig
from services.worker.errors import ModelError, PinningError
from services.worker.models import Decoder, KVScales, open_weights, read_kv_scales
from services.worker.ops import AttentionShape, Ops, create_ops, fallback_reason, find_gpu, select_gpu
from services.worker.pages import (
    LESS_MEMORY,
    Budget,
    PageCopies,
    SwapSpace,
    allocate_pages,
    asked_bytes,
    block_bytes,
    count_blocks,
    count_host_blocks,
    create_page_copies,
    default_cpu_budget,
    require_memory,
    resolve_kv_cache_dtype,
    resolve_max_model_len,
    resolve_swap_space,
)
from services.worker.plan import Limits
from services.worker.pooling import PoolingConfig, PoolingKind
from services.worker.progress import Progress, Report, per_percent
from services.worker.quantization import resolve_quantization
from services.worker.sampling import Grammars
from services.worker.startup.cpu_threads import physical_cores
from services.worker.startup.device_memory import GIB, CudaMemory, measure_needs, out_of_memory_explained, require_asked
from services.worker.startup.encoder_engine import load_encoder
from services.worker.startup.speed import Speed, measure_steps, measure_swap
from services.worker.startup.step_size import resolve_step_tokens
from services.worker.startup.warm_up import warm_up
from services.worker.step import GraphRecorder, ModelRunner, create_device_check

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Engine:
    runner: ModelRunner
    grammars: Grammars
    speed: Speed
    model: ServedModel
    fallback: str | None  # why it runs without the device's own kernels, and what that costs; None if it does not


def load_engine(config: WorkerConfig, report: Report, device: torch.device | None = None) -> Engine:
    """To be called on the thread that will run the steps, as CPU thread pools belong to the thread that uses them.
    `device`: of `resolve_device`, if the caller has asked it.
    Raises ModelError, and DeviceLostError if the device is lost meanwhile."""
    device = resolve_device(config.device) if device is None else device
    # Before a model is downloaded or loaded, as both take minutes.
    swap = resolve_swap_space(config.swap_space, device.type)
    try:
        return _load(config, report, device, swap)
    except Exception as error:
        # An error of CUDA's may mean that the device answers no call any more.
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            create_device_check(device).after(error)
        raise


def _load(config: WorkerConfig, report: Report, device: torch.device, swap: SwapSpace) -> Engine:
    report("finding the model", None)
    checkpoint = find_checkpoint(config, per_percent(report, "downloading the model"))
    encoder = checkpoint.read_encoder_config()
    model = checkpoint.read_config() if encoder is None else encoder
    pooling = checkpoint.read_pooling(config.pooling_type, PoolingKind.LAST if encoder is None else PoolingKind.CLS)
    if pooling.kind is PoolingKind.CLS and encoder is None:
        raise ModelError("the first token of a decoder has seen no other: pool by the last or the mean")
    tokenizer = checkpoint.read_tokenizer()
    dtype = resolve_dtype(config.dtype, model.dtype, device)
    if device.type == "cpu":
        torch.set_num_threads(config.num_threads or physical_cores())
    else:
        select_gpu(device)
    ops = create_ops(device, dtype, batch_invariant=config.batch_invariant)
    reason = fallback_reason(device, dtype)
    if reason is not None:
        logger.warning("%s", reason)
    if config.batch_invariant and not ops.batch_invariant:
        raise ModelError(f"--batch-invariant is set, but {reason}")
    grammars = Grammars(tokenizer.tokenizer_json, model.vocab_size, model.eos_token_ids)
    progress = per_percent(report, "loading weights")
    if isinstance(model, EncoderConfig):
        runner, swap_seconds = load_encoder(config, checkpoint.path, model, pooling, ops, progress), 0.0
    else:
        runner, swap_seconds = _load_decoder(
            config, checkpoint.path, model, pooling, grammars, ops, swap, report, progress
        )
    report("measuring a step", None)
    speed = Speed(swap_seconds, *measure_steps(runner))
    dtype_name, limits = str(dtype).removeprefix("torch."), runner.limits
    capacity = (
        f"{limits.num_blocks} KV blocks of {limits.block_size} tokens ({limits.num_blocks * limits.block_size} tokens)"
    )
    logger.info(
        "serving %s on %s in %s: %s, at most %d per sequence; %s",
        checkpoint.names[0], device, dtype_name, capacity if runner.generates else "an encoder, without KV cache",
        limits.max_model_len, describe_numerics(ops, reason),
    )  # fmt: skip
    return Engine(
        runner,
        grammars,
        speed,
        ServedModel(checkpoint.names, model, limits.max_model_len, dtype_name, tokenizer, pooling),
        reason,
    )


def _load_decoder(
    config: WorkerConfig, path: Path, model: ModelConfig, pooling: PoolingConfig, grammars: Grammars, ops: Ops,
    swap: SwapSpace, report: Report, progress: Progress,
) -> tuple[ModelRunner, float]:  # fmt: skip
    """The runner, and the seconds that copying a block to the host takes. Raises ModelError."""
    device, dtype = ops.device, ops.dtype
    at_load = resolve_quantization(config.quantization, model.quantization)
    kv_dtype = resolve_kv_cache_dtype(config.kv_cache_dtype, ops)
    scales = read_kv_scales(path, model, config.load_format) if kv_dtype is torch.float8_e4m3fn else None
    check_max_model_len(config, model)
    asked = asked_bytes(config, model, kv_dtype)
    require_asked(device, asked, swap.asked)
    source = open_weights(path, model, ops, config.load_format, at_load, progress)
    num_blocks = None
    if device.type == "cpu":
        # After the checkpoint's own tensors were compared with config.json, which says more about a wrong number.
        num_weight_bytes = weight_bytes(model, dtype.itemsize, at_load)
        require_memory(num_weight_bytes, f"the weights of {path}")
        # Once and for all: a length that fits now must fit when the weights have been read.
        num_blocks = count_blocks(config, model, kv_dtype, lambda: default_cpu_budget(num_weight_bytes, swap))
    longest = _longest(config, model, kv_dtype, device, num_blocks)
    with torch.inference_mode(), out_of_memory_explained("the weights", device, "quantize them with --quantization"):
        decoder = Decoder(model, ops, source, longest)
    step_tokens = resolve_step_tokens(config, longest)
    shape = AttentionShape(model.num_heads, model.num_kv_heads, model.head_dim, config.block_size, dtype, kv_dtype)
    with out_of_memory_explained("attention", device):
        try:
            ops.prepare_attention(shape, config.max_num_seqs, step_tokens)
        except ValueError as error:
            raise ModelError(f"attention of this model cannot run on {device}: {error}") from error
    builder = _RunnerBuilder(config, step_tokens, model, decoder, ops, kv_dtype, scales, grammars, pooling)
    if num_blocks is None:
        measured = Budget(
            _measure_memory(builder, longest, device, report), f"raise --gpu-memory-utilization, {LESS_MEMORY}"
        )
        num_blocks = count_blocks(config, model, kv_dtype, lambda: measured)
    max_model_len = min(longest, resolve_max_model_len(config, model, num_blocks * config.block_size))
    with out_of_memory_explained("the KV cache", device, "lower --gpu-memory-utilization or what sets its size"):
        require_asked(device, asked, swap.asked)  # now that the weights are there, which lie in the same memory
        runner, copies = _build_with_swap(builder, num_blocks, max_model_len, swap)
    with torch.inference_mode():
        swap_seconds = measure_swap(copies, num_blocks, device)
    if device.type == "cuda":
        _prepare_steps(runner, config, device, report)
    return runner, swap_seconds


def _build_with_swap(
    builder: _RunnerBuilder, num_blocks: int, max_model_len: int, swap: SwapSpace
) -> tuple[ModelRunner, PageCopies]:
    """Without swap space where the host cannot pin any and the start has not asked for it. Raises PinningError where it
    has."""
    num_host_blocks = count_host_blocks(swap, builder.config, builder.model, builder.kv_dtype)
    try:
        return builder.build(num_blocks, max_model_len, num_host_blocks)
    except PinningError as error:
        if swap.option is not None:
            raise
        logger.warning("%s, or set it to 0; the worker goes on without swap space", str(error))
    # Not while the error is being handled: it keeps the pages of the failed attempt alive.
    return builder.build(num_blocks, max_model_len, 0)


def resolve_device(name: str) -> torch.device:
    """Returns a GPU with its index, as `torch.cuda.set_device` refuses one without: "cuda" is "cuda:0". "auto" is the
    first GPU that Quire runs on, or the CPU.
    Raises ModelError for a device that is not there."""
    if name == "auto":
        gpu, reason = find_gpu()
        if reason is not None:
            logger.warning("%s: running on the CPU", reason)
        return torch.device("cpu") if gpu is None else gpu
    kind, colon, index = name.partition(":")
    if kind not in ("cpu", "cuda") or (colon and not (index.isascii() and index.isdigit())):
        raise ModelError(f"--device is {name!r}: use auto, cpu, cuda or cuda:N")
    if kind == "cpu":
        return torch.device("cpu")
    number = int(index or 0)
    if number >= torch.cuda.device_count():
        raise ModelError(f"--device is {name}, but torch sees {torch.cuda.device_count()} CUDA devices here")
    return torch.device("cuda", number)


def resolve_dtype(name: str, checkpoint_dtype: str, device: torch.device) -> torch.dtype:
    """Raises ModelError for a type that the device does not compute in."""
    dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if device.type == "cpu":
        if name not in ("auto", "float32"):
            raise ModelError(f"--dtype is {name}, but on a CPU Quire computes in float32 only")
        return torch.float32
    return dtypes.get(checkpoint_dtype if name == "auto" else name, torch.bfloat16)


def describe_numerics(ops: Ops, reason: str | None) -> str:
    """For the log: which operations run, and whether a sequence's tokens depend on what shares its batch. `reason`: why
    they are not the device's own."""
    if reason is not None:
        return reason
    if ops.device.type == "cuda" and ops.batch_invariant:
        return (
            "Triton kernels, batch-invariant: the same tokens whatever shares a batch, at the price of matrix products "
            "in one tile shape and of decodes that are not split over the device"
        )
    if ops.device.type == "cuda":
        return "Triton kernels; a sequence's tokens may depend on what shares its batch"
    threads = torch.get_num_threads()
    return f"compiled kernels on {threads} threads, batch-invariant: the same tokens whatever shares a batch"


@dataclass(frozen=True, slots=True)
class _RunnerBuilder:
    """Runners over one decoder's weights and pages of their own."""

    config: WorkerConfig
    step_tokens: int
    model: ModelConfig
    decoder: Decoder
    ops: Ops
    kv_dtype: torch.dtype
    kv_scales: Sequence[KVScales] | None
    grammars: Grammars
    pooling: PoolingConfig

    def build(self, num_blocks: int, max_model_len: int, num_host_blocks: int) -> tuple[ModelRunner, PageCopies]:
        config, model, device = self.config, self.model, self.ops.device
        limits = Limits(
            num_blocks,
            config.block_size,
            config.max_num_seqs,
            self.step_tokens,
            max_model_len,
            model.vocab_size,
            num_host_blocks,
        )
        with torch.inference_mode():
            pages = allocate_pages(model, num_blocks, config.block_size, device, self.kv_dtype, self.kv_scales)
            copies = create_page_copies(self.ops, pages, num_host_blocks)
            runner = ModelRunner(self.decoder, self.ops, pages, limits, copies, self.grammars, self.pooling)
            return runner, copies


def _measure_memory(builder: _RunnerBuilder, longest: int, device: torch.device, report: Report) -> int:
    """Bytes that a GPU has left for the KV cache. Raises ModelError if it has not even enough for a step."""
    report("measuring the memory of a step", None)
    config = builder.config
    recorder = GraphRecorder(device) if _graphs(config, builder.ops) else None
    memory = CudaMemory(device)
    with out_of_memory_explained("a step", device):
        needs = measure_needs(lambda: builder.build(1, longest, 0)[0], memory, recorder)
    left = needs.left_of(memory.total(), config.gpu_memory_utilization)
    sentence = f"of {device}'s {memory.total() / GIB:.1f} GiB, {needs}; {max(0, left) / GIB:.2f} GiB left for KV blocks"
    sentence += f" (--gpu-memory-utilization {config.gpu_memory_utilization:g})"
    logger.info("%s", sentence)
    report(sentence, None)
    return left


def _prepare_steps(runner: ModelRunner, config: WorkerConfig, device: torch.device, report: Report) -> None:
    """Nothing is compiled, loaded or recorded while serving."""
    report("warming up", None)
    with out_of_memory_explained("a step", device, f"lower --gpu-memory-utilization, {LESS_MEMORY}"):
        warm_up(runner)
    if not _graphs(config, runner.ops):
        return
    memory, start = CudaMemory(device), time.monotonic()
    before = memory.used()
    buckets = runner.graph_buckets
    report("recording graphs", None)
    with out_of_memory_explained("CUDA graphs", device, "lower --gpu-memory-utilization, or set --enforce-eager"):
        runner.record_graphs(GraphRecorder(device), buckets)
    sentence = f"recorded {len(buckets)} CUDA graphs for 1 to {buckets[-1]} sequences"
    sentence += f" in {time.monotonic() - start:.1f} s and {(memory.used() - before) / GIB:.2f} GiB"
    logger.info("%s", sentence)
    report(sentence, None)


def _graphs(config: WorkerConfig, ops: Ops) -> bool:
    return ops.name == "triton" and not config.enforce_eager


def _longest(
    config: WorkerConfig, model: ModelConfig, kv_dtype: torch.dtype, device: torch.device, num_blocks: int | None
) -> int:
    """Tokens of the longest sequence: as the model takes and as configured, and no more than the KV cache of
    `num_blocks` can hold. None: a GPU's is measured later, and all of its memory is the bound until then. Raises
    ModelError where the configured length does not fit."""
    if num_blocks is not None:
        return resolve_max_model_len(config, model, num_blocks * config.block_size)
    longest = min(config.max_model_len or model.max_model_len, model.max_model_len)
    most = CudaMemory(device).total() // block_bytes(model, config.block_size, kv_dtype) * config.block_size
    return min(longest, max(most, config.block_size))
