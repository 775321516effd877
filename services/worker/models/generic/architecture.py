"""The decoders of transformers that run here, and how their configuration is read."""

from __future__ import annotations

from services.worker.errors import ModelError
from services.worker.fields import MAX_HEADS, MAX_POSITIONS, MAX_SIZE, MAX_VOCAB_SIZE, Fields
from services.worker.models.build import Build
from services.worker.models.generic.config import GenericConfig
from services.worker.models.generic.proven import PROVEN
from services.worker.models.network import Architecture, Network
from services.worker.models.unsupported_types import letters, refuse_unsupported_type

# Upper bounds of values that decide how many modules and weights transformers makes, by the words in their names. It
# takes milliseconds for each layer and each expert, so these bounds are lower than those of Quire's own networks. The
# first word that fits counts.
_BOUNDS = {
    "vocab": MAX_VOCAB_SIZE, "size": MAX_SIZE, "layer": 512, "expert": 1024, "head": MAX_HEADS,
    "position": MAX_POSITIONS,
}  # fmt: skip
_ATTENTION_LAYERS = {"full_attention", "sliding_attention", "chunked_attention"}


def find_generic(architecture: str, config: Fields, *, only_proven: bool) -> Architecture[GenericConfig] | None:
    """Returns how to run a decoder that transformers has; None for others. `only_proven`: only those that are proven to
    be exact."""
    model_type = config.text("model_type", "")
    if model_type in PROVEN:
        # Some were published under another spelling than transformers', such as PhiMoEForCausalLM.
        return _GENERIC if letters(PROVEN[model_type]) == letters(architecture) else None
    if only_proven:
        return None
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return _GENERIC if MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(model_type) == architecture else None


def read(architecture: str, config: Fields) -> GenericConfig:
    """Raises ModelError for a configuration that transformers or Quire's attention refuses."""
    refuse_unsupported_type(config)
    for name, value in config.values.items():
        if isinstance(value, int) and not isinstance(value, bool):
            high = next((bound for word, bound in _BOUNDS.items() if word in name), MAX_SIZE)
            if not -1 <= value <= high:
                raise config.wrong(name, f"an integer from -1 to {high:,}")
    from services.worker.models.generic.skeleton import Skeleton

    skeleton = Skeleton(config.values, config.where)
    layers = set(getattr(skeleton.config, "layer_types", None) or ()) - _ATTENTION_LAYERS
    if layers or skeleton.is_stateful:
        kind = f"layers of type {min(layers)}" if layers else "layers with a recurrent state"
        raise ModelError(f"{config.where}: {architecture} has {kind}, which are not supported")
    return GenericConfig(
        vocab_size=skeleton.config.vocab_size,
        hidden_size=skeleton.config.hidden_size,
        intermediate_size=getattr(skeleton.config, "intermediate_size", None) or 4 * skeleton.config.hidden_size,
        max_model_len=skeleton.max_positions,
        tie_word_embeddings=skeleton.is_tied,
        model_type=skeleton.config.model_type,
        where=config.where,
        values=config.values,
        trial=skeleton.try_out(),
    )


def create(config: GenericConfig, build: Build) -> Network:
    from services.worker.models.generic.network import Generic

    return Generic(config, build)


_GENERIC = Architecture(read, create, "transformers' code on Quire's KV cache")
