"""Figures for Prometheus: every line is a comment or a sample, and what happened is in them."""

from __future__ import annotations

import asyncio
import re

from served import served

SAMPLE = re.compile(r'^[a-z_]+(\{[a-z_]+="(?:[^"\\\n]|\\.)*"(,[a-z_]+="(?:[^"\\\n]|\\.)*")*\})? \S+$')


def test_verdicts_calls_and_failures_are_counted_in_lines_that_prometheus_reads() -> None:
    async def main() -> str:
        async with served(max_attempts=1) as asker:
            for response in ("abc", "bad"):
                await asker.post(
                    "/v1/score", {"rollouts": [{"group_id": response, "response": response}], "run": 'a"b\n'}
                )
            status, text = await asker.get("/metrics")
            assert status == 200
            return str(text)

    lines = asyncio.run(main()).splitlines()
    assert all(line.startswith("# ") or SAMPLE.match(line) for line in lines)
    assert 'rewardflow_verdicts_total{agent="judge",outcome="scored"} 1' in lines
    assert 'rewardflow_verdicts_total{agent="judge",outcome="user_error"} 1' in lines
    assert any(line.startswith('rewardflow_run_spent_usd{run="a\\"b\\n"}') for line in lines)
    names = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(names) == len(set(names))
