"""vLLM options that Quire does not have. vLLM's command lines contain them, so Quire accepts the values that match its
behaviour, and refuses or ignores other values with a message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quire.cli.vllm_option import MODEL, NO_VALUE, Form, VllmOption, json, optional, switch, value, values
from shared.config import ConfigError, find, parse_switch

_NO_SPECULATION = "speculative decoding is not implemented yet"
_NO_LORA = "LoRA adapters are not implemented yet"
_NO_CODE = "Quire runs no code that comes with a model or from elsewhere"
_TEXT_ONLY = "Quire serves text only: there are no images, videos or sounds to configure"
_TLS = "Quire serves no TLS; terminate TLS in a reverse proxy in front of it"
_CONFIG_JSON = "write it into the model's config.json"
_IN_REQUESTS = "send it in requests"
_ONE_GPU = "a model runs on one device, so there is nothing to distribute"

_PARTIAL_PREFILLS = "use --target-tbt-ms to bound the part of each step that prompts take"
_MORE_HOSTS = "for several hosts, start the parts one by one (docs/operations.md)"

OPTIONS: Mapping[str, VllmOption] = {
    option.key: option
    for option in (
        # The model and its files.
        switch("trust-remote-code", False, refusal=f"{_NO_CODE}; leave it out"),
        value("code-revision", refusal=f"{_NO_CODE}; leave it out"),
        value("tokenizer", MODEL, refusal="Quire uses the tokenizer in the model's files; put another one there"),
        value("tokenizer-mode", "auto", refusal="Quire reads tokenizers in one way; leave it out"),
        value("tokenizer-revision", refusal="the tokenizer comes with the model; use --revision for both"),
        switch("skip-tokenizer-init", False, refusal="the router always needs the tokenizer; leave it out"),
        value("config-format", "auto", "hf", refusal="Quire reads models in Hugging Face format and GGUF files"),
        value("hf-config-path", MODEL, refusal="Quire reads config.json in the model's directory"),
        json("hf-overrides", refusal=_CONFIG_JSON),
        json("rope-scaling", refusal=_CONFIG_JSON),
        value("rope-theta", refusal=_CONFIG_JSON),
        optional("hf-token", NO_VALUE, refusal="a key does not belong on a command line; set HF_TOKEN"),
        json("model-loader-extra-config", refusal="loading has no further options; leave it out"),
        values("ignore-patterns", refusal="Quire downloads safetensors and configuration files only; leave it out"),
        value("max-parallel-loading-workers", note="one process loads the weights"),
        value("task", "auto", "generate", "embed", "embedding", "score", "classify",
              refusal="Quire generates, embeds, scores and classifies: use generate, embed, score or classify"),
        value("runner", "auto", "generate", "pooling", refusal="use auto, generate or pooling, or leave it out"),
        value("convert", "auto", "none", "embed", refusal="Quire converts models to embed only"),
        json("override-generation-config", refusal="change the model's generation_config.json"),
        json("override-pooler-config", refusal="use --pooling-type"),
        json("pooler-config", refusal="use --pooling-type"),
        switch("calculate-kv-scales", False, refusal="the scales are the checkpoint's own; leave it out"),
        # Chat and tools.
        value("chat-template-content-format", "auto", refusal="Quire detects it from the template; leave it out"),
        switch("trust-request-chat-template", True,
               refusal="requests may always contain a chat template; it is rendered in a process with limits"),
        json("default-chat-template-kwargs", refusal=f"{_IN_REQUESTS} as chat_template_kwargs"),
        value("response-role", "assistant", refusal="the role of answers is assistant"),
        switch("enable-auto-tool-choice", True, refusal="--tool-call-parser none leaves tool calls in the text"),
        switch("enable-reasoning", True, refusal="--reasoning-parser none leaves reasoning in the text"),
        value("tool-parser-plugin", refusal=f"{_NO_CODE}; use one of --tool-call-parser"),
        value("reasoning-parser-plugin", refusal=f"{_NO_CODE}; use one of --reasoning-parser"),
        json("reasoning-config", refusal="use --reasoning-parser"),
        value("tool-server", refusal="the client runs the tools"),
        value("guided-decoding-backend", "auto", "guidance", note="llguidance enforces every structure"),
        json("structured-outputs-config", note="llguidance enforces every structure"),
        values("logits-processors", refusal=_NO_CODE),
        value("logits-processor-pattern", refusal=_NO_CODE),
        value("max-logprobs", "20", refusal="requests get up to 20 log probabilities per token"),
        value("logprobs-mode", "raw_logprobs", refusal="log probabilities are those of the model's raw distribution"),
        switch("return-tokens-as-token-ids", False, refusal=f"{_IN_REQUESTS} as return_tokens_as_token_ids"),
        switch("enable-prompt-tokens-details", True, refusal="usage always has prompt_tokens_details"),
        switch("enable-tokenizer-info-endpoint", True, refusal="/tokenizer_info is always served"),
        switch("enable-force-include-usage", False, refusal=f"{_IN_REQUESTS} as stream_options.include_usage"),
        value("seed", note="each request without a seed of its own draws one; send seed in requests to repeat answers"),
        # Inputs other than text.
        switch("enable-prompt-embeds", False, refusal="prompts are text or token ids"),
        values("limit-mm-per-prompt", refusal=_TEXT_ONLY),
        json("mm-processor-kwargs", refusal=_TEXT_ONLY),
        value("allowed-local-media-path", refusal=_TEXT_ONLY),
        switch("disable-mm-preprocessor-cache", False, refusal=_TEXT_ONLY),
        # Speculative decoding and adapters. WorkerConfig has the rest of these options, marked as not_built.
        json("speculative-config", refusal=_NO_SPECULATION, short="-sc"),
        value("speculative-max-model-len", refusal=_NO_SPECULATION),
        value("speculative-model-quantization", refusal=_NO_SPECULATION),
        value("speculative-disable-by-batch-size", refusal=_NO_SPECULATION),
        value("ngram-prompt-lookup-max", refusal=_NO_SPECULATION),
        value("ngram-prompt-lookup-min", refusal=_NO_SPECULATION),
        value("num-lookahead-slots", "0", refusal=_NO_SPECULATION),
        value("max-cpu-loras", refusal=_NO_LORA),
        value("lora-dtype", "auto", refusal=_NO_LORA),
        value("lora-extra-vocab-size", refusal=_NO_LORA),
        switch("fully-sharded-loras", False, refusal=_NO_LORA),
        switch("enable-prompt-adapter", False, refusal="prompt adapters are not implemented"),
        # Several devices and processes.
        value("data-parallel-rank", "0", short="-dpn", refusal=_MORE_HOSTS),
        value("data-parallel-start-rank", "0", short="-dpr", refusal=_MORE_HOSTS),
        value("data-parallel-address", short="-dpa", refusal=_MORE_HOSTS),
        value("data-parallel-rpc-port", short="-dpp", refusal=_MORE_HOSTS),
        value("data-parallel-backend", short="-dpb", note=_ONE_GPU),
        switch("enable-expert-parallel", False, refusal="one device holds all experts"),
        value("distributed-executor-backend", note=_ONE_GPU),
        switch("disable-custom-all-reduce", note=_ONE_GPU),
        switch("disable-frontend-multiprocessing", note="gateway, router, scheduler and worker are always processes"),
        # Steps and memory.
        switch("async-scheduling", True, refusal="use --run-ahead 1: the next step is then planned after each result"),
        switch("use-v2-block-manager", True, refusal="Quire has one block manager; leave it out"),
        switch("disable-async-output-proc", note="the router turns tokens into text, outside of the steps"),
        switch("multi-step-stream-outputs", True, refusal="tokens are streamed as they come"),
        value("max-num-partial-prefills", "1", refusal=_PARTIAL_PREFILLS),
        value("max-long-partial-prefills", "1", refusal=_PARTIAL_PREFILLS),
        value("long-prefill-token-threshold", "0", refusal=_PARTIAL_PREFILLS),
        value("scheduler-delay-factor", "0", "0.0", refusal="prompts do not wait for others; leave it out"),
        value("stream-interval", "1", refusal="tokens are streamed as they come"),
        switch("disable-hybrid-kv-cache-manager", note="Quire has one KV cache manager"),
        value("prefix-caching-hash-algo", note="the tokens themselves are compared when a prefix is found"),
        value("cpu-offload-gb", "0", "0.0", refusal="weights stay on the device; use --quantization"),
        value("kv-offloading-size", refusal="use --swap-space"),
        value("kv-offloading-backend", refusal="use --swap-space"),
        json("kv-transfer-config", refusal="moving KV blocks between workers is not implemented yet"),
        value("max-seq-len-to-capture", note="CUDA graphs serve sequences of every length"),
        values("cudagraph-capture-sizes", note="CUDA graphs are recorded for up to --max-num-seqs sequences"),
        json("compilation-config", note="kernels are compiled ahead of time; --enforce-eager turns CUDA graphs off",
             short="-cc"),
        value("optimization-level", note="kernels are compiled ahead of time; --enforce-eager turns CUDA graphs off",
              short="-O"),
        value("attention-backend", note="Quire has one attention kernel for each device"),
        switch("disable-sliding-window", False, refusal=_CONFIG_JSON),
        switch("disable-cascade-attn", note="Quire has no cascade attention"),
        switch("enable-sleep-mode", False, refusal="there is no sleep mode; stop the server"),
        # HTTP, logs and metrics.
        value("ssl-keyfile", refusal=_TLS),
        value("ssl-certfile", refusal=_TLS),
        value("ssl-ca-certs", refusal=_TLS),
        value("uds", refusal="use quire gateway --listen unix:/path; quire serve listens on --host and --port"),
        values("middleware", refusal=_NO_CODE),
        switch("disable-fastapi-docs", False, refusal="/docs is always served; refuse it in a proxy in front"),
        switch("grpc", True, refusal="gRPC is always served, on the same port as HTTP"),
        value("grpc-port", refusal="gRPC is served on the same port as HTTP, --port"),
        switch("enable-request-id-headers", True, refusal="answers always have an x-request-id header"),
        switch("disable-log-requests", True, refusal="use --access-log - for a line of JSON per request"),
        switch(
            "enable-log-requests",
            False,
            refusal="use --access-log - for a line of JSON per request, and -v --log-prompts 200 for prompts",
        ),
        switch("enable-log-outputs", False, refusal="answers are never logged"),
        switch("enable-log-deltas", note="answers are never logged"),
        value("max-log-len", note="-v --log-prompts 200 logs the first 200 characters of prompts"),
        switch("disable-log-stats", True, refusal="statistics are not logged; read them at /metrics"),
        value("uvicorn-log-level", note="Envoy serves HTTP; use --log-level"),
        switch("disable-uvicorn-access-log", True, refusal="use --access-log - for a line of JSON per request"),
        value("log-config-file", refusal="use --log-level and --log-format"),
        value("otlp-traces-endpoint", refusal="set OTEL_EXPORTER_OTLP_ENDPOINT"),
        values("collect-detailed-traces", refusal="traces always have every part; leave it out"),
        value("shutdown-timeout", refusal="use --drain-timeout"),
    )
}  # fmt: skip


def check(
    flags: Mapping[str, Any], environment: Mapping[str, str], file: Mapping[str, Any], model: str
) -> tuple[str, ...]:
    """Checks the vLLM options that are set. Returns a note for each option that is ignored. Raises ConfigError for
    options that Quire cannot follow. Takes the same `flags`, `environment` and `file` as shared.config.build; `model`:
    the model's name or path."""
    refused: list[str] = []
    notes: list[str] = []
    for option in OPTIONS.values():
        found = find(option.key, flags, environment, file)
        if found is None:
            continue
        source, given = found
        if option.form is Form.SWITCH:
            given = parse_switch(source, given)
        if option.accepts(given, model):
            continue
        if option.refusal:
            refused.append(f"{source} cannot be used: {option.refusal}")
        else:
            notes.append(f"{source} changes nothing: {option.note}")
    if refused:
        raise ConfigError("\n".join(refused))
    return tuple(notes)
