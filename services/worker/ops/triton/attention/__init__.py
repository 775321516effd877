"""Attention over the paged KV cache: one kernel for rows with one query (decodes), another for rows with several
(prompt chunks)."""
