"""Ollama's API: its bodies, its replies, and how its requests become those that every chat API shares."""

from services.router.apis.ollama.paths import OPERATIONS
from services.router.apis.ollama.servicer import OllamaServicer
from services.router.apis.ollama.writer import ollama_error

__all__ = ["OPERATIONS", "OllamaServicer", "ollama_error"]
