"""Reads and writes the rows that verl stores in TransferQueue.

Always true: a row is its key with its tags; padding rows, which verl adds to fill a batch up, never count as rows of a
group. Loaded by verl only.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import torch
import transfer_queue as tq
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.workers.utils.padding import response_to_nested

from rewardflow.adapters.verl.verl_rows import Row, uid_of
from rewardflow.algo.correction import behaviour_weights
from rewardflow.algo.log_ratio import log_ratio

TRAINING = "train"  # verl's partition of the rows for training
TAKEN_BEFORE = ("old_log_probs", "ref_log_prob", "values")  # columns that padding rows must have too


def batch_of(rows: Sequence[Row]) -> KVBatchMeta:
    return KVBatchMeta(partition_id=TRAINING, keys=[key for key, _ in rows], tags=[tag for _, tag in rows])


def rows_of(batch: KVBatchMeta) -> list[Row]:
    return list(zip(batch.keys, batch.tags, strict=True))


def real_rows(batch: KVBatchMeta) -> list[Row]:
    """Returns the rows without padding."""
    return [(key, tag) for key, tag in rows_of(batch) if not tag.get("is_padding")]


def rows_by_group(batch: KVBatchMeta) -> dict[str, list[Row]]:
    groups: defaultdict[str, list[Row]] = defaultdict(list)
    for key, tag in real_rows(batch):
        groups[uid_of(key)].append((key, tag))
    return groups


def delete_rows(keys: Sequence[str]) -> None:
    if keys:
        tq.kv_clear(keys=list(keys), partition_id=TRAINING)


def keys_with_verdict(keys: list[str]) -> set[str]:
    """Returns the keys of rows whose score is a number: NaN marks a row without a verdict."""
    if not keys:
        return set()
    scores = tq.kv_batch_get(keys=keys, partition_id=TRAINING, select_fields=["rm_scores"])["rm_scores"]
    return {key for key, row in zip(keys, scores.unbind(), strict=True) if math.isfinite(float(row.sum()))}


def fill_padding(padding: list[str], *, like: str) -> None:
    """Gives padding rows of one token the columns of the row `like`: verl copies columns of another length."""
    if not padding:
        return
    row = tq.kv_batch_get(keys=[like], partition_id=TRAINING)
    names = set(TAKEN_BEFORE).intersection(row.keys())
    columns = {name: _zeros(len(padding), row[name].dtype) for name in names}
    tq.kv_batch_put(keys=padding, partition_id=TRAINING, fields=TensorDict(columns, batch_size=len(padding)))


def add_behaviour_weights(batch: KVBatchMeta, *, cap: float | None) -> dict[str, float]:
    """Stores a weight for each token, proximal over behaviour policy, for the decoupled loss. Returns their metrics."""
    names = ["old_log_probs", "rollout_log_probs", "response_mask"]
    data = tq.kv_batch_get(keys=batch.keys, partition_id=TRAINING, select_fields=names)
    lengths = data["response_mask"]
    padded = data.to_padded_tensor()
    mask_BT = padded["response_mask"].bool()
    log_ratio_BT = log_ratio(padded["old_log_probs"].float(), padded["rollout_log_probs"].float(), mask_BT)
    weights_BT, capped_BT = behaviour_weights(log_ratio_BT, mask_BT, "token", cap=cap, above_cap="leave_out")
    column = {"rollout_is_weights": response_to_nested(weights_BT, lengths)}
    tq.kv_batch_put(keys=batch.keys, partition_id=TRAINING, fields=TensorDict(column, batch_size=len(batch)))
    tokens = max(int(mask_BT.sum()), 1)
    return {
        "rewardflow/behaviour_weight/mean": float(weights_BT.sum()) / tokens,
        "rewardflow/behaviour_capped/mean": float(capped_BT.sum()) / tokens,
    }


def _zeros(count: int, dtype: torch.dtype) -> torch.Tensor:
    """Makes a column of rows of one token."""
    return torch.nested.as_nested_tensor([torch.zeros(1, dtype=dtype) for _ in range(count)], layout=torch.jagged)
