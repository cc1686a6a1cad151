"""Every reward that ships, with the rollouts that the journal in `journal_of_0_1.sql` holds verdicts for.

Run as a script, this writes that journal anew: `python shipped_rewards.py journal.sql`. The one in the repository was
written by version 0.1 before its modules moved, so it must not be written again.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scripted_server import Request, ScriptedServer, completion, verdict

import rewardflow as rf
from rewardflow.services import (
    Cascade,
    Criterion,
    JsonScorer,
    ListwiseJudge,
    LLMJudge,
    PairwiseJudge,
    RetrievalJudge,
    RewardModel,
)
from rewardflow.services.rules import GSM8K, Format, Length, Math, Regex

PASSAGES = '{"id": "moon", "text": "The moon moves away by 38 millimetres a year."}\n{"id": "tide", "text": "Tides."}\n'

PORT = 48123  # fixed: a cascade's identity holds the address of its judge
URL = f"http://127.0.0.1:{PORT}"

# From the address of a server and a file of passages to a reward.
Build = Callable[[str, Path], Any]


def judge(url: str, **settings: Any) -> LLMJudge:
    return LLMJudge(model="m", base_urls=[url], **settings)


SHIPPED: dict[str, Build] = {
    "llm_judge": lambda url, _: judge(url),
    "llm_judge_with_criteria": lambda url, _: judge(
        url, criteria=[Criterion(name="correctness", weight=2.0), Criterion(name="clarity")], max_chars=900, version="b"
    ),
    "listwise": lambda url, _: ListwiseJudge(judge=judge(url), seed=3),
    "pairwise": lambda url, _: PairwiseJudge(judge=judge(url), opponents=2),
    "retrieval": lambda url, passages: RetrievalJudge(judge=judge(url), passages=passages, k=1),
    "json_scorer": lambda url, _: JsonScorer(urls=f"{url}/score", request={"a": "{response}"}, score_path="score"),
    "reward_model": lambda url, _: RewardModel(model="rm", base_urls=[f"{url}/pool"]),
    "cascade": lambda url, _: Cascade(first=GSM8K(), then=judge(url), ask_below=1.0),
    "cascade_of_cascades": lambda url, _: Cascade(
        first=Format(text_outside=True), then=Cascade(first=Math(), then=judge(url), ask_below=1.0), ask_above=-1.0
    ),
    "cascade_with_patterns": lambda url, _: Cascade(first=Regex(must="e"), then=judge(url), ask_below=2.0),
    "cascade_with_length": lambda url, _: Cascade(first=Length(limit=9, buffer=3), then=judge(url), ask_below=2.0),
    "gsm8k": lambda *_: GSM8K(method="flexible"),
    "math": lambda *_: Math(right=2.0),
    "regex": lambda *_: Regex(must="[0-9]+"),
    "format": lambda *_: Format(text_outside=True),
    "length": lambda *_: Length(limit=20, buffer=5),
}


def rollouts() -> list[rf.Rollout]:
    return [
        rf.Rollout(
            group_id="q",
            index=i,
            group_size=2,
            prompt="How far does the moon go?",
            response=response,
            ground_truth="38",
            extra_info={"nested": {"unit": "mm"}},
        )
        for i, response in enumerate(("about #### 37", "<think>moon</think> <answer>maybe 39</answer> #### 39"))
    ]


def reply(request: Request) -> Any:
    if request.path.endswith("score"):
        return {"score": 0.25}
    if "messages" not in request.body or "pool" in request.path:
        return {"data": [{"data": [0.5]}]}
    properties = request.body["response_format"]["json_schema"]["schema"]["properties"]
    if "better" in properties:
        return completion(json.dumps({"reason": "r", "better": "first"}))
    if "scores" in properties:
        return completion(json.dumps({"reason": "r", "scores": [3, 7]}))
    return completion(verdict(**{name: 8 for name in properties if name != "reason"}))


async def write_journal(path: Path, folder: Path) -> None:
    (folder / "passages.jsonl").write_text(PASSAGES, "utf-8")
    async with ScriptedServer(reply, port=PORT):
        for name, build in SHIPPED.items():
            reward = build(URL, folder / "passages.jsonl")
            async with rf.RewardAgent(reward, journal=path, run=name, reuse="sample", max_attempts=1) as agent:
                (group,) = await agent.submit(rollouts()).all()
                assert all(one.value is not None for one in group.rewards), (name, group.rewards)


def main(sql: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.db"
        asyncio.run(write_journal(path, Path(folder)))
        with sqlite3.connect(path) as journal:
            numbers = {
                name: journal.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
            }
            lines = [*journal.iterdump(), *(f"PRAGMA {name}={number};" for name, number in numbers.items())]
    Path(sql).write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
