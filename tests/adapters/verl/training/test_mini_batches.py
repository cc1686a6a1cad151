"""Which rows an optimizer step trains on, and how much of the step's tokens they have."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardflow.adapters.verl.accounting.group_report import GroupReport
from rewardflow.adapters.verl.accounting.step_metrics import TOO_FEW_VERDICTS, VerlStepRecord
from rewardflow.adapters.verl.training.mini_batches import MiniBatchCutter, shares_of_updates
from rewardflow.adapters.verl.verl_rows import Row, row_key


def report(uid: str, *, size: int = 2) -> GroupReport:
    return GroupReport(uid=uid, step=1, size=size, verdicts=())


def group(uid: str, *tokens: int) -> list[Row]:
    return [(row_key(uid, session, 0), {"response_len": length}) for session, length in enumerate(tokens)]


def cutter(groups: dict[str, list[Row]], *, groups_per_update: int = 1, min_group: int = 2) -> MiniBatchCutter:
    return MiniBatchCutter.of_step(
        groups,
        mini_batches=-(-len(groups) // groups_per_update),
        groups_per_update=groups_per_update,
        min_group=min_group,
        record=VerlStepRecord.of(1, 0.0),
    )


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=8))
def test_a_token_weighs_the_same_in_every_mini_batch(tokens: list[int]) -> None:
    """verl divides a mini-batch's sum by its own tokens; with the share, every sum is divided by the same number."""
    groups = {f"g{place}": group(f"g{place}", own) for place, own in enumerate(tokens)}
    found = cutter(groups, min_group=1)
    reports = [report(uid, size=1) for uid in groups]
    parts = found.cut(reports, set(found.keys(reports)))
    weights = [part.token_share / own for part, own in zip(parts, tokens, strict=True)]
    assert weights == pytest.approx([len(tokens) / sum(tokens)] * len(tokens))


def test_rows_without_a_verdict_are_left_out_and_still_count_as_generated_tokens() -> None:
    found = cutter({"a": group("a", 4, 4, 8), "b": group("b", 2, 2, 4)})
    parts = found.cut([report("a", size=3), report("b", size=3)], {"a_0_0", "a_2_0", "b_0_0", "b_1_0", "b_2_0"})
    assert [[key for key, _ in part.rows] for part in parts] == [["a_0_0", "a_2_0"], ["b_0_0", "b_1_0", "b_2_0"]]
    assert [part.token_share for part in parts] == pytest.approx([16 / 12, 8 / 12])


def test_a_group_with_too_few_verdicts_is_dropped_and_an_empty_mini_batch_makes_no_update() -> None:
    found = cutter({"a": group("a", 1, 1), "b": group("b", 1, 1), "c": group("c", 1, 1)}, groups_per_update=2)
    parts = found.cut([report("a"), report("b")], {"a_0_0", "b_0_0", "b_1_0"})
    assert [[key for key, _ in part.rows] for part in parts] == [["b_0_0", "b_1_0"]]
    assert found.cut([report("c")], set()) == []
    assert found.record.dropped == {TOO_FEW_VERDICTS: 2}
    assert found.record.trained.num_groups == 1


def test_several_rows_of_one_rollout_are_one_verdict() -> None:
    rows: list[Row] = [(row_key("a", 0, number), {"response_len": 1}) for number in range(3)]
    assert cutter({"a": rows}).cut([report("a")], {key for key, _ in rows}) == []


def test_a_rollout_that_was_not_generated_is_counted_and_its_group_still_trains() -> None:
    found = cutter({"a": group("a", 1, 1)})
    assert found.cut([report("a", size=3)], {"a_0_0", "a_1_0"})
    assert found.record.not_generated == 1
    assert found.cut([report("nothing", size=3)], set()) == []
    assert found.record.not_generated == 4


def test_a_mini_batch_without_tokens_keeps_its_weight() -> None:
    (part,) = cutter({"a": group("a", 0, 0)}).cut([report("a")], {"a_0_0", "a_1_0"})
    assert part.token_share == 1.0


def test_a_step_of_which_a_filter_kept_no_group_has_nothing_to_train() -> None:
    assert cutter({}).cut([], set()) == []


def padding(count: int) -> list[Row]:
    return [(row_key("pad", place, 0), {"response_len": 1, "is_padding": True}) for place in range(count)]


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_mini_batch_that_verl_trains_in_one_update_keeps_its_share(ranks: int) -> None:
    rows = [*group("a", 5, 1, 7), *padding(1)]
    assert shares_of_updates(rows, 0.75, per_update=4, ranks=ranks) == [0.75]


@given(st.lists(st.integers(1, 100), min_size=5, max_size=8))
def test_a_token_weighs_the_same_in_every_update_of_rollouts_with_several_sequences(tokens: list[int]) -> None:
    rows = [*group("a", *tokens), *padding(8 - len(tokens))]
    first, second = shares_of_updates(rows, 1.5, per_update=4, ranks=1)
    assert first / sum(tokens[:4]) == pytest.approx(1.5 / sum(tokens))
    assert second / sum(tokens[4:]) == pytest.approx(1.5 / sum(tokens))


def test_an_update_has_its_rows_from_every_rank() -> None:
    rows = [*group("a", 1, 2), *group("b", 3, 4)]  # the first two are of the first rank
    assert shares_of_updates(rows, 1.0, per_update=2, ranks=2) == pytest.approx([0.4, 0.6])


def test_an_update_without_any_token_has_a_share_to_divide_by() -> None:
    assert shares_of_updates([*group("a", 3), *padding(1)], 1.0, per_update=1, ranks=1) == [1.0, 0.5]
