"""Attention over the paged KV cache: one kernel for rows of one query, another for rows of several."""
