"""Reads a classifier's labels from config.json, and how its outputs become scores."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from services.worker.errors import ModelError
from services.worker.fields import Fields, is_unicode

MAX_LABELS = 1 << 16
# Of all labels together. Schedulers and routers get them in one message of at most 1 MiB, in which each has a prefix of
# up to 4 bytes.
MAX_LABEL_BYTES = 3 << 18


class ScoreActivation(Enum):
    """From a classifier's outputs to scores."""

    NONE = "none"
    SIGMOID = "sigmoid"  # each label by itself
    SOFTMAX = "softmax"  # one label of all


@dataclass(frozen=True, slots=True)
class ClassifierConfig:
    labels: tuple[str, ...]  # of the outputs, in their order
    activation: ScoreActivation


def is_classifier(architecture: str) -> bool:
    return architecture.endswith("ForSequenceClassification")


def read_num_labels(architecture: str, config: Fields) -> int:
    """Returns the number of a classifier's outputs; 0 for other models."""
    return len(_read_labels(config)) if is_classifier(architecture) else 0


def read_classifier(architecture: str, config: Fields) -> ClassifierConfig | None:
    """Returns None for a model that is no classifier. Raises ModelError for an activation that is not supported."""
    if not is_classifier(architecture):
        return None
    labels = _read_labels(config)
    return ClassifierConfig(labels, _read_activation(config, len(labels)))


def _read_labels(config: Fields) -> tuple[str, ...]:
    named = config.nested("id2label")
    if named is not None and len(named.values) > MAX_LABELS:
        raise config.wrong("id2label", f"at most {MAX_LABELS:,} labels")
    num_labels = config.count("num_labels", MAX_LABELS, 2 if named is None else len(named.values))
    if named is None or len(named.values) != num_labels:
        return tuple(f"LABEL_{index}" for index in range(num_labels))  # as transformers names them
    labels = tuple(str(named.values.get(str(index), "")) for index in range(num_labels))
    if any(str(index) not in named.values for index in range(num_labels)):
        raise config.wrong("id2label", f"a label for each number from 0 to {num_labels - 1:,}")
    if not all(map(is_unicode, labels)):
        raise config.wrong("id2label", "labels that are valid Unicode")
    if sum(len(label.encode()) for label in labels) > MAX_LABEL_BYTES:
        raise config.wrong("id2label", f"at most {MAX_LABEL_BYTES:,} bytes in all labels together")
    return labels


def _read_activation(config: Fields, num_labels: int) -> ScoreActivation:
    """sentence-transformers names a class of torch. transformers names the problem that the model was trained for. If
    neither is given, a single output is a probability, and several are those of one label each."""
    named = config.nested("sentence_transformers")
    fields, key = (config, "sbert_ce_default_activation_function")
    if named is not None and named.values.get("activation_fn") is not None:
        fields, key = named, "activation_fn"
    if fields.values.get(key) is not None:
        name = fields.text(key, "")
        if name not in _TORCH_CLASSES:
            raise ModelError(f"{fields.where}: {key} is {name}, which is not supported")
        return _TORCH_CLASSES[name]
    default = ScoreActivation.SIGMOID if num_labels == 1 else ScoreActivation.SOFTMAX
    problem = config.text("problem_type", "")
    if problem not in _PROBLEMS:
        raise config.wrong("problem_type", "regression, single_label_classification or multi_label_classification")
    return _PROBLEMS[problem] or default


_TORCH_CLASSES = {
    "torch.nn.modules.linear.Identity": ScoreActivation.NONE,
    "torch.nn.modules.activation.Sigmoid": ScoreActivation.SIGMOID,
    "torch.nn.modules.activation.Softmax": ScoreActivation.SOFTMAX,
    "torch.nn.Identity": ScoreActivation.NONE,
    "torch.nn.Sigmoid": ScoreActivation.SIGMOID,
    "torch.nn.Softmax": ScoreActivation.SOFTMAX,
}
_PROBLEMS = {
    "": None,
    "regression": ScoreActivation.NONE,
    "single_label_classification": None,
    "multi_label_classification": ScoreActivation.SIGMOID,
}
