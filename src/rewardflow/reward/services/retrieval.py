"""A judge that looks things up: passages from the user's own collection, found by BM25 and shown beside the answer.

Always true: the collection is read and indexed once, off the event loop, however many calls wait for it; what the
judge is shown is fenced as data; every verdict names the passages that were shown, in order, with the scores they were
found by, and the digest of the collection they came from.

The digest is not part of the judge's identity: raise `version` when the collection changes and old verdicts must not be
reused.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import importlib
import itertools
import logging
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import orjson

from rewardflow import clock
from rewardflow.errors import InvalidInput
from rewardflow.reward.services.judge import LLMJudge, question_of
from rewardflow.types import Reward, Rollout

logger = logging.getLogger(__name__)

TITLE = "Passages found in the collection"
_NOTHING = "(no passage was found)"
_SUFFIXES = (".txt", ".md", ".rst")
_RANK_OFFSET = 60  # of reciprocal rank fusion, as in the paper: being first in one list is not everything
_CHARS_PER_TOKEN = 4

_build_lock = threading.Lock()  # one for all: to index two collections at once would take as long


# -- the judge --


@dataclass(frozen=True, eq=False, kw_only=True)
class RetrievalJudge:
    """Shows `judge` the `k` passages that fit question and answer best.

    `passages` is a JSONL or parquet file with the text in `text_field` (and perhaps a name in `id_field`), or a folder
    of .txt, .md and .rst files. Texts longer than `chunk_chars` are cut between paragraphs, each piece beginning with
    up to `overlap_chars` of the one before. With `cache_dir` the index is kept there, by the hash of what is in it.
    """

    judge: LLMJudge
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
        found, digest = await _off_the_loop(functools.partial(self._search, rollout))
        shown = "\n\n".join(f"[{place}] {one.passage.id}\n{one.passage.text}" for place, one in enumerate(found, 1))
        reward = await self.judge.judge(rollout, {TITLE: shown or _NOTHING})
        used = [
            {"id": one.passage.id, "question_score": one.question_score, "answer_score": one.answer_score}
            for one in found
        ]
        return replace(reward, extras={**reward.extras, "passages": used, "collection": digest})

    async def prepare(self) -> None:
        """Build the index now. Without it the first calls wait for it, and their timeout runs meanwhile."""
        await _off_the_loop(self._index)

    @property
    def endpoints(self) -> tuple[str, ...]:
        return self.judge.endpoints

    def estimate_tokens(self, rollout: Rollout) -> int:
        return self.judge.estimate_tokens(rollout) + self.k * self.chunk_chars // _CHARS_PER_TOKEN

    async def aclose(self) -> None:
        await self.judge.aclose()

    def _index(self) -> PassageIndex:
        """Built by the first thread that needs it, while the others wait."""
        with _build_lock:
            index: PassageIndex | None = self.__dict__.get("_built")
            if index is None:
                index = self.__dict__["_built"] = self._build()
            return index

    def _build(self) -> PassageIndex:
        texts = read_collection(Path(self.passages), self.text_field, self.id_field)
        passages = [
            passage for text in texts for passage in cut_into_passages(text, self.chunk_chars, self.overlap_chars)
        ]
        if not passages:
            raise InvalidInput(f"the collection must hold text, and there is none in {self.passages}")
        cache_dir = None if self.cache_dir is None else Path(self.cache_dir)
        return PassageIndex.build(passages, self.stopwords, self.token_pattern, cache_dir)

    def _search(self, rollout: Rollout) -> tuple[list[Evidence], str]:
        index = self._index()
        question, answer = (
            index.search(clip(text, self.max_query_chars), self.k)
            for text in (question_of(rollout) or "", rollout.response)
        )
        return merge(question, answer, self.k), index.digest

    def __getstate__(self) -> dict[str, Any]:
        """Settings travel; the index is built where it is used."""
        return {name: value for name, value in self.__dict__.items() if name != "_built"}


async def _off_the_loop(function: Callable[[], Any]) -> Any:
    with clock.hold(asyncio.get_running_loop()):
        return await asyncio.to_thread(function)


# -- what was found --


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of the collection, named by its place in it."""

    id: str
    text: str


