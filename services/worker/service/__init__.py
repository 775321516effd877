"""The gRPC service of a worker: receives plans, returns results, and owns the thread that loads and runs the model.

Imports no torch.
"""

from services.worker.service.servicer import WorkerServicer
from services.worker.service.step_log import StepLog
from services.worker.service.step_thread import StepCounters, StepThread

__all__ = ["StepCounters", "StepLog", "StepThread", "WorkerServicer"]
