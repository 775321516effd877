"""Spreads schedulers over workers.

The schedulers that can claim the same workers compare their numbers of workers, two at a time: a scheduler without a
certain worker asks its owner for it. An owner with at least two workers more gives the worker away. Each such move
makes the sum of the squares of all numbers smaller, so the moves come to an end. Then the numbers of any two schedulers
differ by at most one.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Claimant:
    """A scheduler that claims a worker."""

    scheduler_id: str
    # Number of workers that it owns now. None: it takes no part in the balance.
    num_groups: int | None = None
    # Whether it asks the worker's owner for the worker, if there is one. It must ask for one worker at a time:
    # otherwise, several owners could give it a worker each because of the same `num_groups`.
    asks_owner: bool = False
    # Name and version of the model that it serves; empty if it knows none yet.
    model: str = ""
    model_version: str = ""


def gives_away(
    num_groups: int, num_groups_of_contender: int, *, is_draining: bool = False, is_idle: bool = False
) -> bool:
    """Returns whether an owner of `num_groups` workers gives one of them to a contender. `is_draining`: the owner is
    stopping, so it needs no worker without sequences. `is_idle`: this worker has none."""
    return num_groups >= num_groups_of_contender + 2 or (is_draining and is_idle)
