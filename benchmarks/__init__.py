"""Benchmarks. Their torch waits as a worker's does."""

from services.worker.openmp import limit_spinning

limit_spinning()
