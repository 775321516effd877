"""Builds a worker from its options: finds the checkpoint, selects the device, loads the model, measures a step."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch

from services.worker.checkpoint import ModelFacts, find_checkpoint
from services.worker.config import WorkerConfig
from services.worker.errors import ModelError
from services.worker.ops import Ops
from services.worker.pages import SwapSpace, resolve_swap_space
from services.worker.pooling import EmbeddingPrompts
from services.worker.progress import Phase, Report, per_percent
from services.worker.sampling import Grammars
from services.worker.startup.create_ops import create_ops, fallback_reason
from services.worker.startup.decoder import DecoderStart
from services.worker.startup.device import compose_device
from services.worker.startup.encoder import EncoderStart
from services.worker.startup.gpu import find_gpu, select_gpu
from services.worker.startup.model_start import ModelStart, Setting
from services.worker.startup.speed import Speed, measure_steps
from services.worker.step import ModelRunner, create_device_check
from shared.host_cores import physical_cores

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedWorker:
    runner: ModelRunner
    grammars: Grammars
    speed: Speed
    model: ModelFacts
    # Why the worker runs without the device's own kernels, and what that costs; None if it runs with them.
    fallback: str | None


def load_worker(config: WorkerConfig, report: Report, device: torch.device | None = None) -> LoadedWorker:
    """Builds the worker. Call it on the thread that will run the steps, because CPU thread pools belong to the thread
    that uses them.
    `device`: the result of `resolve_device`, if the caller has it already.
    Raises ModelError, or DeviceLostError if the device is lost during the call."""
    device = resolve_device(config.device) if device is None else device
    # Check the swap space first, so that an error appears before the minutes that a model takes to download and load.
    swap = resolve_swap_space(config.swap_space, device.type, config.workers_on_host)
    try:
        return _load(config, report, device, swap)
    except Exception as error:
        # If `error` is a CUDA error after which the device cannot be used, `after` raises DeviceLostError.
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch does not type it
            create_device_check(device).after(error)
        raise


def _load(config: WorkerConfig, report: Report, device: torch.device, swap: SwapSpace) -> LoadedWorker:
    report(Phase.FIND, None)
    checkpoint = find_checkpoint(config, per_percent(report, Phase.DOWNLOAD))
    encoder = checkpoint.read_encoder_config()
    start: ModelStart = DecoderStart(checkpoint.read_config()) if encoder is None else EncoderStart(encoder)
    model = start.model
    pooling = checkpoint.read_pooling(config.pooling_type, start.default_pooling)
    start.check_pooling(pooling.kind)
    prompts = checkpoint.read_prompts(pooling) if model.classifier is None else EmbeddingPrompts()
    tokenizer = checkpoint.read_tokenizer(has_pairs=encoder is not None and encoder.classifier is not None)
    dtype = resolve_dtype(config.dtype, model.dtype, device)
    if device.type == "cpu":
        torch.set_num_threads(config.num_threads or max(1, physical_cores() // config.workers_on_host))
    else:
        select_gpu(device)
    ops = create_ops(device, dtype, batch_invariant=config.batch_invariant)
    reason = fallback_reason(device, dtype)
    if reason is not None:
        logger.warning("%s", reason)
    if config.batch_invariant and not ops.batch_invariant:
        raise ModelError(f"--batch-invariant is set, but {reason}")
    grammars = Grammars(tokenizer.tokenizer_json, model.vocab_size, model.eos_token_ids)
    setting = Setting(config, checkpoint.path, compose_device(ops), pooling, grammars, swap, report)
    runner, swap_seconds = start.load(setting)
    report(Phase.MEASURE, None)
    speed = Speed(swap_seconds, *measure_steps(runner, start.probe))
    dtype_name, limits = str(dtype).removeprefix("torch."), runner.limits
    logger.info(
        "serving %s on %s in %s: %s, at most %d tokens per sequence; %s",
        checkpoint.names[0], device, dtype_name, start.describe_capacity(limits),
        limits.max_model_len, describe_numerics(ops, reason),
    )  # fmt: skip
    facts = ModelFacts(
        checkpoint.names, model, limits.max_model_len, dtype_name, tokenizer, pooling, prompts, config.model_version
    )
    return LoadedWorker(runner, grammars, speed, facts, reason)


def resolve_device(name: str) -> torch.device:
    """Returns the device that --device names. A GPU always has an index, because `torch.cuda.set_device` needs one:
    "cuda" becomes "cuda:0". "auto" selects the first GPU that Quire supports, or the CPU.
    Raises ModelError for a device that does not exist."""
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
    """Returns the data type to compute in: the one that --dtype names. With "auto", returns the checkpoint's data type,
    or bfloat16 if Quire cannot compute in the checkpoint's type. A CPU computes in float32 only. Raises ModelError if
    --dtype names another type for a CPU."""
    dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if device.type == "cpu":
        if name not in ("auto", "float32"):
            raise ModelError(f"--dtype is {name}, but on a CPU Quire computes in float32 only")
        return torch.float32
    return dtypes.get(checkpoint_dtype if name == "auto" else name, torch.bfloat16)


def describe_numerics(ops: Ops, reason: str | None) -> str:
    """Returns a description for the log: which kernels run, and whether the tokens of a sequence depend on the rest
    of its batch. `reason`: why the worker runs without the device's own kernels; None if it runs with them."""
    if reason is not None:
        return reason
    if ops.device.type == "cuda" and ops.batch_invariant:
        return (
            "Triton kernels, batch-invariant: outputs do not depend on the rest of the batch; matrix products use one "
            "tile shape and decodes are not split over the device, which costs speed"
        )
    if ops.device.type == "cuda":
        return "Triton kernels; outputs may depend on the rest of the batch"
    threads = torch.get_num_threads()
    return f"compiled kernels on {threads} threads, batch-invariant: outputs do not depend on the rest of the batch"
