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
    towers: tuple[str, ...]  # starts of the names of tensors that are not loaded, without a leading `model.`
    text_type: str  # the language model's type if config.json does not give it
    # Where config.json has the language model's values. A path such as `thinker_config.text_config` leads inwards.
    config_key: str = "text_config"
    prefixes: tuple[tuple[str, str], ...] = _PREFIXES
    # Whether only config.json itself can tie the embeddings. transformers 5 also writes a value into `text_config`, but
    # it means nothing.
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


def _with_voice(*towers: str, prefixes: tuple[tuple[str, str], ...], **others: Any) -> TextPart:
    """A model of the Omni family, which also answers with its voice."""
    return TextPart(
        "the vision and audio towers and the voice", "images and audio inputs", towers, "", prefixes=prefixes,
        ties_outside=True, **others,
    )  # fmt: skip


_IDEFICS = _with_vision(("vision_model.", "connector."), "llama", prefixes=(("model.text_model.", "model."),))
_DEEPSEEK_VL = _with_vision(("vision_model.", "aligner.", "high_res_vision_"), "llama")
_KIMI_VL = _with_vision(
    ("vision_tower.", "multi_modal_projector.", "mm_projector."),
    "deepseek_v3",
    # transformers 5 writes `blocks` where the published checkpoints have `layers`.
    prefixes=(("language_model.model.blocks.", "model.layers."), *_PREFIXES),
)
_THINKER = _with_voice("audio_tower.", "visual.", prefixes=_PREFIXES)
_OMNI = _with_voice(
    *(f"thinker.{inside}{tower}." for inside in ("", "model.") for tower in ("audio_tower", "visual")),
    "talker.",
    "token2wav.",
    "code2wav.",
    prefixes=(
        ("thinker.model.language_model.", "model."),
        ("thinker.model.", "model."),
        ("thinker.lm_head.", "lm_head."),
    ),
    config_key="thinker_config.text_config",
)
_GEMMA4 = TextPart(
    "the vision and audio towers and their projectors",
    "images and audio inputs",
    ("vision_tower.", "audio_tower.", "embed_vision.", "embed_audio.", "vision_embedder."),
    "gemma4_text",
)
TEXT_PARTS: Mapping[str, TextPart] = {
    "AriaForConditionalGeneration": _with_vision(_VISION, "aria_text"),
    "AyaVisionForConditionalGeneration": _with_vision(_VISION, "cohere2"),
    "Cohere2VisionForConditionalGeneration": _with_vision(_VISION, "cohere2"),
    "DeepseekVLForConditionalGeneration": _DEEPSEEK_VL,
    "Exaone4_5_ForConditionalGeneration": _with_vision(("visual.",), "exaone4"),
    "Gemma3ForConditionalGeneration": _with_vision(_VISION, "gemma3_text"),
    "Gemma4ForConditionalGeneration": _GEMMA4,
    "Gemma4UnifiedForConditionalGeneration": replace(_GEMMA4, text_type="gemma4_unified_text"),
    "Glm46VForConditionalGeneration": _with_vision(("visual.",), "glm4v_text"),
    "Glm4vForConditionalGeneration": _with_vision(("visual.",), "glm4v_text"),
    "Glm4vMoeForConditionalGeneration": _with_vision(("visual.",), "glm4v_moe_text"),
    "GraniteSpeechForConditionalGeneration": TextPart(
        "the audio encoder and its projector", "audio inputs", ("encoder.", "projector."), "granite"
    ),
    "Idefics2ForConditionalGeneration": replace(_IDEFICS, text_type="mistral"),
    "Idefics3ForConditionalGeneration": _IDEFICS,
    "InternVLChatModel": _with_vision(("vision_model.", "mlp1."), "qwen2", config_key="llm_config"),
    "InternVLForConditionalGeneration": _with_vision(_VISION, "qwen2"),
    "JanusForConditionalGeneration": _with_vision(("vision_model.", "aligner.", "vqmodel.", "generation_"), "llama"),
    "KimiK25ForConditionalGeneration": _KIMI_VL,
    "KimiVLForConditionalGeneration": _KIMI_VL,
    "Kimi_K25ForConditionalGeneration": _KIMI_VL,
    "Llama4ForConditionalGeneration": _with_vision(("vision_model.", "multi_modal_projector."), "llama4_text"),
    "LlavaForConditionalGeneration": _with_vision(_VISION, "llama"),
    "LlavaNextForConditionalGeneration": _with_vision(_VISION, "llama"),
    "LlavaNextVideoForConditionalGeneration": _with_vision(_VISION, "llama"),
    "LlavaOnevisionForConditionalGeneration": _with_vision(_VISION, "qwen2"),
    "Mistral3ForConditionalGeneration": _with_vision(_VISION, "mistral"),
    "Ovis2ForConditionalGeneration": _with_vision(("vision_tower.", "visual_embeddings_table."), "qwen2"),
    "Qwen2AudioForConditionalGeneration": _with_audio("qwen2"),
    "Qwen2VLForConditionalGeneration": _with_vision(("visual.",), "qwen2_vl_text"),
    "Qwen2_5OmniForConditionalGeneration": replace(_OMNI, text_type="qwen2_5_omni_text"),
    "Qwen2_5OmniModel": replace(_OMNI, text_type="qwen2_5_omni_text"),
    "Qwen2_5OmniThinkerForConditionalGeneration": replace(_THINKER, text_type="qwen2_5_omni_text"),
    "Qwen2_5_VLForConditionalGeneration": _with_vision(("visual.",), "qwen2_5_vl_text"),
    "Qwen3OmniMoeForConditionalGeneration": replace(_OMNI, text_type="qwen3_omni_moe_text"),
    "Qwen3OmniMoeThinkerForConditionalGeneration": replace(_THINKER, text_type="qwen3_omni_moe_text"),
    "Qwen3VLForConditionalGeneration": _with_vision(("visual.",), "qwen3_vl_text", ties_outside=True),
    "Qwen3VLMoeForConditionalGeneration": _with_vision(("visual.",), "qwen3_vl_moe_text", ties_outside=True),
    "SmolVLMForConditionalGeneration": _IDEFICS,
    "VideoLlama3ForConditionalGeneration": _with_vision(("vision_model.", "projector."), "qwen2"),
    "VideoLlavaForConditionalGeneration": _with_vision(
        ("image_tower.", "video_tower.", "multi_modal_projector."), "llama"
    ),
    "VipLlavaForConditionalGeneration": _with_vision(_VISION, "llama"),
    "VoxtralForConditionalGeneration": _with_audio("llama"),
}


