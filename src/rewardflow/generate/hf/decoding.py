"""Decodes many responses together, token by token, on the device thread.

Always true: a row leaves the batch at the token that ends it, the last row takes its place, and free places are filled
from the queue in order, so groups end one after another and the batch has no dead rows; the model reads a prompt once
for all of its rows that start together.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from rewardflow.errors import InvalidInput
from rewardflow.flow.records import GroupRequest, Sampling
from rewardflow.generate.hf.key_value_slab import KeyValueSlab
from rewardflow.generate.hf.sampling import Drawn, draw, random_streams, uniforms
from rewardflow.generate.hf.stopping import StopRule
from rewardflow.policy.load_policy import Policy

_PREFILL_TOKENS = 16_384  # read in one pass, padding included; bounds the memory of activations
_REFILL_SHARE = 4  # refill when a quarter of the places is free: each refill costs about a step of decoding


@dataclass(slots=True, eq=False)
class DecodingRow:
    """A response that is to be decoded. It started at tick `born` of the batch; a greedy one draws nothing."""

    request: GroupRequest
    index: int
    prompt_ids: tuple[int, ...]
    is_greedy: bool = False
    born: int = 0


@dataclass(frozen=True, slots=True)
class Response:
    """A row that has ended. `is_truncated`: only the limit of tokens ended it."""

    row: DecodingRow
    token_ids: list[int]
    log_probs: list[float]
    is_truncated: bool


@dataclass(slots=True)
class _Batch:
    """The rows in flight, each with its state in the same place of every tensor."""

    rows: list[DecodingRow]
    streams: Tensor
    greedy: Tensor  # 1 for rows that take the likeliest token
    sampling: Sampling
    lengths: Tensor  # of prompt and response so far
    counts: Tensor  # of the response alone
    tokens: Tensor  # the responses
    log_probs: Tensor
    logits: Tensor  # what the next tokens are drawn from
    slab: KeyValueSlab
    tick: int = 0
    longest: int = 0
    is_padded: bool = False
    has_greedy: bool = False

    def rows_changed(self) -> None:
        lengths = [len(row.prompt_ids) + self.tick - row.born for row in self.rows]
        self.longest = max(lengths, default=0)
        self.is_padded = min(lengths, default=0) != self.longest
        self.has_greedy = any(row.is_greedy for row in self.rows)


@dataclass(slots=True)
class Decoder:
    """Decodes at most `max_rows` responses at a time. `autocast` is what the caller lets the model compute in."""

    policy: Policy
    rule: StopRule
    max_rows: int
    autocast: torch.dtype | None = None
    _accepted: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        self._accepted = frozenset(inspect.signature(self.policy.model.forward).parameters)

    def decode(
        self, rows: Sequence[DecodingRow], sampling: Sampling, is_stopped: Callable[[], bool]
    ) -> Iterator[Sequence[Response]]:
        """Yields responses as they end. The caller takes care of eval mode and of gradients."""
        queue = deque(rows)
        batch = self._empty_batch(min(len(rows), self.max_rows), sampling)
        while not is_stopped():
            self._refill(batch, queue)
            if not batch.rows:
                return
            drawn = self._draw(batch)
            if ended := self._ended(batch, drawn):
                yield ended
            if batch.rows:
                self._advance(batch)

    def _empty_batch(self, max_rows: int, sampling: Sampling) -> _Batch:
        device = self.policy.model.device
        whole = torch.zeros(4, max_rows, dtype=torch.int64, device=device)
        limit = sampling.max_response_tokens
        return _Batch(
            rows=[],
            sampling=sampling,
            streams=whole[0],
            lengths=whole[1],
            counts=whole[2],
            greedy=whole[3],
            tokens=torch.zeros(max_rows, limit, dtype=torch.int64, device=device),
            log_probs=torch.zeros(max_rows, limit, device=device),
            logits=torch.empty(0, 0, device=device),
            slab=KeyValueSlab(max_rows, limit, dtype=self.autocast),
        )

    # -- rows that start --

    def _refill(self, batch: _Batch, queue: deque[DecodingRow]) -> None:
        max_rows = batch.slab.max_rows
        while queue and (not batch.rows or max_rows - len(batch.rows) >= max(max_rows // _REFILL_SHARE, 1)):
            self._admit(batch, _take(queue, max_rows - len(batch.rows)))

    def _admit(self, batch: _Batch, rows: Sequence[DecodingRow]) -> None:
        """Reads each prompt once, and gives every row of its group a copy of its keys and values."""
        device = batch.streams.device
        prompts = list(dict.fromkeys(row.prompt_ids for row in rows))
        place = {prompt: number for number, prompt in enumerate(prompts)}
        sources = torch.tensor([place[row.prompt_ids] for row in rows], device=device)
        cache = DynamicCache()
        logits = self._read(prompts, cache, device)[sources]
        batch.slab.append(cache, sources)
        new = slice(len(batch.rows), len(batch.rows) + len(rows))
        batch.streams[new] = random_streams(
            batch.sampling.seed, [row.request.number for row in rows], [row.index for row in rows]
        ).to(device)
        batch.lengths[new] = torch.tensor([len(row.prompt_ids) for row in rows], device=device)
        batch.counts[new] = 0
        batch.greedy[new] = torch.tensor([row.is_greedy for row in rows], dtype=torch.int64, device=device)
        batch.logits = torch.cat([batch.logits, logits]) if batch.rows else logits
        for row in rows:
            row.born = batch.tick
        batch.rows.extend(rows)
        batch.rows_changed()

    def _read(self, prompts: Sequence[tuple[int, ...]], cache: DynamicCache, device: torch.device) -> Tensor:
        width = max(map(len, prompts))
        pad = self.policy.tokenizer.pad_token_id
        padded = [[pad] * (width - len(prompt)) + list(prompt) for prompt in prompts]
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
        mask = _right_aligned(lengths, width)
        positions = (mask.cumsum(-1) - 1).clamp_(min=0)
        is_padded = any(len(prompt) < width for prompt in prompts)
        return self._forward(torch.tensor(padded, device=device), mask if is_padded else None, positions, cache)

    # -- one token for every row --

    def _draw(self, batch: _Batch) -> Drawn:
        num_rows = len(batch.rows)
        counts = batch.counts[:num_rows]
        is_greedy = batch.greedy[:num_rows].bool() if batch.has_greedy else None
        drawn = draw(batch.logits, uniforms(batch.streams[:num_rows], counts), batch.sampling, is_greedy)
        batch.tokens[:num_rows].scatter_(1, counts[:, None], drawn.tokens[:, None])
        batch.log_probs[:num_rows].scatter_(1, counts[:, None], drawn.log_probs[:, None])
        counts += 1
        batch.lengths[:num_rows] += 1
        batch.tick += 1
        batch.longest += 1
        return drawn

    def _advance(self, batch: _Batch) -> None:
        num_rows = len(batch.rows)
        lengths = batch.lengths[:num_rows]
        last = batch.tokens[:num_rows].gather(1, batch.counts[:num_rows, None] - 1)
        batch.slab.open_column(batch.longest)
        mask = _right_aligned(lengths, batch.longest) if batch.is_padded else None
        batch.logits = self._forward(last, mask, lengths[:, None] - 1, batch.slab)

    def _forward(self, tokens: Tensor, mask: Tensor | None, positions: Tensor, cache: Any) -> Tensor:
        """Returns the logits after each row's last token."""
        optional = {"position_ids": positions, "logits_to_keep": 1}
        output = self.policy.model(
            input_ids=tokens,
            attention_mask=None if mask is None else mask.long(),
            past_key_values=cache,
            use_cache=True,
            **{name: value for name, value in optional.items() if name in self._accepted},
        )
        logits: Tensor = output.logits[:, -1]
        return logits

    # -- rows that end --

    def _ended(self, batch: _Batch, drawn: Drawn) -> Sequence[Response]:
        """Takes out the rows whose last token ended them."""
        num_rows = len(batch.rows)
        is_full = batch.counts[:num_rows] >= batch.sampling.max_response_tokens
        may_end = self.rule.is_candidate[drawn.tokens] | is_full | drawn.log_probs.isnan()
        candidates = may_end.nonzero().squeeze(1)
        if not len(candidates):
            return ()
        columns = zip(
            candidates.tolist(),
            batch.counts[candidates].tolist(),
            batch.tokens[candidates].cpu(),
            batch.log_probs[candidates].cpu(),
            strict=True,
        )
        ended: dict[int, Response] = {}
        for place, count, tokens, log_probs in columns:
            row, is_cut = batch.rows[place], count >= batch.sampling.max_response_tokens
            response = self._response(row, tokens[:count].tolist(), log_probs[:count].tolist(), is_cut=is_cut)
            if response is not None:
                ended[place] = response
        if ended:
            _take_out(batch, list(ended))
        return list(ended.values())

    def _response(
        self, row: DecodingRow, token_ids: list[int], log_probs: list[float], *, is_cut: bool
    ) -> Response | None:
        """None if the row goes on. `is_cut`: its tokens are as many as it may have."""
        if log_probs[-1] != log_probs[-1]:
            raise InvalidInput(
                "the policy's logits must be finite, got NaN or infinity for token "
                f"{len(token_ids)} of group {row.request.group_id}; its weights have most likely diverged"
            )
        ends = self.rule.ends(token_ids)
        if not ends and not is_cut:
            return None
        return Response(row, token_ids, log_probs, is_truncated=not ends)


