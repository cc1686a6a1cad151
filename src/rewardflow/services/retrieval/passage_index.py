"""A BM25 index over passages, optionally cached on disk, and the results of its searches.

Always true: a loaded index is complete, and was built from the same passages with the same settings. A search finds
only passages that share a word with the query. Several threads may search at once.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from rewardflow.errors import InvalidInput
from rewardflow.extras import import_extra
from rewardflow.services.retrieval.collection import Passage

logger = logging.getLogger(__name__)

_RANK_OFFSET = 60  # of reciprocal rank fusion, as in the paper: limits the weight of a first rank in one list


# -- search results --


@dataclass(frozen=True, slots=True)
class Hit:
    """A passage that a search found, and its BM25 score."""

    passage: Passage
    score: float


@dataclass(frozen=True, slots=True)
class Evidence:
    """A passage with its scores for the question and for the answer; None if that search did not find it."""

    passage: Passage
    question_score: float | None
    answer_score: float | None


def merge(question: Sequence[Hit], answer: Sequence[Hit], k: int) -> list[Evidence]:
    """Returns the best of both lists by rank, so that a long answer does not outweigh a short question."""
    merits: dict[Passage, float] = {}
    scores: list[dict[Passage, float]] = [{}, {}]
    for hits, found in zip((question, answer), scores, strict=True):
        for rank, hit in enumerate(hits):
            merits[hit.passage] = merits.get(hit.passage, 0.0) + 1 / (_RANK_OFFSET + rank)
            found[hit.passage] = hit.score
    best = sorted(merits, key=lambda passage: -merits[passage])[:k]
    return [Evidence(passage, scores[0].get(passage), scores[1].get(passage)) for passage in best]


# -- the index --


class PassageIndex:
    """Passages and their search engine. `digest` identifies both."""

    def __init__(self, passages: Sequence[Passage], engine: Any, tokenize: Callable[..., Any], digest: str) -> None:
        self.digest = digest
        self._passages = passages
        self._engine = engine
        self._tokenize = tokenize

    @classmethod
    def build(
        cls, passages: Sequence[Passage], stopwords: str, token_pattern: str, cache_dir: Path | None = None
    ) -> PassageIndex:
        """Loads the index from the cache if it was built from exactly this, otherwise builds it."""
        bm25s = import_extra("bm25s", "retrieval", "a retrieval judge")
        tokenize = functools.partial(
            bm25s.tokenize, stopwords=stopwords, token_pattern=token_pattern, show_progress=False
        )
        digest = _digest([stopwords, token_pattern, bm25s.__version__], passages)
        folder = None if cache_dir is None else cache_dir / f"bm25-{digest}"
        engine = None if folder is None else _load(bm25s, folder, len(passages))
        if engine is None:
            tokens = tokenize([passage.text for passage in passages])
            if not tokens.vocab or not any(tokens.ids):
                raise InvalidInput(f"the collection must hold words that token_pattern matches, got {token_pattern!r}")
            engine = bm25s.BM25()
            engine.index(tokens, show_progress=False)
            if folder is not None:
                _save(engine, folder)
        return cls(passages, engine, tokenize, digest)

    def search(self, query: str, k: int) -> list[Hit]:
        """Returns the best passages that share a word with the query, best first."""
        words = self._tokenize([query], return_ids=False)
        if not words[0]:
            return []
        places, scores = self._engine.retrieve(
            words, k=min(k, len(self._passages)), show_progress=False, backend_selection="numpy"
        )
        return [
            Hit(self._passages[int(place)], float(score))
            for place, score in zip(places[0], scores[0], strict=True)
            if score > 0
        ]


def _digest(settings: Sequence[str], passages: Sequence[Passage]) -> str:
    digest = hashlib.blake2b(orjson.dumps(list(settings)), digest_size=12)
    for passage in passages:
        for part in (passage.id, passage.text):
            data = part.encode("utf-8", "surrogatepass")
            digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()


def _load(bm25s: Any, folder: Path, num_passages: int) -> Any | None:
    """Loads the index of an earlier run; returns None if it is missing or cannot be read."""
    if not folder.is_dir():
        return None
    try:
        engine = bm25s.BM25.load(folder, load_corpus=False, show_progress=False)
        if engine.scores["num_docs"] == num_passages:
            return engine
        problem = f"it has {engine.scores['num_docs']} passages, not {num_passages}"
    except Exception as error:  # numpy and json raise many kinds for a damaged or foreign file
        problem = f"{type(error).__name__}: {error}"
    logger.warning("the index in %s cannot be used (%s); it is built again", folder, problem)
    shutil.rmtree(folder, ignore_errors=True)
    return None


def _save(engine: Any, folder: Path) -> None:
    """Saves under a temporary name first, so that a folder with the final name is always complete."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = tempfile.mkdtemp(prefix="draft-", dir=folder.parent)
    try:
        engine.save(draft, show_progress=False)
        os.replace(draft, folder)
    except OSError as error:
        if not folder.is_dir():  # otherwise another process saved it first
            logger.warning("the index could not be saved in %s: %s", folder, error)
        shutil.rmtree(draft, ignore_errors=True)
