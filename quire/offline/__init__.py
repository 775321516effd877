"""Work without a server: `LLM` starts a stack of its own for the answers to many prompts, and stops it."""
