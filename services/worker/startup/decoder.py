"""Starts a decoder: loads weights, sizes the KV cache, builds the runner, warms it up and measures swapping."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from services.worker.checkpoint import check_max_model_len
from services.worker.config import WorkerConfig
from services.worker.errors import ModelError, PinningError
from services.worker.models import Decoder, ModelConfig, weight_bytes
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
    default_cpu_budget,
    require_memory,
    resolve_kv_cache_dtype,
    resolve_max_model_len,
)
from services.worker.plan import Limits
from services.worker.pooling import PoolingKind
from services.worker.progress import Phase, per_percent
from services.worker.quantization import COMPUTED, resolve_quantization
from services.worker.startup.device_memory import CudaMemory, measure_needs, out_of_memory_explained, require_asked
from services.worker.startup.model_start import Setting, check_classifier_pooling
from services.worker.startup.runners import create_decoder_runner
from services.worker.startup.speed import GenerationProbe, Probe, measure_swap
from services.worker.startup.step_size import resolve_step_tokens
from services.worker.startup.warm_up import warm_up
from services.worker.step import GraphRecorder, ModelRunner
from services.worker.weights import KVScales, load_decoder, open_weights, read_kv_scales
from shared.host_memory import GIB

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DecoderStart:
    """See `ModelStart`."""

    model: ModelConfig
    probe: ClassVar[Probe] = GenerationProbe()
    default_pooling: ClassVar[PoolingKind] = PoolingKind.LAST

    def check_pooling(self, kind: PoolingKind) -> None:
        """See `ModelStart`."""
        if self.model.classifier is not None:
            check_classifier_pooling(kind, self.default_pooling)
        if kind is PoolingKind.CLS:
            raise ModelError(
                "a decoder cannot pool its first token, which sees no other: use --pooling-type last or mean"
            )

    def load(self, setting: Setting) -> tuple[ModelRunner, float]:
        """See `ModelStart`."""
        config, path, ops, swap, model = setting.config, setting.path, setting.device.ops, setting.swap, self.model
        device, dtype = ops.device, ops.dtype
        at_load = resolve_quantization(config.quantization, model.quantization)
        kv_dtype = resolve_kv_cache_dtype(config.kv_cache_dtype, ops)
        scales = read_kv_scales(path, model, config.load_format) if kv_dtype is torch.float8_e4m3fn else None
        check_max_model_len(config, model)
        asked = asked_bytes(config, model, kv_dtype)
        require_asked(device, asked, swap.asked)
        progress = per_percent(setting.report, Phase.LOAD)
        source = open_weights(path, model, ops, config.load_format, at_load, progress)
        num_blocks = None
        if device.type == "cpu":
            share = config.host_memory_bytes
            # `quire serve` has compared the weights of several models with the memory.
            num_loads = config.workers_on_host if share is None else 1
            # Memory is checked after open_weights, which compares config.json with the checkpoint: if config.json has a
            # wrong size, the error of open_weights names it. An error about memory would not.
            num_weight_bytes = weight_bytes(model, dtype.itemsize, at_load, COMPUTED[device.type])
            require_memory(num_weight_bytes, f"the weights of {path}", num_loads)
            # The blocks are counted only once, before the weights are loaded. A second count after loading might give
            # fewer blocks than a sequence of `longest` tokens needs.
            num_blocks = count_blocks(
                config,
                model,
                kv_dtype,
                lambda: default_cpu_budget(num_weight_bytes, swap, config.workers_on_host, share),
            )
        longest = _longest(config, model, kv_dtype, device, num_blocks)
        step_tokens = resolve_step_tokens(config, longest)
        shapes = {heads.shape(config.block_size, dtype, kv_dtype) for heads in model.attention}
        with out_of_memory_explained("attention", device):
            try:
                ops.prepare_attention(shapes, config.max_num_seqs, step_tokens)
            except ValueError as error:
                raise ModelError(f"attention of this model cannot run on {device}: {error}") from error
        with (
            torch.inference_mode(),
            out_of_memory_explained("the weights", device, "quantize them with --quantization"),
        ):
            decoder = load_decoder(model, ops, source, longest)
        builder = _RunnerBuilder(setting, step_tokens, decoder, kv_dtype, scales)
        if num_blocks is None:
            measured = Budget(_measure_memory(builder, longest), f"raise --gpu-memory-utilization, {LESS_MEMORY}")
            num_blocks = count_blocks(config, model, kv_dtype, lambda: measured)
        max_model_len = min(longest, resolve_max_model_len(config, model, num_blocks * config.block_size))
        with out_of_memory_explained("the KV cache", device, "lower --gpu-memory-utilization or what sets its size"):
            # The second check: since the first one, the weights have taken part of the available memory.
            require_asked(device, asked, swap.asked)
            runner, copies = _build_with_swap(builder, num_blocks, max_model_len, swap)
        with torch.inference_mode():
            swap_seconds = measure_swap(copies, num_blocks, device)
        if device.type == "cuda":
            _prepare_steps(runner, setting)
        return runner, swap_seconds

    def describe_capacity(self, limits: Limits) -> str:
        """See `ModelStart`."""
        num_tokens = limits.num_blocks * limits.block_size
        return f"{limits.num_blocks} KV blocks of {limits.block_size} tokens ({num_tokens} tokens)"


def _build_with_swap(
    builder: _RunnerBuilder, num_blocks: int, max_model_len: int, swap: SwapSpace
) -> tuple[ModelRunner, PageCopies]:
    """Builds the runner. If the host cannot pin the swap space, builds the runner without swap space, or raises
    PinningError if --swap-space was set."""
    num_host_blocks = count_host_blocks(swap, builder.setting.config, builder.model, builder.kv_dtype)
    try:
        return builder.build(num_blocks, max_model_len, num_host_blocks)
    except PinningError as error:
        if swap.option is not None:
            raise
        logger.warning("%s; the worker continues without swap space, as with --swap-space 0", str(error))
    # Build after the except block: inside the block, the handled error would keep the failed attempt's pages alive.
    return builder.build(num_blocks, max_model_len, 0)


@dataclass(frozen=True, slots=True)
class _RunnerBuilder:
    """Builds runners that share one decoder's weights. Each runner has its own KV cache pages."""

    setting: Setting
    step_tokens: int
    decoder: Decoder
    kv_dtype: torch.dtype
    kv_scales: Sequence[KVScales] | None

    @property
    def model(self) -> ModelConfig:
        return self.decoder.config

    def build(self, num_blocks: int, max_model_len: int, num_host_blocks: int) -> tuple[ModelRunner, PageCopies]:
        setting, model = self.setting, self.model
        config, device = setting.config, setting.device.ops.device
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
            copies = setting.device.create_page_copies(pages, num_host_blocks)
            runner = create_decoder_runner(
                self.decoder, setting.device, pages, limits, copies, setting.grammars, setting.pooling
            )
            return runner, copies