def find_text_part(architectures: list[str]) -> TextPart | None:
    return next((TEXT_PARTS[name] for name in architectures if name in TEXT_PARTS), None)


def text_fields(part: TextPart, config: Fields) -> Fields:
    """Returns the config.json that the language model alone would have. Its `architectures` name the language model.

    Raises ModelError if Quire cannot run the language model."""
    *around, nested = _path(config, part.config_key)
    outer: Mapping[str, Any] = {}
    for level in around:
        outer = outer if level is None else {**outer, **level.values}
    # Early checkpoints of Qwen2-VL have the language model's values beside the vision tower's.
    inner = config if nested is None else nested
    kind = part.text_type if nested is None else inner.text("model_type", part.text_type)
    text = find_text_model(kind)
    if text is None:
        refuse_unsupported_type(inner)
        raise ModelError(f"{config.where}: its language model is {kind}, which is not supported")
    values = {**text.defaults, "model_type": kind, **inner.values}
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


def _path(config: Fields, keys: str) -> list[Fields | None]:
    """Returns the objects on the way to a nested one, from config.json on; None for those that are missing."""
    found: list[Fields | None] = [config]
    for key in keys.split("."):
        last = found[-1]
        found.append(None if last is None else last.nested(key))
    return found


def _own_names(part: TextPart, settings: Any) -> Any:
    """Returns quantization settings in which layers have the names that the language model alone gives them."""
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
