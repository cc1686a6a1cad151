"""A real server computes less than half of a group's prompts, because they begin with the same text.

Run by `make test-local-judge`. The figures are the server's own: it reports the tokens that it took from its cache.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from rewardflow.bench.judging.prompt_reuse import measure

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "local_judge"


def test_a_group_of_eight_is_computed_once_but_for_its_answers() -> None:
    command = [sys.executable, str(EXAMPLE / "serve.py"), "--port", "0", "--slots", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            ours, answer_first = measure(server.stdout.readline().strip(), "smollm2")
        finally:
            server.send_signal(signal.SIGTERM)
    assert ours.computed_tokens <= 0.45 * answer_first.computed_tokens, (ours, answer_first)
