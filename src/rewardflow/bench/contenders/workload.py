"""The workload of every contender: one folder with the model, the prompts and the sizes.

Always true: every contender gets the same weights, prompts and lengths; no response ends before its last token.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from rewardflow.errors import InvalidInput

MODEL, PROMPTS, SIZES = "model", "prompts.jsonl", "workload.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The sizes. A step trains `prompts_per_step` x `group_size` responses, in one update."""

    prompts_per_step: int = 16
    group_size: int = 8
    response_tokens: int = 32
    shortest_prompt: int = 9  # characters; each is a token
    longest_prompt: int = 16
    hidden: int = 64
    feed_forward: int = 128
    num_layers: int = 2
    num_heads: int = 4
    num_key_heads: int = 2
    vocabulary: int = 259
    lr: float = 1e-4
    seed: int = 0
    warmup_steps: int = 3  # not measured: libraries load modules and allocate memory in the first steps
    rounds: int = 7
    steps_per_round: int = 4

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value < (0 if name in ("lr", "seed") else 1):
                raise InvalidInput(f"{name} of a workload must be at least 1, got {name}={value}")

    @property
    def total_steps(self) -> int:
        return self.warmup_steps + self.rounds * self.steps_per_round

    @property
    def tokens_per_step(self) -> int:
        """The sampled tokens, which are generated and trained; without prompts."""
        return self.prompts_per_step * self.group_size * self.response_tokens

    @classmethod
    def read(cls, folder: Path) -> Workload:
        return cls(**json.loads((folder / SIZES).read_text("utf-8")))

    def write(self, folder: Path) -> None:
        (folder / SIZES).write_text(json.dumps(asdict(self)), "utf-8")


def read_prompts(folder: Path) -> list[str]:
    """Returns a prompt for each place of each step, in order."""
    return [json.loads(line)["prompt"] for line in (folder / PROMPTS).read_text("utf-8").splitlines()]
