"""The workload of `rewardflow bench trl`: copy three digits, with a judge that answers after 1 to 40 seconds, scaled.

Always true: a completion's delay depends on the seed, the prompt and the completion alone, so that every way to train
waits for the same judge.
"""

from __future__ import annotations

import hashlib
import json
import random
from dataclasses import asdict, dataclass
from pathlib import Path

MODEL, SIZES, RESULT = "model", "judged_workload.json", "result.json"
SLOWEST_S, FASTEST_S = 40.0, 1.0
DIGITS = 3

# A thread pool as people write it, our function in TRL's trainer, and our trainer.
PLAIN, FUNCTION, TRAINER = "plain", "function", "trainer"
WAYS = (PLAIN, FUNCTION, TRAINER)


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedWorkload:
    """One run. `scale` multiplies the judge's seconds; 0 means that it answers at once."""

    way: str
    steps: int
    scale: float
    seed: int
    prompts_per_step: int = 32
    group_size: int = 8
    lr: float = 1e-3
    calls_at_once: int = 256

    @classmethod
    def read(cls, folder: Path) -> JudgedWorkload:
        return cls(**json.loads((folder / SIZES).read_text("utf-8")))

    def write(self, folder: Path) -> None:
        (folder / SIZES).write_text(json.dumps(asdict(self)), "utf-8")

    def prompts(self) -> list[str]:
        """Returns a prompt for each place of each step, in order."""
        rng = random.Random(self.seed)
        count = self.prompts_per_step * self.steps
        return ["".join(rng.choices("0123456789", k=DIGITS)) + "=" for _ in range(count)]

    def delay_s(self, prompt: str, completion: str) -> float:
        digest = hashlib.blake2b(f"{self.seed}/{prompt}/{completion}".encode(), digest_size=8).digest()
        share = int.from_bytes(digest, "little") / 2**64
        return self.scale * (FASTEST_S + share * (SLOWEST_S - FASTEST_S))


def score(prompt: str, completion: str) -> float:
    """Returns the share of digits that were copied to their place."""
    return sum(given == wanted for given, wanted in zip(completion[:DIGITS], prompt, strict=False)) / DIGITS


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedResult:
    """What a run measured, step by step."""

    step_s: list[float]
    rewards: list[float]
    versions: dict[str, str]

    @classmethod
    def read(cls, folder: Path) -> JudgedResult:
        return cls(**json.loads((folder / RESULT).read_text("utf-8")))

    def write(self, folder: Path) -> None:
        (folder / RESULT).write_text(json.dumps(asdict(self)), "utf-8")