@dataclass(frozen=True, slots=True)
class Hit:
    """A passage that a search found, and its BM25 score."""

    passage: Passage
    score: float


@dataclass(frozen=True, slots=True)
class Evidence:
    """A passage with the scores by which the question and the answer found it; None where they did not."""

    passage: Passage
    question_score: float | None
    answer_score: float | None


def merge(question: Sequence[Hit], answer: Sequence[Hit], k: int) -> list[Evidence]:
    """The best of both lists by their ranks, so that a long answer does not drown a short question."""
    merits: dict[Passage, float] = {}
    scores: list[dict[Passage, float]] = [{}, {}]
    for hits, found in zip((question, answer), scores, strict=True):
        for rank, hit in enumerate(hits):
            merits[hit.passage] = merits.get(hit.passage, 0.0) + 1 / (_RANK_OFFSET + rank)
            found[hit.passage] = hit.score
    best = sorted(merits, key=lambda passage: -merits[passage])[:k]
    return [Evidence(passage, scores[0].get(passage), scores[1].get(passage)) for passage in best]


def clip(text: str, max_chars: int) -> str:
    """Both ends of a text that is too long to search for: the question is at one, the result at the other."""
    if len(text) <= max_chars:
        return text
    head = max_chars // 2
    return f"{text[:head]} {text[head - max_chars :]}"


# -- the index --


class PassageIndex:
    """BM25 over passages. `search` may be called from several threads."""

    def __init__(self, passages: Sequence[Passage], engine: Any, tokenize: Callable[..., Any], digest: str) -> None:
        self.digest = digest
        self._passages = passages
        self._engine = engine
        self._tokenize = tokenize

    @classmethod
    def build(
        cls, passages: Sequence[Passage], stopwords: str, token_pattern: str, cache_dir: Path | None = None
    ) -> PassageIndex:
        """From the cache if it holds an index of exactly this, else anew."""
        bm25s = _extra("bm25s")
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
        """The best passages that share a word with the query, best first."""
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
    """What an earlier run saved; None if there is nothing, or nothing that can be read."""
    if not folder.is_dir():
        return None
    try:
        engine = bm25s.BM25.load(folder, load_corpus=False, show_progress=False)
        if engine.scores["num_docs"] == num_passages:
            return engine
        problem = f"it has {engine.scores['num_docs']} passages, not {num_passages}"
    except Exception as error:  # whatever a half-written or foreign file makes numpy and json raise
        problem = f"{type(error).__name__}: {error}"
    logger.warning("the index in %s cannot be used (%s); it is built again", folder, problem)
    shutil.rmtree(folder, ignore_errors=True)
    return None


