"""Compares transformers' generation, with a static cache and CUDA graphs, with our decode step in the same run."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from statistics import median
from typing import Any

import torch

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.decode import CHUNK, MAX_STEPS, measure_steps
from benchmarks.gpu.figures import Figure
from benchmarks.gpu.fresh_compiler import fresh_compiler

BATCHES = (1, 8, 32)
CONTEXT = 512
# The time of a step is the difference of two generations' times over the difference of their lengths. This excludes the
# prompt's time.
FEW, MANY = 8, 72
ROUNDS = 3


def measure(bench: Bench) -> Iterator[Figure]:
    batches, context, few, many = ((2,), 20, 2, 4) if bench.dry_run else (BATCHES, CONTEXT, FEW, MANY)
    floors = bench.floors
    model = _model(bench)
    for batch in batches:
        name = f"transformers, batch {batch}, context {context}"
        floor = floors.decode(batch, context + (few + many) / 2) * 1e3
        try:
            with fresh_compiler():
                step = _step(bench, model, batch, context, few, many)
        except Exception as error:  # a peer that fails on this machine must not end the benchmark
            yield Figure(name, None, "ms", floor, f"{type(error).__name__}: {str(error).splitlines()[0][:100]}")
            continue
        yield Figure(name, step * 1e3, "ms", floor, f"{batch / step:,.0f} tokens/s")
    del model
    _free(bench)
    max_steps = 8 if bench.dry_run else MAX_STEPS
    with bench.engine(context + max_steps, max(batches), CHUNK) as engine:
        yield from measure_steps(bench, engine, batches, (context,), "ours")


def _model(bench: Bench) -> Any:
    """Returns a model of the shape with random weights, which are never quantized."""
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = bench.shape
    config = LlamaConfig(
        vocab_size=shape.vocab_size, hidden_size=shape.hidden_size, intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_layers, num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads, max_position_embeddings=shape.max_model_len,
        tie_word_embeddings=shape.tie_word_embeddings,
    )  # fmt: skip
    before = torch.get_default_dtype()
    torch.set_default_dtype(bench.dtype)
    try:
        with torch.device(bench.device):
            model: Any = LlamaForCausalLM(config)
            return model.eval()
    finally:
        torch.set_default_dtype(before)


def _step(bench: Bench, model: Any, batch: int, context: int, few: int, many: int) -> float:
    """Returns the seconds of a decode step."""
    prompt = torch.randint(3, bench.shape.vocab_size, (batch, context), device=bench.device)

    def generate(count: int) -> None:
        # One cache serves all lengths, so that no length needs another compilation or recording.
        model.generate(
            prompt, attention_mask=torch.ones_like(prompt), do_sample=False, min_new_tokens=count, max_new_tokens=count,
            cache_implementation="static", eos_token_id=None, pad_token_id=0, **_compilation(bench),
        )  # fmt: skip

    for _ in range(2):
        generate(many)
        generate(few)
    taken = []
    for _ in range(ROUNDS):
        long, short = bench.clock.whole(lambda: generate(many)), bench.clock.whole(lambda: generate(few))
        taken.append((long - short) / (many - few))
    return median(taken) or 1e-3  # a dry run's clock sees no difference


def _compilation(bench: Bench) -> dict[str, Any]:
    if bench.dry_run:
        return {"disable_compile": True}
    from transformers import CompileConfig

    return {"compile_config": CompileConfig(fullgraph=False, dynamic=False, mode="reduce-overhead")}


def _free(bench: Bench) -> None:
    gc.collect()
    torch._dynamo.reset()
    gc.collect()
    if bench.device.type == "cuda":
        torch.cuda.empty_cache()
