"""The worker's kernels for NVIDIA GPUs, in Triton."""
