"""The core of the scheduler: makes all decisions, without sockets, clocks or tensors.

The code around the core is called the shell. The shell has one `Scheduler` object (`scheduler.py`) per worker group. It
passes requests and results to this object, and gets steps from it. The core's classes are generic over the request
(`request.py`): a request can have further fields for the shell, which the core does not read.

`step_builder.py` builds a step from decodes, chunks of prompts and sequences that start (`admission.py`). A decode that
finds no free block preempts a sequence (`preemption.py`), and `budget.py` limits the chunks. `outcome.py` applies the
result of a step; `losses.py` handles sequences whose worker is lost, `trials.py` runs those alone that might have
crashed it, and `spread.py` gives them to other groups. These modules use `roster.py` (the place of every sequence:
waiting, set aside, running), `waiting.py` (the order of the queue), `turns.py` (fairness among requests),
`preparations.py` (grammars that workers compile beside their steps), `pacing.py` (estimates of step times), and
`kv_memory.py` with `block_pool.py`, `prefix_cache.py`, `content.py` and `host_pool.py` (where keys and values are
stored).
"""

from services.scheduler.core.config import CoreConfig, PreemptionMode
from services.scheduler.core.content import Content
from services.scheduler.core.counters import STEP_TOKENS, Counters
from services.scheduler.core.kv_memory import Moves
from services.scheduler.core.outcome import FinishedSequence, StepOutcome
from services.scheduler.core.pacing import RunAhead, TurnRate, pairs
from services.scheduler.core.plan import U32, NewSequence, PromptLogprobs, Rows, StepPlan, StepResult
from services.scheduler.core.request import Generate, Pool, Preparation, RequestT, SequenceRequest, Work
from services.scheduler.core.scheduler import RefusedError, Scheduler
from services.scheduler.core.sequence import EXIT_ALONE, ErrorKind, Failure, FinishReason, Sequence
from services.scheduler.core.spread import share_out

__all__ = [
    "EXIT_ALONE",
    "STEP_TOKENS",
    "U32",
    "Content",
    "CoreConfig",
    "Counters",
    "ErrorKind",
    "Failure",
    "FinishReason",
    "FinishedSequence",
    "Generate",
    "Moves",
    "NewSequence",
    "Pool",
    "PreemptionMode",
    "Preparation",
    "PromptLogprobs",
    "RefusedError",
    "RequestT",
    "Rows",
    "RunAhead",
    "Scheduler",
    "Sequence",
    "SequenceRequest",
    "StepOutcome",
    "StepPlan",
    "StepResult",
    "TurnRate",
    "Work",
    "pairs",
    "share_out",
]
