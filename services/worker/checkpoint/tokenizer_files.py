"""Reads the tokenizer of a model, in the serialized form that is sent to routers."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quire.inference.v1 import model_pb2
from services.worker.errors import ModelError
from services.worker.json_files import MAX_TOKENIZER_BYTES, read_file, read_json, read_text, refuse_pointer

CHUNK_BYTES = 512 * 1024
# A text of letters, digits, spaces and signs of several scripts, so that all parts of a tokenizer run.
_SAMPLE = "A sample, 123.\n  Grüße! 你好 👋\t<s>"
_GENERAL_CLASSES = ("", "PreTrainedTokenizer", "TokenizersBackend")


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """A serialized TokenizerBundle and its sha256 in hex."""

    data: bytes
    sha256: str

    @property
    def tokenizer_json(self) -> bytes:
        return model_pb2.TokenizerBundle.FromString(self.data).tokenizer_json

    def chunks(self) -> list[bytes]:
        return [self.data[start : start + CHUNK_BYTES] for start in range(0, len(self.data), CHUNK_BYTES)]


def read_tokenizer(path: Path, chat_template: str | None = None, *, has_pairs: bool = False) -> TokenizerFiles:
    """Reads the tokenizer of a model directory or a GGUF file. `chat_template` replaces the model's chat template.
    `has_pairs`: whether requests can have pairs of texts. Raises ModelError if there is no tokenizer that can be read
    or converted to tokenizer.json."""
    tokenizer, config = _from_gguf(path) if path.suffix == ".gguf" else _from_directory(path)
    _check(path if path.suffix == ".gguf" else path / "tokenizer.json", tokenizer)
    if chat_template is not None:
        config["chat_template"] = chat_template
    if has_pairs and "model_input_names" not in config and (names := _input_names(config)) is not None:
        config["model_input_names"] = names
    try:
        config_json = json.dumps(config, ensure_ascii=False, sort_keys=True).encode()
    except ValueError as error:  # a lone surrogate, which JSON can escape but UTF-8 cannot encode
        raise ModelError(f"the tokenizer's configuration in {path} is not valid Unicode: {error}") from error
    bundle = model_pb2.TokenizerBundle(tokenizer_json=tokenizer, tokenizer_config_json=config_json)
    data = bundle.SerializeToString(deterministic=True)
    return TokenizerFiles(data, hashlib.sha256(data).hexdigest())


def _input_names(config: dict[str, Any]) -> list[str] | None:
    """Returns the names of the inputs that the tokenizer's class makes for a model. None for a class that all kinds of
    tokenizers share: tokenizer.json alone then decides whether the texts of a pair have different token types."""
    from transformers.models.auto.tokenization_auto import tokenizer_class_from_name

    name = str(config.get("tokenizer_class", "")).removesuffix("Fast")
    kind: Any = None if name in _GENERAL_CLASSES else tokenizer_class_from_name(name)
    # transformers also finds classes that are no tokenizers.
    names = getattr(kind, "model_input_names", None)
    return None if names is None else list(names)


def _check(path: Path, tokenizer_json: bytes) -> None:
    """Raises ModelError if the tokenizers library cannot read or use the tokenizer, or if the tokenizer has no tokens.
    The worker checks this at its start, where its operator sees the error. A router that found the error could only
    wait for another worker."""
    from tokenizers import Tokenizer

    with _explained(f"{path} is no tokenizer"):
        tokenizer = Tokenizer.from_str(tokenizer_json.decode())
    # An error may be about this text: some tokenizers have no token for unknown characters. A panic is not.
    with _explained(f"{path} is a tokenizer that fails on a text"), suppress(Exception):
        tokenizer.decode(tokenizer.encode(_SAMPLE).ids)
    if not tokenizer.get_vocab_size():
        raise ModelError(f"{path} is a tokenizer without tokens")


def _config(directory: Path) -> dict[str, Any]:
    """Returns the values of tokenizer_config.json, with those of special_tokens_map.json and with the templates of
    chat_template.jinja and additional_chat_templates/. Raises ModelError if a file cannot be read."""
    path = directory / "tokenizer_config.json"
    config = read_json(path) or {}
    for name, token in (read_json(directory / "special_tokens_map.json") or {}).items():
        config.setdefault(name, token)
    template = read_text(directory / "chat_template.jinja")
    if template is not None:
        config["chat_template"] = template
    _check_template(path, config.get("chat_template"))
    further = sorted((directory / "additional_chat_templates").glob("*.jinja"))
    if further:
        config["chat_template"] = _named_templates(config.get("chat_template"), further)
    return config


def _named_templates(known: str | list[dict[str, str]] | None, further: list[Path]) -> list[dict[str, str]]:
    """Returns the templates of `known` and of the files `further`, in the form of tokenizer_config.json. If `known` is
    a single template, it gets the name "default". A file's template gets the file's stem as its name, and replaces a
    template of the same name in `known`."""
    named = {entry["name"]: entry["template"] for entry in known} if isinstance(known, list) else {}
    if isinstance(known, str) and known:
        named["default"] = known
    named |= {path.stem: read_text(path) or "" for path in further}
    return [{"name": name, "template": template} for name, template in named.items()]


def _check_template(path: Path, template: object) -> None:
    """Raises ModelError if `template` is neither a string, nor a list of named strings, nor None. Does not check
    whether a template parses (routers do that), because a model with a broken template can still complete texts."""
    named = template if isinstance(template, list) else []
    is_list = isinstance(template, list) and all(
        isinstance(entry, dict) and isinstance(entry.get("name"), str) and isinstance(entry.get("template"), str)
        for entry in named
    )
    if not (template is None or isinstance(template, str) or is_list):
        raise ModelError(f"{path}: chat_template is neither a template nor a list of named templates")


def _from_directory(directory: Path) -> tuple[bytes, dict[str, Any]]:
    """Returns tokenizer.json and the configuration. If there is no tokenizer.json, makes it from another format such as
    sentencepiece. Raises ModelError if that fails."""
    config = _config(directory)
    if (tokenizer := read_file(directory / "tokenizer.json", MAX_TOKENIZER_BYTES)) is not None:
        return tokenizer, config
    for path in sorted((*directory.glob("*.model"), *directory.glob("*.tiktoken"), *directory.glob("*.txt"))):
        refuse_pointer(path)
    with _explained(f"{directory} has no tokenizer.json, and none can be made from its other files"):
        from transformers import AutoTokenizer

        return _saved(AutoTokenizer.from_pretrained(directory, trust_remote_code=False))[0], config


def _from_gguf(file: Path) -> tuple[bytes, dict[str, Any]]:
    """Returns tokenizer.json and the tokenizer's configuration, both built from the metadata of the GGUF file."""
    with _explained(f"no tokenizer can be built from the metadata of {file}"):
        from transformers import PreTrainedTokenizerFast

        return _saved(PreTrainedTokenizerFast.from_pretrained(file.parent, gguf_file=file.name))


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Raises ModelError with `what` and the reason if the block fails. The tokenizers library raises plain Exception,
    and where its code panics, PanicException, which is no Exception."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        raise ModelError(f"{what}: {error}") from error


def _saved(tokenizer: Any) -> tuple[bytes, dict[str, Any]]:
    """Returns tokenizer.json and the tokenizer's configuration, as transformers saves them."""
    with tempfile.TemporaryDirectory() as scratch:
        tokenizer.save_pretrained(scratch)
        return (Path(scratch) / "tokenizer.json").read_bytes(), _config(Path(scratch))
