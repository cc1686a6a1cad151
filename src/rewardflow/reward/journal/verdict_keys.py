"""Computes the keys under which the journal stores verdicts.

Always true: equal keys mean the same reward and the same inputs. A `sample` key also contains the place in the run, so
that a judge with temperature is called again for every new sample; a `content` key, for deterministic services, does
not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from rewardflow.reward.journal.canonical import canonical
from rewardflow.types import EMPTY, Rollout


def verdict_keys(identity: str, rollouts: Sequence[Rollout], *, run: str | None) -> tuple[bytes, ...]:
    """Returns one key for each rollout of a call; `run=None` gives content keys.

    In a call about a group, each key depends on all of its rollouts.
    """
    inputs = [_inputs(rollout) for rollout in rollouts]
    shared = hashlib.blake2b(identity.encode(), digest_size=16)
    for text in inputs:
        shared.update(len(text).to_bytes(8, "little"))
        shared.update(text)
    if run is None and len(rollouts) == 1:
        return (shared.digest(),)
    keys = []
    for rollout in rollouts:
        key = shared.copy()
        place = [rollout.index] if run is None else [run, rollout.step, rollout.group_id, rollout.index]
        key.update(canonical(place))
        keys.append(key.digest())
    return tuple(keys)


def has_same_inputs(one: Rollout, other: Rollout) -> bool:
    """Whether two rollouts of one place have the same inputs; `==` fails for the arrays in some datasets."""
    return one is other or _inputs(one) == _inputs(other)


def _inputs(rollout: Rollout) -> bytes:
    return canonical(
        [
            rollout.data_source,
            rollout.prompt,
            list(rollout.messages),
            rollout.response,
            rollout.ground_truth,
            {} if rollout.extra_info is EMPTY else dict(rollout.extra_info),  # copying the usual EMPTY takes long
            rollout.group_size,
        ]
    )
