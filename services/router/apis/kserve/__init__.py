"""KServe's Open Inference Protocol: whether the server and its models are alive and ready, and what they are."""
