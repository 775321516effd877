"""The GPU benchmark: `python -m benchmarks.gpu PART`, or `make bench-gpu` for all parts.

It runs from a bare source tree, without a network. It imports only torch, Triton, transformers, safetensors,
tokenizers, numpy, grpcio and protobuf. Each part first measures the device's ceilings in its own process, so that every
figure can be compared with the limits of the same device at the same time.
"""
