"""The language models inside models that take images or audio, too. Quire serves their text alone.

Their config.json nests the language model's values, mostly in `text_config`. Their tensors have a prefix before the
names that the language model gives them. The tensors of towers and projectors are never read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from services.worker.errors import ModelError
from services.worker.fields import Fields
from services.worker.models.text_models import find_text_model
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
    config_key: str = "text_config"  # where config.json has the language model's values
    prefixes: tuple[tuple[str, str], ...] = _PREFIXES
    # Whether `text_config` alone cannot tie the embeddings. transformers 5 writes a default there that means nothing.
    ties_outside: bool = False

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


_VISION = ("vision_tower.", "multi_modal_projector.", "image_newline")


def _with_vision(towers: tuple[str, ...], text_type: str, **others: Any) -> TextPart:
    return TextPart("the vision tower and its projector", "images", towers, text_type, **others)


def _with_audio(text_type: str) -> TextPart:
    towers = ("audio_tower.", "multi_modal_projector.")
    return TextPart("the audio tower and its projector", "audio inputs", towers, text_type)


_IDEFICS = _with_vision(("vision_model.", "connector."), "llama", prefixes=(("model.text_model.", "model."),))
_GEMMA4 = TextPart(
    "the vision and audio towers and their projectors",
    "images and audio inputs",
    ("vision_tower.", "audio_tower.", "embed_vision.", "embed_audio.", "vision_embedder."),
    "gemma4_text",
)
TEXT_PARTS: Mapping[str, TextPart] = {
    "Gemma3ForConditionalGeneration": _with_vision(_VISION, "gemma3_text"),
    "Gemma4ForConditionalGeneration": _GEMMA4,
    "Gemma4UnifiedForConditionalGeneration": replace(_GEMMA4, text_type="gemma4_unified_text"),
    "Idefics3ForConditionalGeneration": _IDEFICS,
    "InternVLChatModel": _with_vision(("vision_model.", "mlp1."), "qwen2", config_key="llm_config"),
    "InternVLForConditionalGeneration": _with_vision(_VISION, "qwen2"),
    "Llama4ForConditionalGeneration": _with_vision(("vision_model.", "multi_modal_projector."), "llama4_text"),
    "LlavaForConditionalGeneration": _with_vision(_VISION, "llama"),
    "LlavaNextForConditionalGeneration": _with_vision(_VISION, "llama"),
    "LlavaOnevisionForConditionalGeneration": _with_vision(_VISION, "qwen2"),
    "Mistral3ForConditionalGeneration": _with_vision(_VISION, "mistral"),
    "Qwen2AudioForConditionalGeneration": _with_audio("qwen2"),
    "Qwen2VLForConditionalGeneration": _with_vision(("visual.",), "qwen2_vl_text"),
    "Qwen2_5_VLForConditionalGeneration": _with_vision(("visual.",), "qwen2_5_vl_text"),
    "Qwen3VLForConditionalGeneration": _with_vision(("visual.",), "qwen3_vl_text", ties_outside=True),
    "Qwen3VLMoeForConditionalGeneration": _with_vision(("visual.",), "qwen3_vl_moe_text", ties_outside=True),
    "SmolVLMForConditionalGeneration": _IDEFICS,
    "VipLlavaForConditionalGeneration": _with_vision(_VISION, "llama"),
    "VoxtralForConditionalGeneration": _with_audio("llama"),
}


def find_text_part(architectures: list[str]) -> TextPart | None:
    return next((TEXT_PARTS[name] for name in architectures if name in TEXT_PARTS), None)


def text_fields(part: TextPart, config: Fields) -> Fields:
    """Returns config.json as that of the language model alone, with its class as the only one of `architectures`.

    Raises ModelError if Quire cannot run the language model."""
    outer, nested = config.values, config.nested(part.config_key)
    # Early checkpoints of Qwen2-VL have the language model's values beside the vision tower's.
    inner = Fields(outer, config.where) if nested is None else nested
    kind = part.text_type if nested is None else inner.text("model_type", part.text_type)
    text = find_text_model(kind)
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
    is_tied = outer.get("tie_word_embeddings")
    if is_tied or (part.ties_outside and is_tied is not None):
        values["tie_word_embeddings"] = is_tied
    return Fields({**values, "architectures": [text.architecture]}, inner.where)


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
