"""A judge that retrieves passages from the user's own collection by BM25, and shows them beside the answer.

Always true: the collection is read and indexed once, outside the event loop, when the agent opens or in the first call,
while other calls wait. The passages are fenced as data. Every verdict lists the shown passages in order, with their
search scores, and the digest of the index. The contents of the collection are part of the judge's identity, its path is
not: after an edit rollouts are judged again, after a move they are not.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from rewardflow import clock
from rewardflow.errors import InvalidInput
from rewardflow.reward.journal.identity import FrozenIdentity
from rewardflow.services.judges.judge_wrapper import JudgeWrapper
from rewardflow.services.judges.llm_judge import num_bytes, question_of
from rewardflow.services.retrieval.chunking import cut_into_passages
from rewardflow.services.retrieval.collection import Collection
from rewardflow.services.retrieval.passage_index import Evidence, PassageIndex, merge
from rewardflow.types import Reward, Rollout

T = TypeVar("T")

TITLE = "Passages found in the collection"
_NOTHING = "(no passage was found)"
_CHARS_PER_TOKEN = 4
_MAX_ID_CHARS = 500
_MAX_BYTES_PER_CHAR = 5  # four of UTF-8, and a blank that a fence may put after it
_FENCE_BYTES = 300


@dataclass(frozen=True, eq=False, kw_only=True)
class RetrievalJudge(JudgeWrapper):
    """Shows `judge` the `k` passages that best match the question and the answer.

    `passages` is a JSONL or parquet file with the text in `text_field` (and maybe a name in `id_field`), or a folder
    of .txt, .md and .rst files. Texts longer than `chunk_chars` are cut between paragraphs; each piece begins with up
    to `overlap_chars` of the one before. `cache_dir` caches the index under the hash of its contents.
    """

    frozen_identity: ClassVar = FrozenIdentity("rewardflow.reward.services.retrieval:RetrievalJudge", "2")

    passages: str | PathLike[str]
    k: int = 4
    text_field: str = "text"
    id_field: str = "id"
    chunk_chars: int = 1500
    overlap_chars: int = 200
    max_query_chars: int = 2000
    stopwords: str = "en"
    token_pattern: str = r"(?u)\b\w+\b"
    cache_dir: str | PathLike[str] | None = None
    version: str = ""

    def __post_init__(self) -> None:
        if self.k < 1 or self.max_query_chars < 1:
            raise InvalidInput(
                f"k and max_query_chars must be at least 1, got k={self.k}, max_query_chars={self.max_query_chars}"
            )
        if not 0 <= self.overlap_chars < self.chunk_chars:
            raise InvalidInput(
                f"overlap_chars must lie in [0, chunk_chars), got overlap_chars={self.overlap_chars}, "
                f"chunk_chars={self.chunk_chars}"
            )

    async def compute_score(self, rollout: Rollout) -> Reward:
        found, digest = await _in_thread(functools.partial(self._search, rollout))
        shown = "\n\n".join(f"[{place}] {one.passage.id}\n{one.passage.text}" for place, one in enumerate(found, 1))
        reward = await self.judge.judge(rollout, {TITLE: shown or _NOTHING})
        used = [
            {"id": one.passage.id, "question_score": one.question_score, "answer_score": one.answer_score}
            for one in found
        ]
        return replace(reward, extras={**reward.extras, "passages": used, "collection": digest})

    def identity_settings(self) -> dict[str, Any]:
        """Returns what a verdict depends on: the wrapped judge, the contents of the collection, and the search."""
        names = ("k", "text_field", "id_field", "chunk_chars", "overlap_chars", "max_query_chars", "stopwords")
        return {**self.identity_of(*names, "token_pattern"), "collection": self._digest()}

    async def check(self) -> None:
        """Checks the wrapped judge, and builds the index, so that no call waits for it."""
        await super().check()
        await _in_thread(self._index)

    def estimate_tokens(self, rollout: Rollout) -> int:
        return self.judge.estimate_tokens(rollout) + self.k * self.chunk_chars // _CHARS_PER_TOKEN

    def cost_bound_usd(self, rollout: Rollout) -> float | None:
        """Returns the most that judging with `k` passages of the full length can cost; None with images."""
        if self.judge.images_shown(rollout):
            return None
        num_chars = min(self.k * (self.chunk_chars + _MAX_ID_CHARS), self.judge.max_chars)
        shown_bytes = _MAX_BYTES_PER_CHAR * num_chars + _FENCE_BYTES
        judge = self.judge
        user_bytes = num_bytes(judge.prompt(rollout)) + shown_bytes
        return judge.bound_usd(judge.system_prompt, user_bytes, judge.rubric.schema)

    # -- private --

    @functools.cached_property
    def _collection(self) -> Collection:
        return Collection(Path(self.passages), self.text_field, self.id_field)

    @functools.cached_property
    def _digest(self) -> Once[str]:
        return Once(self._collection.digest)

    @functools.cached_property
    def _index(self) -> Once[PassageIndex]:
        return Once(self._build)

    def _build(self) -> PassageIndex:
        passages = [
            passage
            for text in self._collection.read()
            for passage in cut_into_passages(text, self.chunk_chars, self.overlap_chars)
        ]
        if not passages:
            raise InvalidInput(f"the collection must hold text, and there is none in {self.passages}")
        # The journal's keys hold the digest, so their verdicts must come from exactly these contents.
        if self._collection.digest() != self._digest():
            raise InvalidInput(f"a collection must not change while it is in use, and {self.passages} did; start again")
        cache_dir = None if self.cache_dir is None else Path(self.cache_dir)
        return PassageIndex.build(passages, self.stopwords, self.token_pattern, cache_dir)

    def _search(self, rollout: Rollout) -> tuple[list[Evidence], str]:
        index = self._index()
        question, answer = (
            index.search(clip(text, self.max_query_chars), self.k)
            for text in (question_of(rollout) or "", rollout.response)
        )
        return merge(question, answer, self.k), index.digest


class Once(Generic[T]):
    """Makes a slow value once: the first thread that asks makes it, and the others wait.

    An error goes to the thread that tried; the next thread tries again.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._made: list[T] = []

    def __call__(self) -> T:
        with self._lock:
            if not self._made:
                self._made.append(self._make())
            return self._made[0]


def clip(text: str, max_chars: int) -> str:
    """Keeps both ends of a query that is too long: the question is at one end, the result at the other."""
    if len(text) <= max_chars:
        return text
    head = max_chars // 2
    return f"{text[:head]} {text[head - max_chars :]}"


async def _in_thread(function: Callable[[], T]) -> T:
    """Runs the function in a thread, because reading, indexing and searching would block the event loop."""
    with clock.hold(asyncio.get_running_loop()):
        return await asyncio.to_thread(function)
