"""Puts the reward manager `rewardflow` in the place of a manager whose work it does.

Always true: a manager that does other work is kept, and so is every manager of verl's where the user chose one of
verl's own trainer modes.
"""

from __future__ import annotations

from collections.abc import Sequence

from rewardflow.adapters.verl.launch.overrides import VerlOverride
from rewardflow.adapters.verl.launch.rewriting import NOTHING, TranslationNote
from rewardflow.adapters.verl.settings import SECTION

NAME = "reward.reward_manager.name"
MODE = "trainer.v1.trainer_mode"

_GONE = {"batch": "verl 0.9 has no such manager", "prime": "verl 0.9 has no such manager"}
_IN_VERL = {"naive": "it calls the same function", "dapo": "it calls the same function"}
_KWARGS = "reward.reward_kwargs"
_OVERLONG = {
    f"{_KWARGS}.max_resp_len": "limit",
    f"{_KWARGS}.overlong_buffer_cfg.len": "buffer",
    f"{_KWARGS}.overlong_buffer_cfg.penalty_factor": "penalty",
}
_SWITCH, _LOG = f"{_KWARGS}.overlong_buffer_cfg.enable", f"{_KWARGS}.overlong_buffer_cfg.log"


def take_over_manager(words: Sequence[str]) -> tuple[list[str], list[TranslationNote]]:
    """Returns the words with our manager in them, and what changed."""
    values = {override.key: override for override in map(VerlOverride.parse, words)}
    manager, mode = values.get(NAME), values.get(MODE)
    known = _GONE if mode is not None and mode.text != SECTION else {**_GONE, **_IN_VERL}
    if manager is None or manager.text not in known:
        return list(words), []
    ours = f"{NAME}={SECTION}"
    notes = [TranslationNote(str(manager), ours, known[manager.text])]
    kept = [word for word in words if VerlOverride.parse(word).key != NAME]
    if manager.text == "dapo":
        kept, more = _with_overlong(kept, values.get(_SWITCH))
        notes += more
    return [*kept, ours], notes


def _with_overlong(words: Sequence[str], switch: VerlOverride | None) -> tuple[list[str], list[TranslationNote]]:
    """Translates DAPO's penalty for overlong responses."""
    is_on = switch is not None and switch.is_true()
    kept, notes = [], []
    for word in words:
        override = VerlOverride.parse(word)
        if override.key in (_SWITCH, _LOG):
            notes.append(TranslationNote(word, NOTHING, "the penalty is logged as overlong_reward" if is_on else "off"))
        elif override.key in _OVERLONG:
            ours = f"++{SECTION}.overlong.{_OVERLONG[override.key]}={override.value}"
            notes.append(TranslationNote(word, ours if is_on else NOTHING, "" if is_on else "the penalty is off"))
            kept += [ours] if is_on else []
        else:
            kept.append(word)
    return kept, notes
