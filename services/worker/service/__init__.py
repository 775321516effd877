"""WorkerService: plans in, results out, and the thread between them that loads the model and runs its steps.

Imports no torch.
"""

from services.worker.service.servicer import WorkerServicer
from services.worker.service.step_log import StepLog
from services.worker.service.step_thread import StepCounters, StepThread

__all__ = ["StepCounters", "StepLog", "StepThread", "WorkerServicer"]
