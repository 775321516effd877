"""Constraints on output tokens: checks a request's grammar, bad words, allowed tokens and thinking limit."""

from services.router.constraints.grammar_checker import INVALID_STRUCTURE, TOO_MUCH, grammar_checks
from services.router.constraints.resolution import MAX_BAD_WORDS, check_copies, resolve_constraints
from services.router.constraints.values import AroundStructure, ThinkingLimit, TokenConstraints

__all__ = [
    "INVALID_STRUCTURE",
    "MAX_BAD_WORDS",
    "TOO_MUCH",
    "AroundStructure",
    "ThinkingLimit",
    "TokenConstraints",
    "check_copies",
    "grammar_checks",
    "resolve_constraints",
]
