"""Load on a server that speaks OpenAI's API, and figures of its answers as `vllm bench serve` defines them."""
