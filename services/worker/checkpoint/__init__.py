"""The model's files: finds them, checks them within milliseconds, and reads tokenizer and configuration.

Imports no torch.
"""

from services.worker.checkpoint.find import find_checkpoint
from services.worker.checkpoint.model_facts import ModelFacts
from services.worker.checkpoint.start_check import check_max_model_len, check_start

__all__ = ["ModelFacts", "check_max_model_len", "check_start", "find_checkpoint"]
