"""Benchmarks. Idle threads of torch spin as briefly as in a worker."""

from services.worker.openmp import limit_spinning

limit_spinning()
