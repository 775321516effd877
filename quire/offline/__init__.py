"""Offline inference: `LLM` starts its own stack, answers many prompts and stops the stack."""
