"""The language models inside models that take images or audio, too. Quire serves their text alone.

Their config.json nests the language model's values in `text_config`, and their tensors have a prefix before the names
that the language model gives them. The tensors of towers and projectors are never read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from services.worker.errors import ModelError
from services.worker.fields import Fields
from services.worker.models.decoders.registry import DECODERS
from services.worker.models.unsupported_types import refuse_unsupported_type

# Prefixes of the language model's tensors: as stored, and as the language model alone names them. transformers 4 wrote
# the first two, later versions the third.
_PREFIXES = (
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
    ("model.language_model.", "model."),
)


@dataclass(frozen=True, slots=True)
class TextPart:
    """How to find the language model inside one family of models."""

    left_out: str  # for a log line: the parts that are not loaded
    refused: str  # for a log line: inputs that are refused in requests
    towers: tuple[str, ...]  # first parts of the names of their tensors, which can stand after `model.`
    text_type: str  # the language model's type if config.json does not give it
    prefixes: tuple[tuple[str, str], ...] = _PREFIXES

    def own_name(self, stored: str) -> str | None:
        """Returns the name that a stored tensor has in the language model; None for a tensor of a tower."""
        if stored.removeprefix("model.").startswith(self.towers):
            return None
        for prefix, own in self.prefixes:
            if stored.startswith(prefix):
                return own + stored.removeprefix(prefix)
        return stored

    def __str__(self) -> str:
        return f"only the language model is loaded, without {self.left_out}: {self.refused} are refused"


@dataclass(frozen=True, slots=True)
class _TextModel:
    """A type of language model, as `text_config` names it."""

    architecture: str
    # What a key means that `text_config` leaves out. transformers leaves out the values of its configuration class.
    defaults: Mapping[str, Any] = field(default_factory=dict)


def _sizes(
    vocab: int, hidden: int, inner: int, layers: int, heads: int, positions: int, **others: Any
) -> dict[str, Any]:
    return {
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "max_position_embeddings": positions,
        **others,
    }


_QWEN2_VL = _sizes(
    152_064, 8192, 29_568, 80, 64, 32_768, num_key_value_heads=8, rms_norm_eps=1e-5, rope_theta=1e6,
    max_window_layers=80,
)  # fmt: skip
_QWEN3 = _sizes(151_936, 4096, 22_016, 32, 32, 32_768, num_key_value_heads=32)
_TEXT_MODELS: Mapping[str, _TextModel] = {
    "llama": _TextModel("LlamaForCausalLM", _sizes(32_000, 4096, 11_008, 32, 32, 2048)),
    "mistral": _TextModel("MistralForCausalLM", _sizes(32_000, 4096, 14_336, 32, 32, 131_072, num_key_value_heads=8)),
    "qwen2": _TextModel("Qwen2ForCausalLM", _sizes(151_936, 4096, 22_016, 32, 32, 32_768, num_key_value_heads=32)),
    "qwen3": _TextModel("Qwen3ForCausalLM", _QWEN3),
    "qwen2_vl_text": _TextModel("Qwen2ForCausalLM", _QWEN2_VL),
    "qwen2_5_vl_text": _TextModel("Qwen2ForCausalLM", _QWEN2_VL),
    "qwen3_vl_text": _TextModel(
        "Qwen3ForCausalLM", {**_QWEN3, "max_position_embeddings": 128_000, "rope_theta": 500_000.0}
    ),
    "gemma3_text": _TextModel("Gemma3ForCausalLM", _sizes(262_208, 2304, 9216, 26, 8, 131_072, num_key_value_heads=4)),
}
_VISION = ("vision_tower.", "multi_modal_projector.", "image_newline")
_PREFIXES_OF_IDEFICS = (("model.text_model.", "model."),)


def _with_vision(
    towers: tuple[str, ...], text_type: str, prefixes: tuple[tuple[str, str], ...] = _PREFIXES
) -> TextPart:
    return TextPart("the vision tower and its projector", "images", towers, text_type, prefixes)


def _with_audio(text_type: str) -> TextPart:
    towers = ("audio_tower.", "multi_modal_projector.")
    return TextPart("the audio tower and its projector", "audio inputs", towers, text_type)


_IDEFICS = _with_vision(("vision_model.", "connector."), "llama", _PREFIXES_OF_IDEFICS)
TEXT_PARTS: Mapping[str, TextPart] = {
    "Gemma3ForConditionalGeneration": _with_vision(_VISION, "gemma3_text"),
    "Idefics3ForConditionalGeneration": _IDEFICS,
    "InternVLForConditionalGeneration": _with_vision(_VISION, "qwen2"),
    "LlavaForConditionalGeneration": _with_vision(_VISION, "llama"),
    "LlavaNextForConditionalGeneration": _with_vision(_VISION, "llama"),
    "LlavaOnevisionForConditionalGeneration": _with_vision(_VISION, "qwen2"),
    "Mistral3ForConditionalGeneration": _with_vision(_VISION, "mistral"),
    "Qwen2AudioForConditionalGeneration": _with_audio("qwen2"),
    "Qwen2VLForConditionalGeneration": _with_vision(("visual.",), "qwen2_vl_text"),
    "Qwen2_5_VLForConditionalGeneration": _with_vision(("visual.",), "qwen2_5_vl_text"),
    "Qwen3VLForConditionalGeneration": _with_vision(("visual.",), "qwen3_vl_text"),
    "SmolVLMForConditionalGeneration": _IDEFICS,
    "VipLlavaForConditionalGeneration": _with_vision(_VISION, "llama"),
    "VoxtralForConditionalGeneration": _with_audio("llama"),
}


def find_text_part(architectures: list[str]) -> TextPart | None:
    return next((TEXT_PARTS[name] for name in architectures if name in TEXT_PARTS), None)


def text_fields(part: TextPart, config: Fields) -> Fields:
    """Returns config.json as that of the language model alone, with its class as the only one of `architectures`.

    Raises ModelError if Quire cannot run the language model."""
    outer, nested = config.values, config.nested("text_config")
    # Early checkpoints of Qwen2-VL have the language model's values beside the vision tower's.
    inner = Fields(outer, config.where) if nested is None else nested
    kind = part.text_type if nested is None else inner.text("model_type", part.text_type)
    text = _find_text_model(kind)
    if text is None:
        refuse_unsupported_type(inner)
        raise ModelError(f"{config.where}: its language model is {kind}, which is not supported")
    values = {**text.defaults, **inner.values}
    if outer.get("eos_token_id") is not None:
        values["eos_token_id"] = outer["eos_token_id"]
    if dtype := outer.get("dtype") or outer.get("torch_dtype"):
        values["dtype"] = dtype
    for key in ("quantization_config", "compression_config"):
        if outer.get(key):
            values[key] = outer[key]
        if values.get(key):
            values[key] = _own_names(part, values[key])
    tied = [level["tie_word_embeddings"] for level in (outer, inner.values) if "tie_word_embeddings" in level]
    if tied:
        values["tie_word_embeddings"] = next((value for value in tied if value), tied[0])
    return Fields({**values, "architectures": [text.architecture]}, inner.where)


def _find_text_model(kind: str) -> _TextModel | None:
    """`kind`: transformers' name of the language model's type."""
    if kind in _TEXT_MODELS:
        return _TEXT_MODELS[kind]
    # The name of a class has the letters of its type.
    letters = kind.removesuffix("_text").replace("_", "")
    names = (name for name in DECODERS if name.removesuffix("ForCausalLM").lower() == letters)
    return next((_TextModel(name) for name in names), None)


def _own_names(part: TextPart, settings: Any) -> Any:
    """Returns quantization settings with the names of layers that the language model alone has."""
    if isinstance(settings, Mapping):
        return {_own_names(part, key): _own_names(part, value) for key, value in settings.items()}
    if isinstance(settings, list):
        return [_own_names(part, value) for value in settings]
    if not isinstance(settings, str):
        return settings
    for prefix, own in part.prefixes:
        # A name can be that of a whole module, such as `language_model.lm_head`. A regular expression can escape dots.
        stored = re.escape(prefix.removesuffix(".")).replace(r"\.", r"\\?\.")
        settings = re.sub(rf"^((re:)?\^?){stored}(?=\\?\.|$)", rf"\g<1>{own.removesuffix('.')}", settings)
    return settings
