"""Attention over the paged KV cache: one kernel for rows of one query, one for rows of several."""
