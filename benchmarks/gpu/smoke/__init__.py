"""Cases of `python -m benchmarks.gpu smoke`, which runs every kernel and every served shape once. There is one module
per kind of kernel; `serving.py` and `encoder.py` run whole engines."""
