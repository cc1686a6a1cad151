"""Defines one tree of every error that rewardflow raises on purpose.

    RewardflowError
    ├── InvalidInput (also ValueError)   the caller broke a rule; the message gives the rule, then the values
    │   └── RewardLoadError              the reward cannot be found, built or called
    ├── CallError                        raised by reward code: what happened to this one attempt
    │   ├── RateLimited                  "too many requests", with how long to wait if the service said so
    │   ├── ServiceError                 5xx, broken connection; retried unless `retryable=False`
    │   └── Unparsable                   the service answered, but not with a score; retried
    ├── AgentError
    │   ├── AgentClosed                  submitted to an agent that is not open
    │   ├── IncompleteGroup              a group lacks rollouts that nobody will submit; the message names them
    │   └── AgentHalted                  the agent stopped sending; carries the groups it could not finish
    │       ├── ServiceOutage            the service stayed down longer than `outage_give_up_s`
    │       ├── BudgetExhausted          the next call could pass `max_cost_usd`
    │       ├── SharedAgentGone          the agent of several runs was stopped, or stayed unreachable
    │       └── JournalWriteFailed       (also JournalError) the disk is full or gone, or somebody removed the file
    ├── FlowError                        generator or trainer broke what the loop relies on
    ├── NothingScored                    every verdict of several steps failed, so the run would train on nothing
    ├── ClusterError                     a process of a run on a cluster failed or went away
    ├── CheckpointError                  a checkpoint cannot be written or read
    └── JournalError
        ├── NotAJournal                  the file is something else
        ├── NewerJournal                 written by a later rewardflow
        ├── DamagedWal                   its `-wal` changed on disk, and SQLite would drop a part of it
        └── JournalLocked                another process holds it; the message names it

A bad rollout is data (a failed `Reward`); these errors are for mistakes and for runs that cannot go on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from rewardflow.types import ScoredGroup


class RewardflowError(Exception):
    """The base class of the tree. The text of an error holds no secret value that the process knows."""

    without_secrets: ClassVar[Callable[[str], str]] = staticmethod(str)  # `observe.redact` puts its redactor here

    def __str__(self) -> str:
        return RewardflowError.without_secrets(super().__str__())


class InvalidInput(RewardflowError, ValueError):
    """The caller broke a rule; nothing was sent."""


class RewardLoadError(InvalidInput):
    """The reward cannot be found, built or called."""


class CallError(RewardflowError):
    """Reward code raises this to say what happened to the attempt."""


class RateLimited(CallError):
    """The service asked us to slow down. `headers` may carry Retry-After and x-ratelimit-*."""

    def __init__(
        self,
        message: str = "too many requests",
        *,
        retry_after_s: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.headers = headers

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, {"retry_after_s": self.retry_after_s, "headers": self.headers})


class ServiceError(CallError):
    """The service failed. `retryable=False` says that asking again cannot help.

    `was_sent=False` says that the service never got the request, so that it cannot charge for it.
    """

    def __init__(
        self,
        message: str = "service error",
        *,
        status: int | None = None,
        retryable: bool = True,
        retry_after_s: float | None = None,
        was_sent: bool = True,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.retryable = retryable
        self.retry_after_s = retry_after_s
        self.was_sent = was_sent

    def __reduce__(self) -> tuple[Any, ...]:
        names = ("status", "retryable", "retry_after_s", "was_sent")
        return _rebuild, (type(self), self.args, {name: getattr(self, name) for name in names})


class Unparsable(CallError):
    """The service answered, but no score could be read from the answer."""

    def __init__(self, message: str = "unparsable answer", *, retryable: bool = True) -> None:
        super().__init__(message)
        self.retryable = retryable

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, {"retryable": self.retryable})


def _rebuild(cls: type[CallError], args: tuple[Any, ...], fields: dict[str, Any]) -> CallError:
    """Rebuilds a pickled error: pickle alone loses keyword-only fields, and these errors travel between processes."""
    return cls(*args, **fields)


class AgentError(RewardflowError):
    """The agent cannot do what was asked."""


class AgentClosed(AgentError):
    """The agent is not open."""


class IncompleteGroup(AgentError, InvalidInput):
    """A group lacks rollouts that nobody will submit."""


class AgentHalted(AgentError):
    """The agent stopped sending. `groups` holds the unfinished groups with failed rewards, so nothing is lost."""

    def __init__(self, message: str, groups: Sequence[ScoredGroup] = ()) -> None:
        super().__init__(message)
        self.groups = tuple(groups)


class ServiceOutage(AgentHalted):
    """The service stayed down longer than `outage_give_up_s`."""


class BudgetExhausted(AgentHalted):
    """The next call could pass `max_cost_usd`."""


class SharedAgentGone(AgentHalted):
    """The shared agent was stopped, or could not be reached for too long."""


class FlowError(RewardflowError):
    """A generator or trainer broke a rule that the loop relies on; continuing would train on wrong data."""


class NothingScored(RewardflowError):
    """Every verdict of several steps in a row failed; going on would pay and train nothing."""


class ClusterError(RewardflowError):
    """A process of a run on a cluster failed or went away, which ends the run."""


class CheckpointError(RewardflowError):
    """A checkpoint cannot be written or read; earlier checkpoints are unchanged."""


class JournalError(RewardflowError):
    """The journal cannot be used."""


class NotAJournal(JournalError):
    """The file is something else."""


class NewerJournal(JournalError):
    """The file was written by a later rewardflow."""


class DamagedWal(JournalError):
    """The `-wal` beside the file changed on disk, and SQLite would drop a part of it."""


class JournalLocked(JournalError):
    """Another process holds the file."""


class JournalWriteFailed(JournalError, AgentHalted):
    """Verdicts could not be saved, so the agent stopped sending. `groups` holds verdicts as for any halt."""