def _take(queue: deque[DecodingRow], count: int) -> list[DecodingRow]:
    """Takes the next rows, as many as one pass may read; at least one."""
    rows: list[DecodingRow] = []
    width, prompts = 0, set[tuple[int, ...]]()
    while queue and len(rows) < count:
        prompt = queue[0].prompt_ids
        width, prompts = max(width, len(prompt)), prompts | {prompt}
        if rows and width * len(prompts) > _PREFILL_TOKENS:
            break
        rows.append(queue.popleft())
    return rows


def _take_out(batch: _Batch, places: Sequence[int]) -> None:
    """Removes rows. The last rows that stay move into their places."""
    gone = set(places)
    num_rows = len(batch.rows) - len(gone)
    targets = [place for place in places if place < num_rows]
    sources = [place for place in range(num_rows, len(batch.rows)) if place not in gone]
    for target, source in zip(targets, sources, strict=True):
        batch.rows[target] = batch.rows[source]
    del batch.rows[num_rows:]
    to = torch.tensor(targets, dtype=torch.int64, device=batch.streams.device)
    origin = torch.tensor(sources, dtype=torch.int64, device=batch.streams.device)
    if targets:
        for state in (batch.streams, batch.greedy, batch.lengths, batch.counts, batch.tokens, batch.log_probs):
            state[to] = state[origin]
    batch.slab.move(origin, to, num_rows)
    batch.rows_changed()


def _right_aligned(lengths: Tensor, width: int) -> Tensor:
    """True for the last `length` columns of each row."""
    return torch.arange(width, device=lengths.device) >= width - lengths[:, None]
