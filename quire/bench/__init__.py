"""Puts load on a server with OpenAI's API, and measures its answers with the metrics of `vllm bench serve`."""
