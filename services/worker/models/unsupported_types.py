"""Types of models that Quire cannot run, whatever their sizes are, and the reason for each."""

from __future__ import annotations

import re
from collections.abc import Mapping

from services.worker.errors import ModelError
from services.worker.fields import Fields

# transformers' names of model types.
_RECURRENT = (
    "bailing_hybrid", "bamba", "falcon_h1", "falcon_mamba", "glm5_next", "granitemoehybrid", "inkling", "inkling2",
    "jamba", "kimi_linear", "lfm2", "lfm2_moe", "lfm2_vl", "lfm3", "lfm3_vl", "mamba", "mamba2", "minimax",
    "nemotron_h", "nemotron_h_omni", "olmo_hybrid", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text",
    "qwen3_next", "qwen4_exp", "recurrent_gemma", "rwkv", "rwkv5", "rwkv6", "rwkv7", "xlstm", "zamba", "zamba2", "zaya",
)  # fmt: skip
_ENCODER_DECODER = (
    "bart", "bigbird_pegasus", "blenderbot", "blenderbot-small", "canary", "cohere_asr", "dia", "encoder-decoder",
    "florence2", "fsmt", "led", "longt5", "m2m_100", "marian", "mbart", "moonshine", "moonshine_streaming", "mt5",
    "mvp", "nllb-moe", "pegasus", "pegasus_x", "plbart", "pop2piano", "prophetnet", "seamless_m4t", "seamless_m4t_v2",
    "speech-encoder-decoder", "speech_to_text", "speecht5", "switch_transformers", "t5", "t5gemma", "t5gemma2", "udop",
    "umt5", "vision-encoder-decoder", "whisper",
)  # fmt: skip
_OF_ENCODER_DECODERS = "encoder-decoder models are not supported"
REASONS: Mapping[str, str] = {
    **dict.fromkeys(_RECURRENT, "models with recurrent state are not supported yet"),
    **dict.fromkeys(_ENCODER_DECODER, _OF_ENCODER_DECODERS),
}
# Ends of the names of transformers' classes.
_TASK = re.compile(r"(For[A-Z]\w*|LMHeadModel|Model)$")


def refuse_unsupported_type(config: Fields) -> None:
    """Raises ModelError if config.json, or the `text_config` in it, names one of these types."""
    nested = config.nested("text_config")
    for fields in (config,) if nested is None else (config, nested):
        kind = fields.text("model_type", "")
        is_encoder_decoder = kind not in REASONS and fields.flag("is_encoder_decoder")
        reason = _OF_ENCODER_DECODERS if is_encoder_decoder else REASONS.get(kind)
        if reason is not None:
            raise ModelError(f"{fields.where}: model_type is {kind}: {reason}")


def find_unsupported(name: str) -> dict[str, str]:
    """Returns the types that `name` may mean, with the reason for each. `name`: an architecture, such as
    T5ForConditionalGeneration, or a part of a type's name."""
    task = _TASK.search(name)
    wanted = letters(name[: task.start()] if task else name)
    return {
        kind: reason
        for kind, reason in REASONS.items()
        if wanted and (wanted == letters(kind) if task else wanted in letters(kind))
    }


def letters(name: str) -> str:
    """Returns the letters and digits of a name, so that names of types and of classes can be compared."""
    return re.sub(r"[^a-z0-9]", "", name.lower())
