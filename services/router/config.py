"""The router's configuration."""

from __future__ import annotations

import re
from dataclasses import dataclass

from shared.config import ConfigError, option
from shared.discovery import PartOptions
from shared.message_size import DEFAULT_MAX_BODY_BYTES
from shared.root_path import check_root_path

# Copies of the names in services/router/chat/forms.py, because importing that module would slow down the command line.
TOOL_CALL_PARSERS = (
    *("auto", "none", "hermes", "qwen3_coder", "seed_oss", "llama3_json", "llama4_json", "pythonic", "llama4_pythonic"),
    *("mistral", "deepseek_v3", "deepseek_v31", "granite", "internlm", "hunyuan_a13b", "xlam"),
    *("functiongemma", "gemma4", "openai", "plain"),
)
REASONING_PARSERS = (
    *("auto", "none", "think", "qwen3", "deepseek_r1", "mistral", "seed_oss", "gemma4", "hunyuan_a13b"),
    *("granite", "granite_3_3", "openai_gptoss"),
)
# Parser names of the Harmony format. This format covers a whole message, so no other parser can read a part of it.
_CHANNELS = {"openai", "openai_gptoss"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterConfig(PartOptions):
    listen: tuple[str, ...] = option(
        ("127.0.0.1:50051",), "Address to serve gRPC on, host:port or unix:/path. Repeatable."
    )
    scheduler: tuple[str, ...] = option(
        (),
        "Address of a scheduler, host:port or unix:/path. Repeatable. A host name stands for all of its addresses. "
        "With --redis, schedulers are also found there. The router retries each until it answers.",
    )
    default_model: str | None = option(
        None,
        "Name of the model for requests that name none. If left out, they get the only model that is served, and an "
        "error if there are several.",
    )
    api_key: tuple[str, ...] = option(
        (),
        "API keys; requests must carry one of them as `Authorization: Bearer KEY`. If left out, no key is needed.",
        secret=True,
    )
    max_n: int = option(128, "Largest `n` (answers per request) that is accepted.", minimum=1, maximum=128)
    max_num_requests: int = option(
        4096, "Maximum number of requests in progress at a time; further ones get a 429 with Retry-After.", minimum=1
    )
    max_body_bytes: int = option(
        DEFAULT_MAX_BODY_BYTES,
        "Largest request body or gRPC message in bytes; larger ones are refused. The gateway needs the same limit.",
        minimum=1024,
        maximum=31 * 1024 * 1024,
    )
    scheduler_wait: float = option(
        30.0, "Seconds that a request waits at most for a scheduler of its model before it fails with a 503.", minimum=0
    )
    scheduler_silence: float = option(
        2.0,
        "Minimum number of seconds without a message after which a scheduler counts as hung, and its sequences move to "
        "other schedulers. The limit is five times the longest pause that it recently made three times, if that is "
        "longer, up to 10 s.",
        minimum=0.1,
    )
    tokenizer_threads: int = option(2, "Threads that tokenize long texts.", minimum=1, maximum=64)
    tool_call_parser: str = option(
        "auto",
        "Format in which the model writes tool calls. auto: detect it from the chat template; none: calls "
        "stay in the text.",
        choices=TOOL_CALL_PARSERS,
    )
    reasoning_parser: str = option(
        "auto",
        "Format in which the model writes its reasoning. auto: detect it from the chat template; none: "
        "reasoning stays in the text.",
        choices=REASONING_PARSERS,
    )
    root_path: str = option(
        "", "Path prefix that a proxy in front does not remove, such as /llm. Every path is served with and without it."
    )
    drain_timeout: float = option(10.0, "Seconds that requests in progress get to finish after SIGTERM.", minimum=0)
    metrics_host: str = option("127.0.0.1", "Host to serve Prometheus metrics on.")
    metrics_port: int | None = option(
        None, "TCP port for Prometheus metrics; 0 picks a free one. If left out, off.", minimum=0, maximum=65535
    )
    status_fd: int | None = option(None, "File descriptor for start-up status lines in JSON; set by quire serve.")
    log_level: str = option("info", "Lowest severity to log.", choices=("debug", "info", "warning", "error"))
    log_format: str = option("text", "Format of log lines.", choices=("text", "json"))
    log_prompts: int = option(
        0, "Maximum number of characters of each prompt to log; 0 logs no prompts.", minimum=0, maximum=512
    )

    def __post_init__(self) -> None:
        PartOptions.__post_init__(self)
        check_root_path(self.root_path)
        parsers = {self.tool_call_parser, self.reasoning_parser}
        if parsers & _CHANNELS and parsers - _CHANNELS - {"auto", "none"}:
            raise ConfigError(
                "--tool-call-parser openai and --reasoning-parser openai_gptoss read the same format: combine them "
                "only with each other, with auto or with none"
            )
        # A key is sent in an HTTP header, so it must be ASCII. In an environment variable, commas separate the keys.
        if not all(re.fullmatch("[!-~]+", key) and "," not in key for key in self.api_key):
            raise ConfigError("--api-key takes visible ASCII characters other than commas")
