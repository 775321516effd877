"""The worker's options."""

from __future__ import annotations

from dataclasses import dataclass

from services.worker.pooling.choices import CHOICES as POOLING_CHOICES
from services.worker.quantization.at_load import ALIASES, CHOICES
from shared.config import option


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    model: str = option(
        "",
        "Model directory, GGUF file, or name on the Hugging Face hub; the model that comes with Quire if left out.",
        positional=True,
    )  # fmt: skip
    listen: tuple[str, ...] = option(("127.0.0.1:50071",), "Address to serve gRPC on, host:port or unix:/path.")
    served_model_name: tuple[str, ...] = option(
        (), "Name that requests use for the model. Repeatable: further ones are aliases."
    )
    revision: str = option("", "Branch, tag or commit of a model on the hub; its main branch if left out.")
    download_dir: str = option("", "Directory for downloads from the hub; HF_HUB_CACHE's if left out.")
    chat_template: str = option(
        "", "Jinja template that turns messages into a prompt, or a file of one; the model's own if left out."
    )
    generation_config: str = option(
        "auto", "Sampling parameters that hold where a request has none: those of the model's generation_config.json "
        "(auto), or the API's own (vllm).", choices=("auto", "vllm"),
    )  # fmt: skip
    device: str = option("auto", "Where to compute: auto, cpu, cuda or cuda:N. auto takes the first supported GPU.")
    dtype: str = option(
        "auto", "Type of activations and KV cache. auto: float32 on a CPU, the checkpoint's own on a GPU.",
        choices=("auto", "float32", "bfloat16", "float16"), aliases={"half": "float16", "float": "float32"},
    )  # fmt: skip
    load_format: str = option(
        "auto", "Where weights come from: safetensors or GGUF files, whichever there are, or dummy random ones.",
        choices=("auto", "safetensors", "gguf", "dummy"),
    )  # fmt: skip
    quantization: str | None = option(
        None, "Quantize weights as they are loaded (fp8, int8, int8-weight-only), or the method that the checkpoint "
        "must have been quantized with; they stay as they are if left out.",
        choices=CHOICES, aliases=ALIASES, short="-q",
    )  # fmt: skip
    pooling_type: str = option(
        "auto", "What an embedding is made of: the last token's hidden state, the mean of all tokens', or the first's "
        "(encoders). auto: as the model's sentence-transformers files say; else last, for encoders cls.",
        choices=POOLING_CHOICES,
    )  # fmt: skip
    kv_cache_dtype: str = option(
        "auto",
        "Type of keys and values in the KV cache; --dtype's if auto.",
        choices=("auto", "fp8"),
        aliases={"fp8_e4m3": "fp8"},
    )
    max_model_len: int | None = option(
        None, "Tokens of prompt and output together; what model and KV cache allow if left out.", minimum=1
    )
    block_size: int = option(16, "KV slots (token positions) per block.", minimum=1, maximum=1024)
    kv_cache_memory_bytes: int | None = option(
        None, "Bytes of KV cache; 1 GiB on a CPU if left out, on a GPU by --gpu-memory-utilization.", minimum=1
    )
    num_gpu_blocks_override: int | None = option(
        None, "Blocks of KV cache, on any device, whatever the memory.", minimum=1
    )
    gpu_memory_utilization: float = option(
        0.9, "Fraction of a GPU's memory to use in all: the KV cache gets what weights, the largest step and graphs "
        "leave of it. Above 0.97, the worker warns.", minimum=0.01, maximum=1.0,
    )  # fmt: skip
    swap_space: float | None = option(
        None, "GiB of host memory for KV blocks of preempted sequences and evicted prefixes. If left out, 4 on a GPU "
        "but at most a quarter of the available memory, and 0 on a CPU.", minimum=0,
    )  # fmt: skip
    max_num_seqs: int = option(256, "Sequences per step, at most.", minimum=1)
    max_num_batched_tokens: int | None = option(
        None, "Tokens per step, at most. If left out, 2048; with --no-enable-chunked-prefill as many as the longest "
        "sequence may have, if that is more.", minimum=1,
    )  # fmt: skip
    enable_chunked_prefill: bool = option(
        True,
        "Compute prompts in chunks beside decodes. Without it, each prompt is computed in one step: a step must hold "
        "the longest, and --target-tbt-ms does not count.",
    )
    enforce_eager: bool = option(
        False, "On a GPU, launch the kernels of every step one by one: no CUDA graphs of decode steps."
    )
    batch_invariant: bool = option(
        False, "On a GPU, let no sequence's tokens depend on what shares its batch, as on a CPU they never do; costs "
        "speed.",
    )  # fmt: skip
    num_threads: int | None = option(None, "CPU threads to compute with; one per physical core if left out.", minimum=1)
    metrics_host: str = option("127.0.0.1", "Host to serve Prometheus metrics on.")
    metrics_port: int | None = option(None, "Port for Prometheus metrics; none are served if left out.", minimum=0)
    step_log: str = option("", "File to append a line of JSON to for every step: its size and times.")
    status_fd: int | None = option(None, "File descriptor to report the start's progress on.", minimum=0)
    log_level: str = option("info", "What to log.", choices=("debug", "info", "warning", "error"))
    log_format: str = option("text", "How to log.", choices=("text", "json"))

    tensor_parallel_size: int = option(1, "Ranks that share each layer.", not_built=True, short="-tp")
    pipeline_parallel_size: int = option(1, "Ranks that share the layers.", not_built=True, short="-pp")
    speculative_model: str | None = option(None, "Draft model for speculation.", not_built=True)
    num_speculative_tokens: int | None = option(None, "Draft tokens per step.", not_built=True)
    speculative_draft_tensor_parallel_size: int | None = option(
        None, "Ranks that share the draft model.", not_built=True
    )
    enable_lora: bool = option(False, "Serve LoRA adapters.", not_built=True)
    lora_modules: tuple[str, ...] = option((), "LoRA adapters, name=path.", not_built=True)
    max_loras: int = option(1, "LoRA adapters in one batch.", not_built=True)
    max_lora_rank: int = option(16, "Highest rank of a LoRA adapter.", not_built=True)