def _measure_memory(builder: _RunnerBuilder, longest: int) -> int:
    """Runs the largest step, and returns the bytes that --gpu-memory-utilization leaves for the KV cache of a GPU. The
    result is negative if everything but the KV cache already exceeds --gpu-memory-utilization. Raises ModelError if the
    step does not fit into the GPU's memory."""
    setting = builder.setting
    config, report, device = setting.config, setting.report, setting.device.ops.device
    report(Phase.MEASURE_MEMORY, None)
    recorder = GraphRecorder(device) if _graphs(setting) else None
    memory = CudaMemory(device)
    with out_of_memory_explained("a step", device):
        needs = measure_needs(lambda: builder.build(1, longest, 0)[0], memory, recorder)
    left = needs.left_of(memory.total(), config.gpu_memory_utilization)
    sentence = f"of {device}'s {memory.total() / GIB:.1f} GiB, {needs}; {max(0, left) / GIB:.2f} GiB left for KV blocks"
    sentence += f" (--gpu-memory-utilization {config.gpu_memory_utilization:g})"
    logger.info("%s", sentence)
    report(sentence, None)
    return left


def _prepare_steps(runner: ModelRunner, setting: Setting) -> None:
    """Warms up and records graphs, so that nothing is compiled, loaded or recorded while serving."""
    report, device = setting.report, setting.device.ops.device
    report(Phase.WARM_UP, None)
    with out_of_memory_explained("a step", device, f"lower --gpu-memory-utilization, {LESS_MEMORY}"):
        warm_up(runner)
    if not _graphs(setting):
        return
    memory, start = CudaMemory(device), time.monotonic()
    before = memory.used()
    buckets = runner.graph_buckets
    report(Phase.RECORD, None)
    with out_of_memory_explained("CUDA graphs", device, "lower --gpu-memory-utilization, or set --enforce-eager"):
        runner.record_graphs(GraphRecorder(device), buckets)
    sentence = f"recorded {len(buckets)} CUDA graphs for 1 to {buckets[-1]} sequences"
    sentence += f" in {time.monotonic() - start:.1f} s and {(memory.used() - before) / GIB:.2f} GiB"
    logger.info("%s", sentence)
    report(sentence, None)


def _graphs(setting: Setting) -> bool:
    return setting.device.records_graphs and not setting.config.enforce_eager


def _longest(
    config: WorkerConfig, model: ModelConfig, kv_dtype: torch.dtype, device: torch.device, num_blocks: int | None
) -> int:
    """Returns the maximum number of tokens of a sequence: the smallest of the model's limit, the configured limit and
    the capacity of a KV cache of `num_blocks`. If `num_blocks` is None, the size of a GPU's KV cache is not known yet,
    and the function assumes that the cache fills the GPU's memory. Raises ModelError if the configured length does not
    fit into `num_blocks`."""
    if num_blocks is not None:
        return resolve_max_model_len(config, model, num_blocks * config.block_size)
    longest = config.longest(model.max_model_len)
    most = CudaMemory(device).total() // block_bytes(model, config.block_size, kv_dtype) * config.block_size
    return min(longest, max(most, config.block_size))
