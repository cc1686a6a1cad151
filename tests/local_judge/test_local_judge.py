"""A real model as a judge, end to end: SmolLM2-135M-Instruct behind a server on loopback, through the judge and agent.

Run by `make test-local-judge`, which installs the server and the model. It proves the protocol, not the judgement: a
model of this size is at chance on mathematics, and may lose its way in a reason. So nothing here asks which score it
gives, how often it keeps to the length, or how long it takes.
"""

from __future__ import annotations

import dataclasses
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import rewardflow as rf
from rewardflow.services import LLMJudge, load_reward_file

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "local_judge"

# Problem, right answer, answer to judge.
PROBLEMS: Sequence[tuple[str, str, str]] = (
    ("Mara has 14 pencils and gives 5 to Tom. How many has she left?", "9", "14 - 5 = 9. The answer is 9."),
    ("A box holds 6 jars. How many jars are in 7 boxes?", "42", "6 * 7 = 42."),
    ("A train travels 60 km each hour. How far does it get in 3 hours?", "180", "60 + 3 = 63, so 63 km."),
    ("Eggs cost 3 coins a dozen. What do 4 dozen cost?", "12", "They cost 12 coins."),
    ("Ivo reads 12 pages a day. How many days does a book of 96 pages take?", "8", "96 / 12 = 8 days."),
    ("A rope of 45 m is cut into 9 equal pieces. How long is each?", "5", "Each piece is 9 m long."),
    ("Lena saves 8 coins a week. What has she after 11 weeks?", "88", "8 * 11 = 88."),
    ("A hall has 15 rows of 20 seats, and 40 seats are broken. How many are good?", "260", "15 * 20 - 40 = 260."),
    ("Half of 50 apples are red, and 10 red ones are eaten. How many red ones are left?", "15", "I do not know."),
    ("A baker makes 24 rolls, sells 17 and bakes 6 more. How many has he?", "13", "24 - 17 + 6 = 13."),
    ("Three friends share 27 cards equally. How many does each get?", "9", "Each gets 81 cards."),
    ("A tank holds 200 litres and loses 4 a minute. What is left after 30 minutes?", "80", "200 - 120 = 80."),
)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Of a server of our own, which says where it is when the model is loaded."""
    command = [sys.executable, str(EXAMPLE / "serve.py"), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.send_signal(signal.SIGTERM)


@pytest.fixture(scope="module")
def rewards(address: str) -> Sequence[rf.Reward]:
    """The verdicts on the problems, with the example's own judge and limits, but for the one on time."""
    assert address.startswith("http://127.0.0.1:")
    file = load_reward_file(EXAMPLE / "judge.yaml")
    judge = file.parts[0].reward
    assert isinstance(judge, LLMJudge)
    rollouts = [
        rf.Rollout(group_id=f"problem-{i}", prompt=problem, response=response, ground_truth=right)
        for i, (problem, right, response) in enumerate(PROBLEMS)
    ]
    options = {**file.options, "timeout_s": None}
    return rf.score(rollouts, dataclasses.replace(judge, base_urls=[address]), **options)


def test_every_verdict_is_scored_or_failed_as_unparsable(rewards: Sequence[rf.Reward]) -> None:
    assert len(rewards) == len(PROBLEMS)
    failures = [reward for reward in rewards if not reward.is_scored]
    # A reason that was cut off is the only thing that a working server and this model can do wrong.
    assert {reward.kind for reward in failures} <= {"unparsable"}, [reward.error for reward in failures]
    assert all(reward.error for reward in failures)


def test_a_verdict_that_the_server_held_to_the_schema_is_read(rewards: Sequence[rf.Reward]) -> None:
    scored = [reward for reward in rewards if reward.is_scored]
    assert scored, Counter(reward.error for reward in rewards)
    for reward in scored:
        assert reward.extras["scores"]["correctness"] in range(11)
        assert reward.value == reward.components["correctness"] == reward.extras["scores"]["correctness"] / 10
        assert isinstance(reward.explanation, str)


def test_the_usage_that_the_server_reports_is_in_every_verdict(rewards: Sequence[rf.Reward]) -> None:
    # The rubric and the fenced texts alone are more than 100 tokens, and failed attempts used them too.
    assert all(reward.tokens >= 100 * reward.attempts >= 100 for reward in rewards)
