"""What a run measures of its policy besides training it, and when.

Always true: a version of the weights is measured at most once in a life of the run; what passes@k need is there,
because k never exceeds the rollouts of a prompt.
"""

from __future__ import annotations

from dataclasses import dataclass

from rewardflow.errors import InvalidInput
from rewardflow.flow.protocols import Generator
from rewardflow.flow.records import GroupRequest, Prompt

VALIDATION_SOURCE = "validation"  # of totals, of metrics, and at the start of group ids


@dataclass(frozen=True, slots=True, kw_only=True)
class Occasions:
    """Version 0 if `at_start`, every version that `every` divides, and the last if `at_end`."""

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
    """`generator` has the weights that the run's generator has, and its own way of sampling.

    A score of at least `passes_from` is a pass; `ks` are the k of pass@k.
    """

    prompts: tuple[Prompt, ...]
    generator: Generator
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
        """The step with which a version's reward calls queue where slots are scarce.

        Training up to the next validation goes first, what comes after it does not: so validation holds up no step
        that is nearer, and training without end cannot put it off for ever.
        """
        every = self.occasions.every
        return num_steps if every is None else version + every

    def requests(self, version: int) -> list[GroupRequest]:
        """The same random numbers for a prompt at every version, so that versions differ by their weights alone."""
        return [
            GroupRequest(
                number=number,
                step=version,
                prompt=prompt,
                group_size=self.group_size,
                prefix=f"{VALIDATION_SOURCE}-",
            )
            for number, prompt in enumerate(self.prompts)
        ]
