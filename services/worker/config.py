"""The worker's options."""

from __future__ import annotations

import re
from dataclasses import dataclass

from services.worker.implementations import IMPLEMENTATIONS
from services.worker.pooling import CHOICES as POOLING_CHOICES
from services.worker.quantization import ALIASES, CHOICES, REFUSALS
from shared.config import ConfigError, option
from shared.presets import PresetOptions


@dataclass(frozen=True, slots=True)
class WorkerConfig(PresetOptions):
    model: str = option(
        "",
        "Model directory, GGUF file, or name on the Hugging Face hub. If left out, the bundled model, quire-chat.",
        positional=True,
    )
    listen: tuple[str, ...] = option(("127.0.0.1:50071",), "Address to serve gRPC on, host:port or unix:/path.")
    served_model_name: tuple[str, ...] = option(
        (), "Name of the model in requests. Repeatable; further names are aliases."
    )
    model_version: str = option(
        "",
        "Version of the model among those served under one name: letters, digits, dots, hyphens and underscores. "
        "Requests can name it as NAME@VERSION. If left out, the model has one unnamed version.",
    )
    revision: str = option("", "Branch, tag or commit of a model on the hub. If left out, main.")
    download_dir: str = option("", "Directory for downloads from the hub. If left out, HF_HUB_CACHE.")
    chat_template: str = option(
        "",
        "Chat template: a Jinja template that turns messages into a prompt, or a file with one. If left out, "
        "the model's own.",
    )
    generation_config: str = option(
        "auto",
        "Default sampling parameters. auto: those of the model's generation_config.json; vllm: those of the API.",
        choices=("auto", "vllm"),
    )
    device: str = option(
        "auto", "Device: auto, cpu, cuda or cuda:N. auto: the first supported GPU, or the CPU if there is none."
    )
    dtype: str = option(
        "auto",
        "Data type of activations and KV cache. auto: float32 on a CPU, the checkpoint's own on a GPU.",
        choices=("auto", "float32", "bfloat16", "float16"),
        aliases={"half": "float16", "float": "float32"},
    )
    load_format: str = option(
        "auto",
        "Format of the weights. auto: safetensors or GGUF, whichever the model has; dummy: random weights.",
        choices=("auto", "safetensors", "gguf", "dummy"),
    )
    model_impl: str = option(
        "auto",
        "Code of the model's forward pass. native: Quire's own; transformers: transformers' own, on Quire's KV cache; "
        "auto: native if there is one, else transformers for the model types that are proven exact.",
        choices=IMPLEMENTATIONS,
        aliases={"vllm": "native"},
    )
    quantization: str | None = option(
        None,
        "Quantize weights at load (fp8, int8, int8-weight-only, int4), or the method that the checkpoint must be "
        "quantized with. If left out, weights stay as the checkpoint stores them.",
        choices=CHOICES,
        aliases=ALIASES,
        refusals=REFUSALS,
        short="-q",
    )
    pooling_type: str = option(
        "auto",
        "How embeddings are pooled. last: the last token's hidden state; mean: the mean of all tokens'; cls: "
        "the first token's (encoders only). auto: as the model's sentence-transformers files say, else last, "
        "or cls for encoders.",
        choices=POOLING_CHOICES,
    )
    kv_cache_dtype: str = option(
        "auto",
        "Data type of keys and values in the KV cache. auto: the same as --dtype.",
        choices=("auto", "fp8"),
        aliases={"fp8_e4m3": "fp8"},
    )
    max_model_len: int | None = option(
        None,
        "Longest sequence, prompt and output together, in tokens. If left out, as long as the model and the "
        "KV cache allow.",
        minimum=1,
    )
    max_auto_model_len: int | None = option(
        None,
        "Upper limit of the longest sequence, in tokens, where --max-model-len is left out. A model or a KV cache that "
        "allows less starts all the same.",
        minimum=1,
    )
    block_size: int = option(16, "KV slots (token positions) per block.", minimum=1, maximum=1024)
    kv_cache_memory_bytes: int | None = option(
        None,
        "Size of the KV cache in bytes. If left out, 1 GiB on a CPU, or half of the available memory if that is less; "
        "on a GPU, --gpu-memory-utilization sets it.",
        minimum=1,
    )
    num_gpu_blocks_override: int | None = option(
        None, "Number of KV blocks, on a GPU or a CPU. Overrides the other memory options.", minimum=1
    )
    gpu_memory_utilization: float = option(
        0.9,
        "Fraction of a GPU's memory to use. The KV cache gets the part that weights, the largest step and "
        "CUDA graphs do not need. Above 0.97, the worker logs a warning.",
        minimum=0.01,
        maximum=1.0,
    )
    swap_space: float | None = option(
        None,
        "Host memory for KV blocks of preempted sequences and evicted prefixes, in GiB. If left out, 4 on a "
        "GPU (at most a quarter of the available memory), 0 on a CPU.",
        minimum=0,
    )
    max_num_seqs: int = option(256, "Maximum number of sequences in one step.", minimum=1)
    max_num_batched_tokens: int | None = option(
        None,
        "Maximum number of tokens in one step. If left out, 2048; with --no-enable-chunked-prefill, the length of the "
        "longest sequence if that is more.",
        minimum=1,
    )
    enable_chunked_prefill: bool = option(
        True,
        "Chunked prefill: compute long prompts in chunks, in the same steps as decodes. If off, each prompt "
        "is computed in one step, so a step must hold the longest prompt, and --target-tbt-ms has no effect.",
    )
    enforce_eager: bool = option(False, "On a GPU, do not use CUDA graphs for decode steps.")
    batch_invariant: bool = option(
        False,
        "On a GPU, make the output independent of the other sequences in the batch, at the cost of speed. On "
        "a CPU it always is.",
    )
    num_threads: int | None = option(
        None,
        "CPU threads for the computation. If left out, one per physical core, divided by --workers-on-host.",
        minimum=1,
    )
    workers_on_host: int = option(
        1,
        "Number of workers that share this host's cores and memory. The defaults of --num-threads, --swap-space and, "
        "on a CPU, --kv-cache-memory-bytes leave the other workers their share. Set by quire serve.",
        minimum=1,
    )
    host_memory_bytes: int | None = option(
        None,
        "Host memory in bytes for this worker's weights and, on a CPU, the default of --kv-cache-memory-bytes. If left "
        "out, the available memory divided by --workers-on-host. Set by quire serve for several models.",
        minimum=1,
    )
    drain_timeout: float = option(
        10.0,
        "Seconds that sequences get to finish after SIGTERM, if their scheduler has no other worker to move them to.",
        minimum=0,
    )
    metrics_host: str = option("127.0.0.1", "Host to serve Prometheus metrics on.")
    metrics_port: int | None = option(
        None, "TCP port for Prometheus metrics; 0 picks a free one. If left out, off.", minimum=0
    )
    step_log: str = option("", "File for the step log: one JSON object per step, with its size and times, is appended.")
    status_fd: int | None = option(
        None, "File descriptor for start-up status lines in JSON; set by quire serve.", minimum=0
    )
    log_level: str = option("info", "Lowest severity to log.", choices=("debug", "info", "warning", "error"))
    log_format: str = option("text", "Format of log lines.", choices=("text", "json"))

    tensor_parallel_size: int = option(1, "Number of ranks that each layer is split over.", not_built=True, short="-tp")
    pipeline_parallel_size: int = option(
        1, "Number of ranks that the layers are divided among.", not_built=True, short="-pp"
    )
    speculative_model: str | None = option(None, "Draft model for speculative decoding.", not_built=True)
    num_speculative_tokens: int | None = option(None, "Draft tokens per step of speculative decoding.", not_built=True)
    speculative_draft_tensor_parallel_size: int | None = option(
        None, "Number of ranks that each layer of the draft model is split over.", not_built=True
    )
    enable_lora: bool = option(False, "Serve LoRA adapters.", not_built=True)
    lora_modules: tuple[str, ...] = option((), "LoRA adapters, name=path.", not_built=True)
    max_loras: int = option(1, "LoRA adapters in one batch.", not_built=True)
    max_lora_rank: int = option(16, "Highest rank of a LoRA adapter.", not_built=True)

    def __post_init__(self) -> None:
        PresetOptions.__post_init__(self)
        if not re.fullmatch(r"[A-Za-z0-9._-]{0,64}", self.model_version):
            raise ConfigError(
                f"--model-version is {self.model_version!r}: use at most 64 letters, digits, dots, hyphens, underscores"
            )

    def longest(self, of_model: int) -> int:
        """Returns the greatest length of a sequence in tokens, of a model that takes `of_model`."""
        return min(self.max_model_len or self.max_auto_model_len or of_model, of_model)
