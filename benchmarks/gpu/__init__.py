"""The GPU's benchmark: `python -m benchmarks.gpu PART`, or `make bench-gpu` for all parts.

It runs from a bare source tree, without a network: torch, Triton, transformers, safetensors, tokenizers, numpy, grpcio
and protobuf are all that it imports. Each part measures the device's ceilings first, in its own process, so that every
figure stands beside what that very device could do at that very time.
"""
