"""Writes the tables of docs/algorithms.md: what each algorithm needs, which settings it refuses, and why.

Always true: the page comes from the same tables that check the settings and choose the losses.

    python -m rewardflow.algo.docs_tables docs/algorithms.md     # rewrites the part between the two marks
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, get_args

from rewardflow.algo.losses import LOSSES, LossKind
from rewardflow.errors import InvalidInput
from rewardflow.flow.schedule import Stream
from rewardflow.settings.algorithm_needs import ADVANTAGES, STREAMS, AdvantageKind

START: Final = "<!--- the tables start here; they are written by python -m rewardflow.algo.docs_tables -->\n"
END: Final = "<!--- the tables end here -->\n"


def tables() -> str:
    advantages = [_advantage_row(name, kind) for name, kind in ADVANTAGES.items()]
    losses = [_loss_row(name, kind) for name, kind in LOSSES.items()]
    return "\n".join(
        [
            *_table("advantage", "of a rollout with score s", "needs", "stream", "a failed verdict", "refused"),
            *advantages,
            "",
            *_table("loss", "of a token with advantage A", "log-probs", "stream", "a failed verdict", "refused"),
            *losses,
            "",
        ]
    )


def with_tables(page: str) -> str:
    """Returns the page with the current tables between the two marks."""
    if page.count(START) != 1 or page.count(END) != 1:
        raise InvalidInput(f"a page must have the line {START.strip()!r} and later {END.strip()!r}, each once")
    before, _, rest = page.partition(START)
    return f"{before}{START}\n{tables()}\n{END}{rest.partition(END)[2]}"


def _table(*names: str) -> list[str]:
    return [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _advantage_row(name: str, kind: AdvantageKind) -> str:
    return _row(f"`{name}`", kind.formula, f"its {kind.needs}", _streams(kind), kind.when_failed, _refused(kind))


def _streams(kind: AdvantageKind) -> str:
    allowed = STREAMS[kind.needs]
    return "every" if allowed == get_args(Stream) else ", ".join(f"`{stream}`" for stream in allowed)


def _refused(kind: AdvantageKind) -> str:
    others = ", ".join(f"`{stream}`" for stream in get_args(Stream) if stream not in STREAMS["batch"])
    refused = [
        ("`group_size: 1`: nothing to compare with", kind.compares_group),
        (f"`stream` {others}: it {kind.why_batch}", bool(kind.why_batch) and not kind.takes_whiten),
        (f"`stream` {others} without `whiten: false`: it {kind.why_batch}", kind.takes_whiten),
        (f"`scale: batch` with `stream` {others}: the spread is that of the batch", kind.takes_scale),
        ("`scale`: it does not divide by a spread", not kind.takes_scale),
        ("`discount` below 1: it is one number for all tokens", not kind.takes_discount),
    ]
    return "; ".join(words for words, is_so in refused if is_so)


def _loss_row(name: str, kind: LossKind) -> str:
    return _row(f"`{name}`", kind.formula, kind.log_probs, "every", "its tokens are in no sum", "nothing")


def main(arguments: Sequence[str]) -> None:
    for name in arguments:
        page = Path(name)
        page.write_text(with_tables(page.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
