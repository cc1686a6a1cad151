"""Says which prompts a run validates its policy on, and when.

Always true: a run validates a version of the weights at most once between its start and its end; pass@k always has
enough rollouts, because k never exceeds the rollouts of a prompt.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rewardflow.errors import InvalidInput
from rewardflow.flow.records import GroupRequest, Prompt, Sampling

VALIDATION_SOURCE = "validation"  # the source in totals and metrics, and the start of group ids


@dataclass(frozen=True, slots=True, kw_only=True)
class Occasions:
    """The versions to validate: 0 if `at_start`, every version that `every` divides, and the last if `at_end`."""

    every: int | None = None
    at_start: bool = False
    at_end: bool = True

    def has(self, version: int, num_steps: int) -> bool:
        if version == 0:
            return self.at_start
        return (self.every is not None and version % self.every == 0) or (self.at_end and version == num_steps)

    def versions(self, num_steps: int) -> list[int]:
        return [version for version in range(num_steps + 1) if self.has(version, num_steps)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationPlan:
    """Which prompts to measure, how to sample their responses, and when.

    A score of at least `passes_from` is a pass; `ks` are the k of pass@k.
    """

    prompts: tuple[Prompt, ...]
    sampling: Sampling = field(default_factory=Sampling)
    group_size: int = 1
    occasions: Occasions = Occasions()
    passes_from: float = 1.0
    ks: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.prompts:
            raise InvalidInput("a validation must have at least one prompt, got none")
        if max(self.ks, default=0) > self.group_size:
            raise InvalidInput(
                "k of pass@k must not exceed the rollouts of a prompt, "
                f"got k={max(self.ks)}, rollouts={self.group_size}"
            )

    def due_step(self, version: int, num_steps: int) -> int:
        """Returns the step whose place in the queue a version's reward calls get when slots are scarce.

        Training steps before the next validation go first, later ones do not. So validation never delays a nearer
        step, and endless training cannot postpone validation for ever.
        """
        every = self.occasions.every
        return num_steps if every is None else version + every

    def requests(self, version: int) -> list[GroupRequest]:
        """Gives a prompt the same random numbers at every version, so that versions differ only in their weights."""
        return [
            GroupRequest(
                number=number,
                step=version,
                prompt=prompt,
                group_size=self.group_size,
                sampling=self.sampling,
                prefix=f"{VALIDATION_SOURCE}-",
            )
            for number, prompt in enumerate(self.prompts)
        ]
