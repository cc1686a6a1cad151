"""Judges answers to GSM8K problems with the local model, through `rewardflow score` and judge.yaml.

For each problem there are two answers, a right one and its twin with a wrong number, so that one can see what the judge
is worth: how often it puts the right one above the wrong one. Half of the pairs is what a coin would reach.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rewardflow.cli.main import main as rewardflow

JUDGE = Path(__file__).with_name("judge.yaml")
SEED = 0
NUMBER = re.compile(r"#### *(-?[\d,]+)\s*$")


def answers(gsm8k: Path, num_problems: int) -> Iterator[dict[str, Any]]:
    """Two rows for each of the first problems whose solution ends in a whole number."""
    rng = random.Random(SEED)
    with gsm8k.open(encoding="utf-8") as lines:
        for line_number, line in enumerate(lines, start=1):
            row = json.loads(line)
            found = NUMBER.search(row["answer"])
            if found is None:
                continue
            right = int(found[1].replace(",", ""))
            wrong = right + rng.choice((-1, 1)) * max(1, abs(right) // rng.choice((1, 2, 4, 10)))
            for number in (right, wrong):
                yield {
                    "group_id": f"gsm8k-{line_number}",
                    "prompt": row["question"],
                    "response": f"The answer is {number}.",
                    "ground_truth": str(right),
                    "is_right": number == right,
                }
            num_problems -= 1
            if num_problems == 0:
                return


def pairs(verdicts: list[dict[str, Any]]) -> list[tuple[float, float]]:
    """The scores of the right and the wrong answer of each problem that has both."""
    scores: dict[tuple[str, bool], float] = {
        (row["group_id"], row["is_right"]): row["score"] for row in verdicts if row["score"] is not None
    }
    return [
        (score, scores[group_id, False])
        for (group_id, is_right), score in scores.items()
        if is_right and (group_id, False) in scores
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="Judge answers to GSM8K problems. serve.py must be running.")
    parser.add_argument("gsm8k", type=Path, help="a GSM8K file: JSONL with `question` and `answer`")
    parser.add_argument("--problems", type=int, default=24, help="two answers are judged for each (%(default)s)")
    parser.add_argument("--out", type=Path, default=Path("verdicts.jsonl"), help="where verdicts go (%(default)s)")
    args = parser.parse_args()

    answers_path = args.out.with_name(f"{args.out.stem}.answers.jsonl")
    with answers_path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in answers(args.gsm8k, args.problems))
    status = rewardflow(["score", str(answers_path), "--reward", str(JUDGE), "--out", str(args.out)])
    if status not in (0, 3):  # 3: some failed, which the verdicts say
        return status
    compared = pairs([json.loads(line) for line in args.out.read_text("utf-8").splitlines()])
    above = sum(right > wrong for right, wrong in compared)
    equal = sum(right == wrong for right, wrong in compared)
    sys.stdout.write(f"right above wrong: {above} of {len(compared)} pairs, equal: {equal}\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
