"""State that all parts share: options, device, clock, ceilings and a worker's engine."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch

from benchmarks.gpu.clock import Clock, DeviceClock, DryClock
from benchmarks.gpu.floors import Floors
from benchmarks.gpu.roofline import Ceilings, measure_ceilings
from benchmarks.gpu.shapes import AT_LOAD, SHAPES, TINY, quantized
from benchmarks.shapes import Shape
from services.worker.config import WorkerConfig
from services.worker.models.config import ModelConfig, read_model_config
from services.worker.ops.interface import AttentionShape, Ops
from services.worker.pages.kv_cache import resolve_kv_cache_dtype
from services.worker.quantization.at_load import resolve_quantization
from services.worker.startup.create_ops import create_ops
from services.worker.startup.gpu import select_gpu
from services.worker.startup.load import LoadedWorker, load_worker
from shared.config import resolve

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
BLOCK_SIZE = 16


@dataclass(frozen=True)
class Bench:
    shape_name: str = "llama-8b"
    dtype_name: str = "bfloat16"
    quantization: str | None = None
    kv_cache_dtype: str = "auto"
    worker_arguments: tuple[str, ...] = ()  # override the benchmark's own arguments
    dry_run: bool = False
    simulated: bool = False  # a dry run on the simulated GPU, which the caller has started

    @property
    def name(self) -> str:
        """Name of the measured configuration, used in file names."""
        kv = "" if self.kv_cache_dtype == "auto" else f"_kv-{self.kv_cache_dtype}"
        return f"{self.shape_name}_{self.quantization or self.dtype_name}{kv}"

    @cached_property
    def device(self) -> torch.device:
        """The device, set up as in a worker, so that kernels measured alone compute as they do in an engine."""
        if self.dry_run and not self.simulated:
            return torch.device("cpu")
        device = torch.device("cuda", 0)
        select_gpu(device)
        return device

    @property
    def on_gpu(self) -> bool:
        """Whether CUDA and its profiler are available."""
        return not self.dry_run

    @cached_property
    def dtype(self) -> torch.dtype:
        return torch.float32 if self.dry_run else _DTYPES[self.dtype_name]

    @cached_property
    def clock(self) -> Clock:
        return DryClock() if self.dry_run else DeviceClock(self.device)

    @cached_property
    def ceilings(self) -> Ceilings:
        """The device's limits. Must be read before any large allocation."""
        return measure_ceilings(self.device, self.clock, dry_run=self.dry_run)

    @cached_property
    def shape(self) -> Shape:
        shape = SHAPES[self.shape_name]
        if self.dry_run:
            # Grammars need a vocabulary at least as large as the tokenizer's.
            shape = replace(TINY, num_layers=1, vocab_size=1008) if self.simulated else TINY
        return quantized(shape, self.quantization)

    @cached_property
    def model(self) -> ModelConfig:
        with tempfile.TemporaryDirectory(prefix="quire-bench-") as folder:
            self.shape.write(Path(folder))
            return read_model_config(Path(folder))

    @cached_property
    def ops(self) -> Ops:
        """Operations for measuring kernels alone."""
        return create_ops(self.device, self.dtype)

    @cached_property
    def kv_dtype(self) -> torch.dtype:
        on_cpu = self.dry_run and not self.simulated
        return resolve_kv_cache_dtype("auto" if on_cpu else self.kv_cache_dtype, self.ops)

    @property
    def attention_shape(self) -> AttentionShape:
        return self.model.attention[0].shape(BLOCK_SIZE, self.dtype, self.kv_dtype)

    @cached_property
    def floors(self) -> Floors:
        method = self.quantization if self.quantization in AT_LOAD else None
        at_load = resolve_quantization(method, self.model.quantization)
        return Floors(self.model, self.ceilings, self.dtype, self.kv_dtype, at_load)

    def arguments(self, folder: Path, max_model_len: int, max_num_seqs: int, max_num_batched_tokens: int) -> list[str]:
        """Writes the model to `folder` and returns the worker's arguments."""
        arguments = [
            *self.shape.write(folder),
            *("--device", str(self.device), "--block-size", str(BLOCK_SIZE)),
            *("--max-model-len", str(max_model_len), "--max-num-seqs", str(max_num_seqs)),
            *("--max-num-batched-tokens", str(max_num_batched_tokens)),
        ]
        if self.quantization is not None:
            arguments += ["--quantization", self.quantization]
        if self.dry_run:
            arguments += ["--dtype", "float32", "--num-gpu-blocks-override", "64", "--num-threads", "1"]
            arguments += ["--kv-cache-dtype", self.kv_cache_dtype] if self.simulated else []
        else:
            arguments += ["--dtype", self.dtype_name, "--kv-cache-dtype", self.kv_cache_dtype]
        return [*arguments, *self.worker_arguments]

    @contextmanager
    def engine(self, max_model_len: int, max_num_seqs: int, max_num_batched_tokens: int) -> Iterator[LoadedWorker]:
        """Starts an engine as a worker does. Measures the ceilings first, because the KV cache takes all remaining
        memory."""
        _ = self.ceilings
        with self.start_engine(max_model_len, max_num_seqs, max_num_batched_tokens) as engine:
            yield engine

    @contextmanager
    def start_engine(
        self, max_model_len: int, max_num_seqs: int, max_num_batched_tokens: int
    ) -> Iterator[LoadedWorker]:
        """Starts an engine without measuring the ceilings first."""
        with tempfile.TemporaryDirectory(prefix="quire-bench-") as folder:
            arguments = self.arguments(Path(folder), max_model_len, max_num_seqs, max_num_batched_tokens)
            config = resolve(WorkerConfig, arguments, prog="benchmarks.gpu", description="The worker's options.")
            yield load_worker(config, lambda _detail, _progress: None)
