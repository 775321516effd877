"""Tiny configurations of encoders that a test compares with transformers. See `Case`."""

from __future__ import annotations

from tests.models.case import Case

# `intermediate_size` and others have the values of `tiny.SIZES`.
CASES = [
    Case("bert", mechanism="learned positions, token types and norms after the layers"),
    Case("bert", {"hidden_act": "gelu_new"}, variant="tanh", head="MaskedLM"),
    Case("roberta", {"pad_token_id": 1}, mechanism="positions after padding"),
    Case("xlm-roberta", {"pad_token_id": 1, "type_vocab_size": 1}, head="MaskedLM"),
    Case("camembert", {"pad_token_id": 1, "type_vocab_size": 1}),
    Case("distilbert", {"dim": 64, "hidden_dim": 96, "n_heads": 4, "n_layers": 3}, head="MaskedLM"),
    Case("mpnet", {"pad_token_id": 1}, head="MaskedLM", mechanism="a bias of scores by distance"),
    Case("gte", {"type_vocab_size": 2}, head="MaskedLM"),
    Case("gte", {"type_vocab_size": 0}, variant="no types"),
    Case("nomic_bert", mechanism="rotation, and norms after the layers"),
    Case(
        "modernbert",
        {"local_attention": 20, "num_hidden_layers": 4},
        mechanism="local layers, and a rotation per type of layer",
    ),
    Case(
        "modernbert",
        {"norm_bias": True, "attention_bias": True, "mlp_bias": True, "hidden_activation": "gelu_new"},
        variant="biases",
        head="MaskedLM",
    ),
]

_HEAD = "SequenceClassification"
CLASSIFIERS = [
    Case("bert", {"num_labels": 1}, head=_HEAD, mechanism="a classifier of pairs after BERT's pooler"),
    Case("roberta", {"pad_token_id": 1, "num_labels": 4}, head=_HEAD),
    Case("xlm-roberta", {"pad_token_id": 1, "type_vocab_size": 1, "num_labels": 1}, head=_HEAD),
    Case("camembert", {"pad_token_id": 1, "type_vocab_size": 1}, head=_HEAD),
    Case("distilbert", {"dim": 64, "hidden_dim": 96, "n_heads": 4, "n_layers": 3}, head=_HEAD),
    Case("mpnet", {"pad_token_id": 1}, head=_HEAD),
    Case("gte", {"type_vocab_size": 2, "num_labels": 1}, head=_HEAD),
    Case("modernbert", {"local_attention": 20, "num_hidden_layers": 4, "num_labels": 1}, head=_HEAD),
    Case(
        "modernbert",
        {"norm_bias": True, "classifier_bias": True, "classifier_activation": "relu", "classifier_pooling": "mean"},
        variant="mean",
        head=_HEAD,
        mechanism="a classifier of the mean",
    ),
]
