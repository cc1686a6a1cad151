"""What the agent asks about a service with a judge behind it."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from rewardflow.errors import InvalidInput
from rewardflow.reward.code.contract import load_reward
from rewardflow.reward.code.source import RewardSource
from rewardflow.services.judges.judge_wrapper import JudgeWrapper
from rewardflow.services.judges.listwise import ListwiseJudge
from rewardflow.services.judges.llm_judge import LLMJudge
from rewardflow.services.judges.pairwise import PairwiseJudge
from rewardflow.services.retrieval.retrieval_judge import RetrievalJudge

URL = "http://127.0.0.1:9/v1"
Make = Callable[[LLMJudge], JudgeWrapper]


@pytest.fixture(params=["listwise", "pairwise", "retrieval"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    (tmp_path / "facts.txt").write_text("Water boils at 100 degrees.", "utf-8")
    makers: dict[str, Make] = {
        "listwise": lambda judge: ListwiseJudge(judge=judge),
        "pairwise": lambda judge: PairwiseJudge(judge=judge),
        "retrieval": lambda judge: RetrievalJudge(judge=judge, passages=tmp_path),
    }
    return makers[request.param]


def test_endpoints_and_prices_are_the_judges(make: Make) -> None:
    unpriced = LLMJudge(model="m", base_urls=[URL])
    priced = LLMJudge(model="m", base_urls=[URL], prices={"input_usd_per_million": 1, "output_usd_per_million": 2})
    assert make(unpriced).endpoints == (URL,)
    assert make(unpriced).price_problem() == unpriced.price_problem() is not None
    assert make(priced).price_problem() is None


def test_what_the_judge_lacks_the_service_lacks(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    service = make(LLMJudge(model="m", base_urls=[URL], api_key_env="NO_SUCH_KEY"))
    with pytest.raises(InvalidInput, match="NO_SUCH_KEY"):
        asyncio.run(service.check())


def test_another_judge_is_another_service_and_one_that_travelled_is_not(make: Make) -> None:
    def identity(service: JudgeWrapper) -> str:
        return load_reward(RewardSource.of(service)).identity

    service = make(LLMJudge(model="m", base_urls=[URL]))
    assert identity(service) == identity(pickle.loads(pickle.dumps(service)))
    assert identity(service) != identity(make(LLMJudge(model="another", base_urls=[URL])))
