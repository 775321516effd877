"""`quire bench throughput` and `quire bench latency`: a model on this host without a server, as vLLM measures one."""
