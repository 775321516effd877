"""Reads an embedding model's prompts: texts in front of what is embedded, one for each purpose of a vector.

A sentence-transformers directory has them in config_sentence_transformers.json: `prompts` maps their names, such as
"query", to the texts, and `default_prompt_name` names the one for texts whose purpose is not given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.worker.errors import ModelError
from services.worker.fields import Fields, is_unicode
from services.worker.json_files import read_json
from services.worker.pooling.config import PoolingConfig, PoolingKind

# Published models have up to a prompt per task of a benchmark, each of a few hundred characters. The worker sends all
# prompts in its first message, so all names and texts together are bounded, too.
MAX_PROMPTS = 1024
MAX_PROMPT_NAME_CHARS = 256
MAX_PROMPT_CHARS = 4096
MAX_ALL_PROMPTS_BYTES = 524_288
# sentence-transformers gives every model these prompts. They are empty unless the file has them.
_ALWAYS_THERE = ("query", "document")


@dataclass(frozen=True, slots=True)
class EmbeddingPrompts:
    # Pairs of a name and the text in front of what is embedded, in the order of the file.
    texts: tuple[tuple[str, str], ...] = ()
    # Name of the prompt for a text without a purpose; None: such a text gets none.
    default_name: str | None = None


def read_prompts(path: Path, pooling: PoolingConfig) -> EmbeddingPrompts:
    """Returns the model's prompts. `path`: a checkpoint's directory, or a GGUF file, which has none. `pooling`: how the
    model pools. Raises ModelError if the file is malformed or exceeds a bound above, or if the pooling leaves out the
    tokens of the prompt."""
    if path.is_file():
        return EmbeddingPrompts()
    file = path / "config_sentence_transformers.json"
    config = Fields(read_json(file) or {}, str(file))
    # As in sentence-transformers: prompts of another kind of model, such as a CrossEncoder, are not for embeddings.
    if config.text("model_type", "SentenceTransformer") != "SentenceTransformer":
        return EmbeddingPrompts()
    nested = config.nested("prompts")
    texts = {} if nested is None else _checked(nested.values, config)
    default = config.values.get("default_prompt_name")
    if default is not None and (not isinstance(default, str) or default not in {*texts, *_ALWAYS_THERE}):
        raise config.wrong("default_prompt_name", "null or the name of one of the prompts")
    if any(texts.values()) and not pooling.includes_prompt and pooling.kind is not PoolingKind.LAST:
        raise ModelError(
            f"{path} has prompts and leaves their tokens out of the pooling (include_prompt), which is not supported; "
            f"--pooling-type {pooling.kind.value} takes them in"
        )
    return EmbeddingPrompts(tuple(texts.items()), default if default in texts else None)


def _checked(prompts: Mapping[str, Any], config: Fields) -> dict[str, str]:
    """Returns the prompts; a prompt that is null is empty. Raises ModelError."""
    if len(prompts) > MAX_PROMPTS:
        raise config.wrong("prompts", f"at most {MAX_PROMPTS:,}")
    fields = Fields(prompts, f"{config.where}: prompts")
    texts = {}
    for name in prompts:
        if len(name) > MAX_PROMPT_NAME_CHARS or not is_unicode(name):
            raise ModelError(
                f"{fields.where} has a name of {len(name):,} characters; expected valid Unicode of at most "
                f"{MAX_PROMPT_NAME_CHARS}"
            )
        texts[name] = fields.text(name, "")
        if len(texts[name]) > MAX_PROMPT_CHARS or not is_unicode(texts[name]):
            raise ModelError(
                f"{fields.where} has a text of {len(texts[name]):,} characters; expected valid Unicode of at most "
                f"{MAX_PROMPT_CHARS:,}"
            )
    total = sum(len(name.encode()) + len(text.encode()) for name, text in texts.items())
    if total > MAX_ALL_PROMPTS_BYTES:
        raise ModelError(f"{fields.where} have {total:,} bytes; expected at most {MAX_ALL_PROMPTS_BYTES:,}")
    return texts
