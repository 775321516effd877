"""Types of models that Quire cannot run, whatever their sizes are, and the reason for each."""

from __future__ import annotations

from services.worker.errors import ModelError
from services.worker.fields import Fields

# transformers' names of model types.
_RECURRENT = frozenset((
    "bailing_hybrid", "bamba", "falcon_h1", "falcon_mamba", "glm5_next", "granitemoehybrid", "inkling", "inkling2",
    "jamba", "kimi_linear", "lfm2", "lfm2_moe", "lfm2_vl", "lfm3", "lfm3_vl", "mamba", "mamba2", "minimax",
    "nemotron_h", "nemotron_h_omni", "olmo_hybrid", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text",
    "qwen3_next", "qwen4_exp", "recurrent_gemma", "rwkv", "rwkv5", "rwkv6", "rwkv7", "xlstm", "zamba", "zamba2", "zaya",
))  # fmt: skip
_ENCODER_DECODER = frozenset((
    "bart", "bigbird_pegasus", "blenderbot", "blenderbot-small", "canary", "cohere_asr", "dia", "encoder-decoder",
    "florence2", "fsmt", "led", "longt5", "m2m_100", "marian", "mbart", "moonshine", "moonshine_streaming", "mt5",
    "mvp", "nllb-moe", "pegasus", "pegasus_x", "plbart", "pop2piano", "prophetnet", "seamless_m4t", "seamless_m4t_v2",
    "speech-encoder-decoder", "speech_to_text", "speecht5", "switch_transformers", "t5", "t5gemma", "t5gemma2", "udop",
    "umt5", "vision-encoder-decoder", "whisper",
))  # fmt: skip


def refuse_unsupported_type(config: Fields) -> None:
    """Raises ModelError if config.json, or the `text_config` in it, names one of these types."""
    nested = config.nested("text_config")
    for fields in (config,) if nested is None else (config, nested):
        kind = fields.text("model_type", "")
        if kind in _RECURRENT:
            raise ModelError(f"{fields.where}: model_type is {kind}: models with recurrent state are not supported yet")
        if kind in _ENCODER_DECODER or fields.flag("is_encoder_decoder"):
            raise ModelError(f"{fields.where}: model_type is {kind}: encoder-decoder models are not supported")
