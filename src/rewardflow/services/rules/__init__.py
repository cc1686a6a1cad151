"""Rules score a response by checking it locally, without a service.

Always true: a rule explains its score in one line. A rule without the data it needs (no readable ground truth, no token
ids) raises, so that the verdict fails instead of being 0. `decide` has a third outcome, None for "cannot tell": there a
`Cascade` asks a judge.

Rules with `is_quick` take time linear in the response and may run on the event loop. The others may not: a pattern can
backtrack for ever, and an expression can take hours to simplify. An agent runs these in processes that are kept warm
(`reward/code/processes/warm_processes.py`): a timeout kills the process, and only that rollout's verdict fails. Called
by hand, they run in the caller's thread.
"""

from __future__ import annotations

from collections.abc import Mapping

from rewardflow.services.rules.gsm8k import GSM8K, GSM8KMethod
from rewardflow.services.rules.length import Length, LengthUnit
from rewardflow.services.rules.numbers import read_last_number, read_marked_number, read_number_answer
from rewardflow.services.rules.patterns import Regex
from rewardflow.services.rules.rule import Rule
from rewardflow.services.rules.symbolic import Math
from rewardflow.services.rules.tags import Format

__all__ = [
    "GSM8K",
    "RULES",
    "Format",
    "GSM8KMethod",
    "Length",
    "LengthUnit",
    "Math",
    "Regex",
    "Rule",
    "read_last_number",
    "read_marked_number",
    "read_number_answer",
]

RULES: Mapping[str, type[GSM8K | Math | Regex | Format | Length]] = {
    "gsm8k": GSM8K,
    "math": Math,
    "regex": Regex,
    "format": Format,
    "length": Length,
}
"""Maps the names in reward files to rules."""
