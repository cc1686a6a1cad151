"""A fake judge: an OpenAI-compatible server on this machine, as slow, limited and faulty as its settings say.

    with MockJudge(MockJudgeSettings(latency="uniform:1,40", scale=0.01, faults={"500": 0.03})) as judge:
        judge.base_url             # http://127.0.0.1:PORT/v1
        judge.score_of(prompt)     # the score that it gives a prompt, without a request
        judge.statistics()

Importing this package is cheap; only starting a judge loads aiohttp.
"""

from rewardflow.mock_judge.behaviour import PlannedReply
from rewardflow.mock_judge.judge import MockJudge
from rewardflow.mock_judge.request_counts import MockJudgeStatistics
from rewardflow.mock_judge.settings import FAULTS, Fault, MockJudgeSettings

__all__ = ["FAULTS", "Fault", "MockJudge", "MockJudgeSettings", "MockJudgeStatistics", "PlannedReply"]
