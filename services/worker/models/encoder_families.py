"""Differences between families of encoders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EncoderFamily:
    prefix: str  # prefix of the encoder's tensor names in checkpoints that also contain a head
    # Whether the first token has row pad_token_id + 1 of the position table instead of row 0.
    positions_after_padding: bool = False


_BERT, _ROBERTA = EncoderFamily("bert."), EncoderFamily("roberta.", positions_after_padding=True)
# The classes of a family differ only in the head that the checkpoint was saved with. Embeddings do not use the head.
ENCODERS: Mapping[str, EncoderFamily] = {
    "BertModel": _BERT,
    "BertForMaskedLM": _BERT,
    "RobertaModel": _ROBERTA,
    "RobertaForMaskedLM": _ROBERTA,
    "XLMRobertaModel": _ROBERTA,
    "XLMRobertaForMaskedLM": _ROBERTA,
}
