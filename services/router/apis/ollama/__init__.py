"""Ollama's API: its request bodies, its answers, and the conversion of its requests to chat requests."""

from services.router.apis.ollama.paths import OPERATIONS
from services.router.apis.ollama.servicer import OllamaServicer
from services.router.apis.ollama.writer import ollama_error

__all__ = ["OPERATIONS", "OllamaServicer", "ollama_error"]
