"""A reward of one's own: the share of digits that are in their places."""

from __future__ import annotations

import asyncio


async def compute_score(response: str, ground_truth: str) -> float:
    await asyncio.sleep(0.02)  # a real one would await a service here
    right = sum(ours == theirs for ours, theirs in zip(response, ground_truth, strict=False))
    return right / max(len(response), len(ground_truth))
