"""A judge that is not there: an OpenAI-compatible server on this machine that is slow, limited and faulty as asked.

    with MockJudge(MockJudgeSettings(latency="uniform:1,40", scale=0.01, faults={"500": 0.03})) as judge:
        judge.base_url             # http://127.0.0.1:PORT/v1
        judge.score_of(prompt)     # what it gives a prompt, without asking
        judge.statistics()

Importing it is light; only starting a judge needs aiohttp.
"""

from rewardflow.mock_judge.behaviour import PlannedReply
from rewardflow.mock_judge.judge import MockJudge
from rewardflow.mock_judge.request_counts import MockJudgeStatistics
from rewardflow.mock_judge.settings import FAULTS, Fault, MockJudgeSettings

__all__ = ["FAULTS", "Fault", "MockJudge", "MockJudgeSettings", "MockJudgeStatistics", "PlannedReply"]