def _save(engine: Any, folder: Path) -> None:
    """Under another name first, so that a folder with the right name is always whole."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = tempfile.mkdtemp(prefix="draft-", dir=folder.parent)
    try:
        engine.save(draft, show_progress=False)
        os.replace(draft, folder)
    except OSError as error:
        if not folder.is_dir():  # else another process was first
            logger.warning("the index could not be kept in %s: %s", folder, error)
        shutil.rmtree(draft, ignore_errors=True)


# -- the collection --


def read_collection(path: Path, text_field: str = "text", id_field: str = "id") -> Iterator[Passage]:
    """The texts of a collection, whole, each with a name."""
    if path.is_dir():
        return _read_folder(path)
    if not path.is_file():
        raise InvalidInput(f"passages must be a file or a folder that exists, got {path}")
    if path.suffix == ".parquet":
        return _named(_parquet_rows(path, text_field, id_field), path, text_field, id_field)
    if path.suffix in (".jsonl", ".ndjson"):
        return _named(_json_rows(path), path, text_field, id_field)
    raise InvalidInput(f"passages must be .jsonl, .ndjson, .parquet or a folder of text, got {path}")


def _read_folder(folder: Path) -> Iterator[Passage]:
    for file in sorted(folder.rglob("*")):
        name = file.relative_to(folder)
        is_hidden = any(part.startswith(".") for part in name.parts)
        if file.suffix.lower() in _SUFFIXES and not is_hidden and file.is_file():
            yield Passage(name.as_posix(), file.read_text("utf-8", errors="replace"))


def _json_rows(path: Path) -> Iterator[tuple[int, Any]]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                try:
                    yield number, orjson.loads(line)
                except orjson.JSONDecodeError as error:
                    raise InvalidInput(f"{path}, line {number}, must be JSON: {error}") from error


def _parquet_rows(path: Path, text_field: str, id_field: str) -> Iterator[tuple[int, Any]]:
    file = _extra("pyarrow.parquet").ParquetFile(path)
    names = file.schema_arrow.names
    if text_field not in names:
        raise InvalidInput(f"text_field must be a column of {path} ({', '.join(names)}), got {text_field!r}")
    batches = file.iter_batches(columns=[name for name in dict.fromkeys((text_field, id_field)) if name in names])
    return enumerate(itertools.chain.from_iterable(batch.to_pylist() for batch in batches), 1)


def _named(rows: Iterable[tuple[int, Any]], path: Path, text_field: str, id_field: str) -> Iterator[Passage]:
    for number, row in rows:
        text = row.get(text_field) if isinstance(row, dict) else None
        if not isinstance(text, str):
            raise InvalidInput(f"{path}, row {number}, must have text in {text_field!r}, got {text!r:.60}")
        name = row.get(id_field)
        yield Passage(str(number if name is None else name), text)


# -- cutting --


def cut_into_passages(text: Passage, max_chars: int, overlap_chars: int) -> Iterator[Passage]:
    """A text as it is if it is short, else in pieces named `id#1`, `id#2`, ..."""
    if not text.text.strip():
        return
    if len(text.text) <= max_chars:
        yield text
        return
    for place, piece in enumerate(cut(text.text, max_chars, overlap_chars), 1):
        yield Passage(f"{text.id}#{place}", piece)


def cut(text: str, max_chars: int, overlap_chars: int) -> list[str]:
    """Pieces of whole paragraphs, none longer than `max_chars`, each beginning with the end of the one before.

    A paragraph that is too long is cut between words, and a word that is too long anywhere.
    """
    parts = [
        part for paragraph in re.split(r"\n[^\S\n]*\n\s*", text) for part in _split_long(paragraph.strip(), max_chars)
    ]
    pieces: list[str] = []
    current: list[str] = []
    for part in parts:
        if current and _joined_chars([*current, part]) > max_chars:
            pieces.append("\n\n".join(current))
            current = _overlap(current, min(overlap_chars, max_chars - len(part) - 2))
        current.append(part)
    if current:
        pieces.append("\n\n".join(current))
    return pieces


def _split_long(paragraph: str, max_chars: int) -> Iterator[str]:
    while len(paragraph) > max_chars:
        end = max(paragraph.rfind(" ", 0, max_chars + 1), paragraph.rfind("\n", 0, max_chars + 1))
        end = end if end > 0 else max_chars
        yield paragraph[:end].rstrip()
        paragraph = paragraph[end:].lstrip()
    if paragraph:
        yield paragraph


def _overlap(parts: Sequence[str], room_chars: int) -> list[str]:
    """The last paragraphs that fit into the room, or else the last words of the last one."""
    kept: list[str] = []
    for part in reversed(parts):
        if _joined_chars([part, *kept]) > room_chars:
            break
        kept.insert(0, part)
    if kept or room_chars <= 0:
        return kept
    tail = parts[-1][-room_chars:].partition(" ")[2].strip()
    return [tail] if tail else []


def _joined_chars(parts: Sequence[str]) -> int:
    return sum(map(len, parts)) + 2 * (len(parts) - 1)


def _extra(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        raise InvalidInput(
            f"a retrieval judge over this collection needs {package}: pip install 'rewardflow[retrieval]' "
            f"({error.name} is missing)"
        ) from error
