"""Conversion between text and token ids: the tokenizer, the detokenizer and stop strings."""

from services.router.text.detokenizer import Vocabulary
from services.router.text.output import TextOutput
from services.router.text.pairs import PairTemplate, TokenPair
from services.router.text.stop_strings import StopMatcher, StopStrings
from services.router.text.threads import INLINE_CHARS, TextThreads
from services.router.text.tokenizer import Tokenizer

__all__ = [
    "INLINE_CHARS",
    "PairTemplate",
    "StopMatcher",
    "StopStrings",
    "TextOutput",
    "TextThreads",
    "TokenPair",
    "Tokenizer",
    "Vocabulary",
]
