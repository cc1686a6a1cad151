"""The plan as a whole: rows, recommendation, what one more unit buys, and the original experiment."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from rewardflow.errors import InvalidInput
from rewardflow.plan.floors import floors_of
from rewardflow.plan.named_schedules import SCHEDULES, SCHEDULES_OF_ORIGINAL
from rewardflow.plan.plan_file import load_plan
from rewardflow.plan.planner import Plan, make_plan
from rewardflow.plan.settings import DeviceSettings, PlanSettings, ServiceSettings, TierSettings
from rewardflow.plan.simulate import simulate
from rewardflow.plan.simulated_figures import figures_of

ORIGINAL = Path(__file__).resolve().parent.parent.parent / "examples" / "original.yaml"
SMALL = PlanSettings(
    prompts=16,
    responses=4,
    micro_batches=2,
    simulated_steps=11,
    steps=200,
    device=DeviceSettings(generation_s=20.0, log_probs_s=4.0, update_s=30.0),
    service=ServiceSettings(slots=16, latency="uniform:1,20", price_usd=0.01),
)


@pytest.fixture(scope="module")
def small() -> Plan:
    return make_plan(SMALL)


@pytest.fixture(scope="module")
def original() -> Plan:
    """The example with an eighth of the prompts and of the slots, so that each slot has as many calls."""
    schedules = f"schedules=[{', '.join(SCHEDULES_OF_ORIGINAL)}]"
    return make_plan(load_plan(ORIGINAL, ["prompts=128", "service.slots=32", "simulated_steps=5", schedules]))


def test_every_schedule_has_a_row_and_is_held_to_synchronous(small: Plan) -> None:
    assert [row.schedule for row in small.rows] == list(SCHEDULES)
    for row in small.rows:
        assert row.change == pytest.approx(row.step_s / small.rows[0].step_s - 1)
        assert row.exposed_s < row.step_s
        assert 0 < row.busy <= 1
        assert row.max_staleness == SCHEDULES[row.schedule][1]
        assert row.cost_usd == pytest.approx(0.01 * SMALL.calls_per_step)
        assert row.total_cost_usd == pytest.approx(200 * row.cost_usd)
        assert row.total_s == pytest.approx(200 * row.step_s, rel=0.05)
        assert row.calls_in_flight <= row.max_calls_in_flight * (1 + 1e-9)
        assert row.max_calls_in_flight <= 16


def test_a_run_of_few_steps_takes_what_its_own_steps_take_and_nothing_for_steps_it_does_not_have() -> None:
    plan = make_plan(replace(SMALL, steps=4, schedules=("staleness_4",)))
    (row,) = (row for row in plan.rows if row.schedule == "staleness_4")
    assert row.total_s == pytest.approx(simulate(SMALL, "staleness_4", steps=4).reports[-1].ended_s)
    assert row.total_s < plan.rows[0].total_s  # synchronous waits, and does the same work


def test_a_device_that_is_slower_than_the_service_binds_and_streaming_on_policy_is_recommended(small: Plan) -> None:
    assert small.binding == "compute"
    assert small.floors.floor_s == pytest.approx(54.0)
    assert small.recommended.step_s < small.rows[0].step_s
    assert small.recommended.schedule in small.recommendation
    assert {gain.resource: gain.saved_s > 1.0 for gain in small.gains} == {
        "service_slots": False,
        "latency": False,
        "tail": False,
        "generation": True,
        "training": True,
    }


def test_few_slots_bind_and_more_of_them_are_what_helps() -> None:
    plan = make_plan(replace(SMALL, service=replace(SMALL.service, slots=4)))
    assert plan.binding == "service_slots"
    saved = {gain.resource: gain.saved_s for gain in plan.gains}
    assert saved["service_slots"] > 0.1 * plan.recommended.step_s
    assert abs(saved["generation"]) < 0.02 * plan.recommended.step_s


def test_a_few_very_slow_calls_bind_where_slots_and_device_have_time() -> None:
    service = ServiceSettings(slots=64, latency="quantiles:0=1,95=1,97=200,100=200")
    plan = make_plan(replace(SMALL, service=service, schedules=("pipeline",)))
    assert plan.binding == "tail"
    assert max(plan.gains, key=lambda gain: gain.saved_s).resource == "tail"


def test_where_nothing_is_waited_for_synchronous_is_good_enough() -> None:
    plan = make_plan(replace(SMALL, service=ServiceSettings(slots=64, latency="constant:0.1")))
    assert plan.recommended.schedule == "synchronous"
    assert plan.recommendation.startswith("Stay with")


def test_a_tier_is_another_latency_at_another_price_with_its_own_best_schedule() -> None:
    flex = TierSettings(name="flex", latency="uniform:10,60", price_usd=0.005)
    settings = replace(SMALL, service=replace(SMALL.service, slots=64), schedules=("pipeline_one_step",))
    plan = make_plan(replace(settings, tiers=(flex,)))
    (tier,) = plan.tiers
    alone = make_plan(replace(settings, service=flex.of(settings.service)))
    assert tier.best == alone.recommended
    assert tier.best.cost_usd == pytest.approx(plan.recommended.cost_usd / 2)
    assert plan.to_json()["tiers"][0]["name"] == "flex"
    assert plan.rows == make_plan(settings).rows  # tiers change nothing else


def test_tiers_of_one_name_or_with_a_broken_rule_are_refused() -> None:
    flex = TierSettings(name="flex", latency="constant:9", price_usd=0.005)
    with pytest.raises(InvalidInput, match="tiers must have different names"):
        replace(SMALL, tiers=(flex, flex))
    with pytest.raises(InvalidInput, match="price_usd"):
        replace(SMALL, tiers=(replace(flex, price_usd=-1.0),))


def test_the_plan_is_plain_json_with_the_promised_names(small: Plan) -> None:
    told = orjson.loads(orjson.dumps(small.to_json()))
    assert told["floor_s"] == pytest.approx(54.0)
    assert told["binding"] == "compute"
    assert told["recommendation"] == small.recommendation
    assert "as_original" not in told
    names = {"schedule", "step_s", "change", "exposed_s", "busy", "max_staleness"}
    assert all(names <= set(row) for row in told["schedules"])


def test_several_processes_give_the_same_plan() -> None:
    settings = replace(SMALL, prompts=128, simulated_steps=14, schedules=("one_step", "stream_0"))
    alone, together = make_plan(settings), make_plan(settings, processes=2)
    assert alone.to_json() == together.to_json()


def test_steps_that_take_equally_long_are_simulated_twice_and_others_as_often_as_the_plan_says() -> None:
    """Constant calls give equal steps; a few very slow calls among few give steps that differ."""
    numbers = {}
    for latency in ("constant:3", "bimodal:1,300,0.02"):
        settings = replace(SMALL, service=replace(SMALL.service, latency=latency), schedules=("pipeline",))
        row = make_plan(settings).rows[1]
        exact = [
            figures_of(
                simulate(settings, "pipeline", steps=steps), settings, "pipeline", floors_of(settings)
            ).row.step_s
            for steps in (4, settings.simulated_steps)
        ]
        numbers[latency] = [abs(row.step_s - step_s) < 1e-9 for step_s in exact]
    assert numbers == {"constant:3": [True, True], "bimodal:1,300,0.02": [False, True]}


def test_a_plan_tells_how_many_of_its_simulations_are_done() -> None:
    told: list[tuple[int, int]] = []
    make_plan(replace(SMALL, schedules=("pipeline",)), tell=lambda done, expected: told.append((done, expected)))
    assert told[0] == (0, told[-1][1])
    assert [done for done, _ in told] == list(range(len(told)))
    assert told[-1][0] <= told[-1][1]


def test_as_the_original_the_two_fitted_rows_are_met(original: Plan) -> None:
    by_name = {row.schedule: row.step_s for row in original.as_original}
    assert list(by_name) == list(SCHEDULES_OF_ORIGINAL)
    assert by_name["synchronous"] == pytest.approx(613.1, rel=0.02)
    assert by_name["pipeline"] == pytest.approx(537.7, rel=0.02)


def test_every_published_change_is_predicted_within_5_points(original: Plan) -> None:
    assert len(original.published) == 6
    for one in original.published:
        assert abs(one.points_off) < 5, one


def test_our_own_loop_is_faster_than_the_original_under_every_schedule(original: Plan) -> None:
    ours = {row.schedule: row.step_s for row in original.rows}
    for row in original.as_original:
        assert ours[row.schedule] < row.step_s
    assert ours["pipeline_one_step"] == pytest.approx(original.floors.floor_s, rel=0.03)
    assert original.floors.floor_s == pytest.approx(410.0, rel=1e-3)


def test_the_log_probs_of_the_example_are_a_guess_that_changes_nothing() -> None:
    example = load_plan(ORIGINAL, ["prompts=64", "service.slots=16"])
    for name in SCHEDULES_OF_ORIGINAL:
        ends = [
            simulate(replace(example, device=device), name, steps=3, as_original=True).reports[-1].ended_s
            for device in (example.device, replace(example.device, log_probs_s=0.0))
        ]
        assert ends[0] == pytest.approx(ends[1], rel=1e-3)


def test_where_overlapping_buys_next_to_nothing_synchronous_stays_and_slots_do_not_bind() -> None:
    """Every call has a slot and takes a day: there is nothing to hide behind, and no slot more would help."""
    service = ServiceSettings(slots=64, latency="constant:86400")
    plan = make_plan(replace(SMALL, service=service, schedules=("pipeline", "stream_0")))
    assert (plan.recommended.schedule, plan.binding) == ("synchronous", "tail")
    assert plan.recommendation.startswith("Stay with")
    assert all(abs(gain.saved_s) < 1.0 for gain in plan.gains if gain.resource == "service_slots")


def test_a_service_that_always_fails_cannot_be_planned_and_the_reason_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(InvalidInput, match=r"under synchronous it did not: with failures=1 "):
        make_plan(replace(SMALL, service=ServiceSettings(failures=1.0)))
    assert caplog.records == []
