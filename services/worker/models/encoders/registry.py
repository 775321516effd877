"""All encoders by the name that config.json gives to their architecture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from services.worker.models.encoder_network import EncoderArchitecture
from services.worker.models.encoders import bert, distilbert, gte, modernbert, mpnet, nomic_bert

ENCODERS: Mapping[str, EncoderArchitecture[Any]] = {
    **bert.ARCHITECTURES,
    **distilbert.ARCHITECTURES,
    **gte.ARCHITECTURES,
    **modernbert.ARCHITECTURES,
    **mpnet.ARCHITECTURES,
    **nomic_bert.ARCHITECTURES,
}
