"""The paged KV cache: how many blocks fit, the tensors they are in, and copies between device and host."""
