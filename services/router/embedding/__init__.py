"""Vectors instead of tokens: what every API that asks for embeddings shares."""
