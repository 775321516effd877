"""`quire bench throughput` and `quire bench latency`: measure a model on this host without a server, as vLLM does."""
