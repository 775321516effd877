"""Every kernel and every served shape once: `python -m benchmarks.gpu smoke`. A module per kind of kernel, with the
cases that it is run for, and `serving.py` with whole engines."""
