"""The worker groups of a scheduler: the stream to each worker, the loop that keeps plans for the worker in flight, and
the state that the groups share.
"""

from services.scheduler.worker_groups.balance import Claimant
from services.scheduler.worker_groups.claimer import Claimer
from services.scheduler.worker_groups.fleet import Fleet
from services.scheduler.worker_groups.fleet_model import FleetModel
from services.scheduler.worker_groups.worker_group import UnusableWorkerError, WorkerGroup
from services.scheduler.worker_groups.worker_link import WorkerLink, WorkerLostError, WorkerMessage

__all__ = [
    "Claimant",
    "Claimer",
    "Fleet",
    "FleetModel",
    "UnusableWorkerError",
    "WorkerGroup",
    "WorkerLink",
    "WorkerLostError",
    "WorkerMessage",
]
