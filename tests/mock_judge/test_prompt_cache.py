"""The mock judge can play a server that reuses the beginnings of prompts, and says how much it reused."""

from __future__ import annotations

import asyncio

import rewardflow as rf
from rewardflow.mock_judge import MockJudge, MockJudgeSettings
from rewardflow.mock_judge.prompt_cache import BLOCK_TOKENS, MAX_PROMPTS, PromptCache
from rewardflow.services.judges.llm_judge import LLMJudge
from rewardflow.services.prices import Prices


def test_whole_blocks_of_the_longest_shared_beginning_are_reused() -> None:
    cache = PromptCache(chars_a_token=1)
    assert cache.add("a" * 100) == 0
    assert cache.add("b" * 100) == 0
    assert cache.add("a" * 40 + "c" * 60) == 2 * BLOCK_TOKENS
    assert cache.add("a" * 100) == 6 * BLOCK_TOKENS
    assert cache.add("a" * 16) == 0, "the last token is always computed"
    assert cache.add("") == 0


def test_old_prompts_are_forgotten() -> None:
    cache = PromptCache(chars_a_token=1)
    cache.add("a" * 100)
    for i in range(MAX_PROMPTS):
        cache.add(f"{i:04d}" * 25)
    assert cache.add("a" * 100) == 0


def cached_tokens(*, caches_prompts: bool) -> tuple[int, float]:
    async def run() -> tuple[int, float]:
        async with MockJudge(MockJudgeSettings(caches_prompts=caches_prompts)) as mock:
            judge = LLMJudge(model="mock-judge", base_urls=[mock.url], prices=Prices(1.0, 1.0, 0.1))
            rollouts = [
                rf.Rollout(group_id="q", index=i, group_size=4, prompt="Why? " * 200, response=f"Because {i}.")
                for i in range(4)
            ]
            async with rf.RewardAgent(judge, max_concurrency=1) as agent:
                await agent.submit(rollouts).all()
                ledger = agent.statistics().ledger
                return ledger.cached_tokens, ledger.cache_saved_usd

    return asyncio.run(run())


def test_a_group_reuses_its_question_and_the_ledger_knows_what_that_saved() -> None:
    tokens, saved_usd = cached_tokens(caches_prompts=True)
    assert tokens > 3 * 200
    assert saved_usd > 0
    assert cached_tokens(caches_prompts=False) == (0, 0.0)
