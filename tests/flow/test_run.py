"""The loop on a clock that jumps: every schedule, random delays and failures, hours in milliseconds."""

import asyncio
import dataclasses
import itertools
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewardflow import clock
from rewardflow.errors import FlowError, InvalidInput, ServiceError, ServiceOutage
from rewardflow.flow.fakes import CentredScores, FakeGenerator, FakePrompts, FakeTrainer
from rewardflow.flow.flow_parts import FlowParts
from rewardflow.flow.records import Boundary, GroupRequest, JudgedRollout, Prompt
from rewardflow.flow.reports import StepReport, combined_metrics
from rewardflow.flow.run import Flow
from rewardflow.flow.schedule import Schedule
from rewardflow.observe.events import DeviceWorked, EventList
from rewardflow.reward.agent import RewardAgent
from rewardflow.types import Rollout

Judge = Callable[..., Any]


class World:
    """One run with fakes, and what was seen of it."""

    def __init__(self, schedule: Schedule, judge: Judge, *, group_size: int = 4, **others: Any) -> None:
        self.schedule = schedule
        self.judge = judge
        self.group_size = group_size
        self.prompts = FakePrompts()
        self.generator = others.pop("generator", None) or FakeGenerator(rollout_s=0.1)
        self.trainer = others.pop("trainer", None) or FakeTrainer(
            forward_backward_s=0.05, log_probs_s=0.01, optim_s=0.3
        )
        self.slots = others.pop("slots", 64)
        self.others = others
        self.reports: list[StepReport] = []
        self.judged: dict[int, list[JudgedRollout]] = {}
        self.events = EventList()
        self.calls_left_out = 0
        self.start = Boundary(next_step=0)
        self.at_boundary: Any = None

    def run(self, steps: int = 4, **agent_settings: Any) -> "World":
        async def main() -> None:
            options = {"max_concurrency": self.slots, "timeout_s": None, "max_attempts": 1, **agent_settings}
            async with RewardAgent(self.judge, **options) as agent:
                parts = FlowParts(
                    schedule=self.schedule,
                    prompts=self.prompts,
                    generator=self.generator,
                    agent=agent,
                    trainer=self.trainer,
                    advantages=self.others.pop("advantages", CentredScores()),
                    group_size=self.group_size,
                    **{"micro_batch_tokens": 60, **self.others},
                )
                flow = Flow(
                    parts,
                    on_step=self.reports.append,
                    on_rollouts=lambda step, judged: self.judged.update({step: list(judged)}),
                    at_boundary=self.at_boundary,
                    sink=self.events,
                )
                await flow.run(steps=steps, start=self.start)
                self.calls_left_out = agent.statistics().in_flight

        clock.run(main())
        return self

    def trained(self) -> list[tuple[int, str]]:
        return [(batch.step, s.rollout.response) for batch in self.trainer.batches for s in batch.samples]

    def trained_prompts(self) -> Counter[str]:
        return Counter(s.rollout.prompt for b in self.trainer.batches for s in b.samples if s.rollout.index == 0)


def judge_of(seed: int, *, slow: Callable[[int], bool] = lambda _: False, failing: float = 0.0) -> Judge:
    """Scores and delays that depend on the answer alone."""

    async def compute_score(data_source: str, solution_str: str, ground_truth: str) -> float:
        chance = random.Random(f"{seed} {solution_str}")
        await asyncio.sleep(chance.uniform(1, 40) * (20 if slow(int(ground_truth)) else 1))
        if chance.random() < failing:
            raise ValueError("no verdict")
        return chance.random()

    return compute_score


SCHEDULES = st.builds(
    lambda minis, size, **others: Schedule(groups_per_step=minis * size, mini_batches=minis, **others),
    st.integers(1, 4),
    st.integers(1, 3),
    stream=st.sampled_from(["batch", "mini_batch", "micro_batch"]),
    max_staleness=st.integers(0, 3),
    order=st.sampled_from(["completion", "fixed"]),
    placement=st.sampled_from(["colocated", "separate"]),
    refill=st.integers(0, 3),
)


@settings(max_examples=60)
@given(SCHEDULES, st.integers(0, 99), st.sampled_from([0.0, 0.3]), st.integers(1, 40))
def test_every_group_is_trained_or_dropped_once_and_never_stale_beyond_the_bound(
    schedule: Schedule, seed: int, failing: float, slots: int
) -> None:
    world = World(schedule, judge_of(seed, failing=failing), slots=slots).run(steps=5)
    assert [report.step for report in world.reports] == [0, 1, 2, 3, 4]
    assert world.generator.generated == [(step, max(0, step - schedule.max_staleness)) for step in range(5)]
    answers = world.trained()
    assert len(set(answers)) == len(answers)
    for report in world.reports:
        dropped = sum(report.dropped.values())
        empty = max(0, dropped - report.num_reserves_used)
        assert report.num_groups == schedule.groups_per_step - empty
        assert (report.staleness_max or 0) <= schedule.max_staleness
        assert len(report.updates) == schedule.mini_batches
    for batch in world.trainer.batches:
        for sample in batch.samples:
            assert sample.rollout.step == batch.step
            assert batch.step - (sample.rollout.policy_version or 0) <= schedule.max_staleness
    assert world.calls_left_out == 0


@settings(max_examples=30)
@given(SCHEDULES, st.integers(0, 99))
def test_the_shared_device_generates_everything_admitted_before_it_trains(schedule: Schedule, seed: int) -> None:
    world = World(schedule.changed(placement="colocated"), judge_of(seed)).run(steps=4)
    done = [(event.work, event.step) for event in world.events.of(DeviceWorked)]
    for step in range(4):
        first_update = done.index(("update", step))
        for later in range(step + 1, min(4, step + schedule.max_staleness + 1)):
            assert done.index(("generate", later)) < first_update
        for newest in range(step + schedule.max_staleness + 1, 4):
            assert done.index(("generate", newest)) > done.index(("publish", step))
    intervals = sorted((event.started_s, event.at_s) for event in world.events.of(DeviceWorked))
    assert all(one[1] <= other[0] for one, other in itertools.pairwise(intervals))


@settings(max_examples=25)
@given(SCHEDULES, st.integers(0, 99), st.integers(100, 199), st.sampled_from([0.0, 0.3]))
def test_with_a_fixed_order_training_is_the_same_for_every_stream_and_whatever_the_delays(
    schedule: Schedule, one: int, other: int, failing: float
) -> None:
    def judge_with_delays(seed: int) -> Judge:
        scores = judge_of(7, failing=failing)

        async def compute_score(data_source: str, solution_str: str, ground_truth: str) -> float:
            await asyncio.sleep(random.Random(f"{seed} {solution_str}").uniform(0, 100))
            return await scores(data_source, solution_str, ground_truth)

        return compute_score

    def batches(stream: str, seed: int) -> list[Any]:
        value = schedule.changed(order="fixed", stream=stream, placement="colocated")
        world = World(value, judge_with_delays(seed), group_size=3).run(steps=3)
        return [
            (b.step, b.mini_batch, b.is_last, [(s.rollout.response, s.advantage, s.precomputed) for s in b.samples])
            for b in world.trainer.batches
        ]

    assert batches("batch", one) == batches("micro_batch", other) == batches("mini_batch", one)


def test_slowly_judged_prompts_are_trained_as_often_as_they_stand_in_the_data() -> None:
    for staleness in (0, 1, 3):
        schedule = Schedule(groups_per_step=8, mini_batches=2, stream="micro_batch", max_staleness=staleness)
        world = World(schedule, judge_of(1, slow=lambda number: number % 4 == 0), slots=16).run(steps=10)
        prompts = world.trained_prompts()
        assert prompts == Counter({str(number): 1 for number in range(80)})


def test_a_group_with_too_few_verdicts_is_dropped_and_a_failed_rollout_stays_in_place() -> None:
    async def compute_score(data_source: str, solution_str: str, ground_truth: str) -> float:
        prompt, index = map(int, solution_str.split("."))
        if prompt == 1 or (prompt == 2 and index == 0):
            raise ValueError("the judge does not know")
        return float(index)

    world = World(Schedule(groups_per_step=4), compute_score, group_size=3).run(steps=1)
    report = world.reports[0]
    assert report.dropped == {"too_few_verdicts": 1}
    assert report.failed == {"user_error": 3, "cancelled": 1}  # the third call of group 1 no longer mattered
    assert report.num_groups == 3
    (batch,) = world.trainer.batches
    assert [s.rollout.response for s in batch.samples if not s.is_scored] == ["2.0"]
    assert {s.rollout.response: s.advantage for s in batch.samples}["2.0"] == 0.0
    assert {s.rollout.response: s.advantage for s in batch.samples}["2.1"] == -0.5


@pytest.mark.parametrize("order", ["completion", "fixed"])
def test_groups_with_equal_scores_are_filtered_and_refilled_from_the_reserve(order: Any) -> None:
    async def compute_score(data_source: str, solution_str: str, ground_truth: str) -> float:
        prompt, index = map(int, solution_str.split("."))
        await asyncio.sleep(prompt % 3)
        return 1.0 if prompt in (1, 2, 5) else float(index)

    schedule = Schedule(groups_per_step=4, refill=3, drop_equal_scores=True, order=order)
    world = World(schedule, compute_score).run(steps=1)
    report = world.reports[0]
    assert report.dropped == {"equal_scores": 3}
    assert (report.num_groups, report.num_reserves_used) == (4, 3)
    assert set(world.trained_prompts()) == {"0", "3", "4", "6"}


def test_prompts_of_reserves_that_were_never_judged_come_again() -> None:
    schedule = Schedule(groups_per_step=4, refill=2)
    world = World(schedule, judge_of(0)).run(steps=3)
    assert world.trained_prompts() == Counter({str(number): 1 for number in range(12)})
    judged = {response for _, response in world.trained()}
    assert len(judged) == 3 * 4 * 4


def test_more_rounds_of_reserves_are_generated_before_the_first_update_only() -> None:
    async def compute_score(data_source: str, solution_str: str, ground_truth: str) -> float:
        prompt, index = map(int, solution_str.split("."))
        return 1.0 if prompt < 6 else float(index)

    schedule = Schedule(groups_per_step=2, refill=1, refill_rounds=5, drop_equal_scores=True, mini_batches=2)
    world = World(schedule, compute_score).run(steps=1)
    assert set(world.trained_prompts()) == {"6", "7"}
    assert world.trainer.num_log_probs == 8 * 4
    few = World(schedule.changed(refill_rounds=2), compute_score).run(steps=1)
    assert few.reports[0].num_groups == 0


def test_a_straggler_is_given_up_after_its_time_and_the_rest_of_its_group_trains() -> None:
    async def compute_score(data_source: str, solution_str: str, ground_truth: str) -> float:
        prompt, index = map(int, solution_str.split("."))
        await asyncio.sleep(1e6 if (prompt, index) == (1, 2) else 1.0)
        return float(index)

    world = World(Schedule(groups_per_step=4, straggler_s=60.0), compute_score).run(steps=2)
    assert world.reports[0].failed == {"cancelled": 1}
    assert world.reports[0].num_groups == 4
    assert world.reports[0].duration_s < 70


def test_old_log_probs_are_of_the_weights_before_the_first_update_and_behaviour_of_those_that_generated() -> None:
    schedule = Schedule(groups_per_step=4, mini_batches=2, stream="mini_batch", max_staleness=1)
    world = World(schedule, judge_of(3), takes_behaviour=True, takes_reference=True).run(steps=4)
    for batch in world.trainer.batches:
        for sample in batch.samples:
            assert sample.precomputed.old == ("policy", 2 * batch.step)
            assert sample.precomputed.behaviour == ("policy", 2 * (sample.rollout.policy_version or 0))
            assert sample.precomputed.reference[0] == "reference"


def test_several_epochs_train_every_group_as_often() -> None:
    world = World(Schedule(groups_per_step=4, mini_batches=2, epochs=3), judge_of(0)).run(steps=2)
    assert len(world.reports[0].updates) == 6
    assert set(Counter(world.trained()).values()) == {3}
    assert world.reports[0].num_groups == 4


def test_advantages_that_need_the_batch_see_all_of_it_and_are_refused_where_they_cannot() -> None:
    seen = []

    class Whitened(CentredScores):
        def __call__(self, groups: Any, precomputed_of: Any = None) -> Any:
            seen.append(len(groups))
            return super().__call__(groups)

    World(Schedule(groups_per_step=6, mini_batches=3), judge_of(0), advantages=Whitened(needs="batch")).run(steps=2)
    assert [count for count in seen if count] == [6, 6]
    with pytest.raises(InvalidInput, match="need a whole batch before the first one, which stream=mini_batch"):
        World(
            Schedule(groups_per_step=6, stream="mini_batch"), judge_of(0), advantages=CentredScores(needs="batch")
        ).run(steps=1)


def test_the_last_step_is_the_last_thing_that_is_generated() -> None:
    world = World(Schedule(groups_per_step=4, max_staleness=3), judge_of(0)).run(steps=2)
    assert [step for step, _ in world.generator.generated] == [0, 1]
    assert world.prompts.num_made == 8


@pytest.mark.parametrize("placement", ["colocated", "separate"])
def test_an_error_of_the_trainer_ends_the_run_and_leaves_no_call_out(placement: Any) -> None:
    class Broken(FakeTrainer):
        async def forward_backward(self, batch: Any) -> None:
            raise RuntimeError("out of memory")

    world = World(Schedule(groups_per_step=4, max_staleness=1, placement=placement), judge_of(0), trainer=Broken())
    with pytest.raises(RuntimeError, match="out of memory"):
        world.run(steps=3)


def test_a_service_that_stays_down_ends_the_run_with_the_agents_own_words() -> None:
    async def compute_score(data_source: str, solution_str: str, ground_truth: str) -> float:
        raise ConnectionError("refused")

    world = World(Schedule(groups_per_step=32), compute_score)
    with pytest.raises(ServiceOutage):
        world.run(steps=3, outage_give_up_s=60.0)


def test_a_cancelled_loop_ends_its_calls() -> None:
    async def main() -> int:
        schedule = Schedule(groups_per_step=4, max_staleness=1)
        async with RewardAgent(judge_of(0, slow=lambda _: True), max_concurrency=64, timeout_s=None) as agent:
            parts = FlowParts(
                schedule=schedule,
                prompts=FakePrompts(),
                generator=FakeGenerator(rollout_s=0.1),
                agent=agent,
                trainer=FakeTrainer(),
                advantages=CentredScores(),
                group_size=4,
            )
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(10):
                    await Flow(parts).run(steps=3)
            await asyncio.sleep(0)
            return agent.statistics().in_flight

    assert clock.run(main()) == 0


@pytest.mark.parametrize("fault", ["twice", "missing", "stale"])
def test_a_generator_that_breaks_its_promise_is_found_out(fault: str) -> None:
    class Faulty(FakeGenerator):
        async def generate(self, requests: Any) -> Any:
            async for rollout in super().generate(requests):
                if fault == "missing" and rollout.index == 1:
                    continue
                yield rollout
                if fault == "twice":
                    yield rollout

        async def publish(self, version: int) -> None:
            if fault != "stale":
                await super().publish(version)

    with pytest.raises(FlowError):
        World(Schedule(groups_per_step=2), judge_of(0), generator=Faulty()).run(steps=2)


def test_rewards_stay_with_their_own_rollouts_in_whatever_order_groups_finish() -> None:
    async def compute_score(data_source: str, solution_str: str, ground_truth: str) -> float:
        await asyncio.sleep(random.Random(solution_str).uniform(0, 50))
        return float(solution_str)

    schedule = Schedule(groups_per_step=6, mini_batches=2, stream="micro_batch", max_staleness=2)
    generator = FakeGenerator(num_tokens=lambda request, index: 1 + (request.number * 7 + index) % 13)
    world = World(schedule, compute_score, generator=generator).run(steps=5)
    for batch in world.trainer.batches:
        for sample in batch.samples:
            assert sample.reward.value == float(sample.rollout.response)


def test_time_is_accounted_for_to_the_last_second() -> None:
    for stream in ("batch", "mini_batch", "micro_batch"):
        world = World(Schedule(groups_per_step=8, mini_batches=2, stream=stream, max_staleness=1), judge_of(2)).run()
        for report in world.reports:
            assert report.usage.wall_s == pytest.approx(report.duration_s)
            line = report.to_json()
            assert line["exposed_s"] + sum(line["busy_s"].values()) <= report.duration_s + 1e-6
            assert line["source"] == "train"


def test_a_record_of_each_kind_can_be_told_from_its_fields() -> None:
    request = GroupRequest(number=7, step=1, prompt=Prompt(uid="a"), group_size=2)
    assert request.group_id == "7"
    assert issubclass(FlowError, Exception)
    assert Rollout(group_id="7", response="x").token_ids is None


@settings(max_examples=25)
@given(SCHEDULES, st.integers(0, 99), st.integers(1, 4), st.sampled_from([0.0, 0.3]))
def test_a_run_that_goes_on_from_a_boundary_trains_what_an_undisturbed_one_would(
    schedule: Schedule, seed: int, stop_after: int, failing: float
) -> None:
    schedule = schedule.changed(order="fixed")
    judge = judge_of(seed, failing=failing)

    class Cut(Exception):
        """The machine died here."""

    def batches(world: World) -> list[Any]:
        return [
            (b.step, b.mini_batch, [(s.rollout.response, s.rollout.policy_version, s.advantage) for s in b.samples])
            for b in world.trainer.batches
        ]

    undisturbed = World(schedule, judge).run(steps=5)
    first, boundaries = World(schedule, judge), []

    async def cut(boundary: Boundary) -> None:
        boundaries.append(boundary)
        if boundary.next_step == stop_after:
            raise Cut

    first.at_boundary = cut
    with pytest.raises(Cut):
        first.run(steps=5)
    second = World(schedule, judge)
    second.prompts = first.prompts
    second.trainer.num_updates = stop_after
    second.start = boundaries[-1]
    second.run(steps=5)
    assert batches(first) + batches(second) == batches(undisturbed)
    assert first.prompts.num_made == undisturbed.prompts.num_made


def test_a_run_that_goes_on_takes_the_reference_log_probs_that_were_not_taken_when_it_was_saved() -> None:
    """With devices of their own, a step may be published while another's are being computed."""

    async def note(boundary: Boundary) -> None:
        boundaries.append(boundary)

    schedule = Schedule(groups_per_step=6, max_staleness=1, placement="separate", order="fixed")
    boundaries: list[Boundary] = []
    slow = FakeGenerator(rollout_s=60.0)  # so that publishing waits for it, and comes right after
    first = World(schedule, judge_of(0), generator=slow, takes_reference=True)
    first.at_boundary = note
    first.run(steps=3)
    precomputed = [
        one.precomputed.reference is not None for saved in boundaries[0].open_steps for one in saved.rollouts
    ]
    assert set(precomputed) == {True, False}
    second = World(schedule, judge_of(0), takes_reference=True)
    second.prompts.num_made = 12
    second.start = boundaries[0]
    second.run(steps=3)
    samples = [sample for batch in second.trainer.batches for sample in batch.samples]
    assert len(samples) == 48
    assert all(sample.precomputed.reference is not None for sample in samples)


def test_a_step_is_reported_before_its_boundary_whose_time_is_the_next_ones() -> None:
    world = World(Schedule(groups_per_step=4), judge_of(0))
    reported = []

    async def wait(boundary: Boundary) -> None:
        reported.append(len(world.reports))
        await asyncio.sleep(1000.0)

    world.at_boundary = wait
    world.run(steps=3)
    assert reported == [1, 2, 3]
    assert [report.usage.idle_s.get("checkpoint", 0.0) for report in world.reports] == [0.0, 1000.0, 1000.0]
    assert all(report.usage.wall_s == pytest.approx(report.duration_s) for report in world.reports)


def test_a_limit_on_stragglers_spares_calls_that_wait_in_the_queue() -> None:
    async def compute_score(data_source: str, solution_str: str, ground_truth: str) -> float:
        await asyncio.sleep(1.0)
        return float(solution_str)

    schedule = Schedule(groups_per_step=32, mini_batches=4, stream="mini_batch", straggler_s=10.0)
    world = World(schedule, compute_score, slots=1).run(steps=1)
    assert world.reports[0].failed == {}
    assert world.reports[0].num_groups == 32


@settings(max_examples=30)
@given(st.integers(0, 99), st.floats(1, 60), st.integers(1, 16))
def test_stragglers_and_rounds_of_reserves_together_give_every_group_one_fate(
    seed: int, limit_s: float, slots: int
) -> None:
    schedule = Schedule(groups_per_step=4, refill=1, refill_rounds=3, drop_equal_scores=True, straggler_s=limit_s)
    world = World(schedule, judge_of(seed, failing=0.4), slots=slots).run(steps=2)
    for report in world.reports:
        empty = max(0, sum(report.dropped.values()) - report.num_reserves_used)
        assert report.num_groups == 4 - empty


def test_the_other_calls_of_a_group_that_cannot_be_kept_are_cancelled() -> None:
    async def compute_score(data_source: str, solution_str: str, ground_truth: str) -> float:
        prompt, index = map(int, solution_str.split("."))
        if prompt == 1 and index < 3:
            raise ValueError("no verdict")
        await asyncio.sleep(1e6 if prompt == 1 else 1.0)
        return float(index)

    world = World(Schedule(groups_per_step=3), compute_score).run(steps=1)
    assert world.reports[0].dropped == {"too_few_verdicts": 1}
    assert world.reports[0].failed == {"user_error": 3, "cancelled": 1}
    assert world.reports[0].duration_s < 100


def test_verdicts_that_have_landed_hide_nothing() -> None:
    async def compute_score(data_source: str, solution_str: str, ground_truth: str) -> float:
        return float(solution_str)

    world = World(Schedule(groups_per_step=8), compute_score, generator=FakeGenerator(rollout_s=10.0)).run(steps=2)
    assert all(report.usage.hidden_s < 1e-6 for report in world.reports)


def test_advantages_of_a_mini_batch_see_the_same_groups_for_every_stream() -> None:
    def sizes(stream: Any) -> list[int]:
        seen = []

        class Noted(CentredScores):
            def __call__(self, groups: Any, precomputed_of: Any = None) -> Any:
                seen.append(len(groups))
                return super().__call__(groups, precomputed_of)

        schedule = Schedule(groups_per_step=6, mini_batches=3, stream=stream, order="fixed")
        World(schedule, judge_of(0), advantages=Noted(needs="mini_batch")).run(steps=1)
        return [size for size in seen if size]

    assert sizes("batch") == sizes("mini_batch") == [2, 2, 2]


def test_a_separate_trainer_that_waits_to_publish_is_not_busy() -> None:
    schedule = Schedule(groups_per_step=4, max_staleness=1, placement="separate")
    world = World(schedule, judge_of(0), generator=FakeGenerator(rollout_s=10.0)).run(steps=3)
    assert sum(report.usage.busy_s.get("publish", 0.0) for report in world.reports) == 0.0


@pytest.mark.parametrize("wrong", [{"step": 7}, {"group_size": 8}])
def test_a_rollout_that_says_something_else_than_was_asked_is_found_out(wrong: dict[str, int]) -> None:
    class Faulty(FakeGenerator):
        async def generate(self, requests: Any) -> Any:
            async for rollout in super().generate(requests):
                yield dataclasses.replace(rollout, **wrong)

    with pytest.raises(FlowError, match="with step=0 and group_size=4"):
        World(Schedule(groups_per_step=2), judge_of(0), generator=Faulty()).run(steps=1)


def test_a_prompt_source_that_runs_dry_is_told() -> None:
    world = World(Schedule(groups_per_step=2), judge_of(0))
    world.prompts.take = lambda count: []  # type: ignore[method-assign]
    with pytest.raises(FlowError, match="got 0 for 2"):
        world.run(steps=1)


def test_a_group_that_could_never_be_kept_is_refused_at_the_start() -> None:
    with pytest.raises(InvalidInput, match="min_group=5, group_size=4"):
        World(Schedule(groups_per_step=2, min_group=5), judge_of(0)).run(steps=1)


# -- what is told of rollouts and figures --


@settings(max_examples=40)
@given(SCHEDULES, st.integers(0, 99), st.sampled_from([0.0, 0.3, 0.7]), st.booleans())
def test_every_judged_rollout_is_told_once_with_what_became_of_it(
    schedule: Schedule, seed: int, failing: float, drops_equal: bool
) -> None:
    schedule = schedule.changed(drop_equal_scores=drops_equal)
    world = World(schedule, judge_of(seed, failing=failing)).run(steps=3)
    for report in world.reports:
        told = world.judged[report.step]
        places = [(one.rollout.group_id, one.rollout.index) for one in told]
        assert len(set(places)) == len(places) == report.num_scored + sum(report.failed.values())
        trained = [one for one in told if one.why_not is None]
        in_part = [one for one in told if one.why_not in (None, "failed")]
        samples = [s for batch in world.trainer.batches if batch.step == report.step for s in batch.samples]
        assert {one.rollout.response for one in in_part} == {sample.rollout.response for sample in samples}
        advantages = {s.rollout.response: s.advantage for s in samples if s.is_scored}
        assert {one.rollout.response: one.advantage for one in trained} == advantages
        assert all(one.reward.value is None for one in told if one.why_not == "failed")
        dropped = Counter({reason: 4 * count for reason, count in report.dropped.items()})
        assert Counter(one.why_not for one in told if one.why_not in ("too_few_verdicts", "equal_scores")) == dropped


def test_an_update_says_which_mini_batch_of_which_epoch_it_was() -> None:
    schedule = Schedule(groups_per_step=4, mini_batches=2, epochs=2, stream="batch")
    (report,) = World(schedule, judge_of(0)).run(steps=1).reports
    assert [(update.epoch, update.mini_batch) for update in report.updates] == [(0, 0), (0, 1), (1, 0), (1, 1)]


@pytest.mark.parametrize("placement", ["colocated", "separate"])
def test_tokens_a_second_are_those_of_the_time_that_generating_took(placement: Any) -> None:
    schedule = Schedule(groups_per_step=4, placement=placement)
    for report in World(schedule, judge_of(0)).run(steps=3).reports:
        assert report.generated_tokens_per_s == pytest.approx(4 / 0.1)  # tokens and seconds of a rollout of the fake


def test_calls_and_retries_of_the_steps_add_up_to_those_of_the_run() -> None:
    attempts: Counter[str] = Counter()

    async def once_more(solution_str: str) -> float:
        attempts[solution_str] += 1
        if attempts[solution_str] == 1 and solution_str.endswith(".0"):
            raise ServiceError("busy")
        return 1.0

    world = World(Schedule(groups_per_step=4, max_staleness=1), once_more).run(steps=3, max_attempts=3)
    assert sum(report.num_calls for report in world.reports) == attempts.total() == 3 * 20
    assert sum(report.num_retries for report in world.reports) == 3 * 4


def test_figures_are_taken_together_by_their_mean_and_extremes_by_the_most_extreme() -> None:
    parts = [{"kl": 1.0, "a_max": 3.0, "a_min": 2.0}, {"kl": 3.0, "a_max": 1.0, "a_min": 1.0, "only_here": 5.0}]
    assert combined_metrics(parts) == {"kl": 2.0, "a_max": 3.0, "a_min": 1.0, "only_here": 5.0}
    assert combined_metrics([]) == {}


# ---- critics and baselines -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", ["batch", "mini_batch", "micro_batch"])
def test_values_are_taken_before_a_steps_first_update_while_verdicts_are_out(stream: Any) -> None:
    schedule = Schedule(groups_per_step=4, mini_batches=2, stream=stream, max_staleness=1)
    trainer = FakeTrainer(log_probs_s=0.01)
    world = World(schedule, judge_of(3), trainer=trainer, critic=trainer).run(steps=3)
    precomputed = {(b.step, s.precomputed.values, s.precomputed.old) for b in world.trainer.batches for s in b.samples}
    assert precomputed == {(step, ("values", 2 * step), ("policy", 2 * step)) for step in range(3)}
    assert all(report.usage.hidden_s > 0 for report in world.reports)


def test_values_of_reserves_that_came_later_are_taken_too() -> None:
    async def compute_score(data_source: str, solution_str: str, ground_truth: str) -> float:
        prompt, index = map(int, solution_str.split("."))
        return 1.0 if prompt < 4 else float(index)

    schedule = Schedule(groups_per_step=4, refill=2, refill_rounds=2, drop_equal_scores=True)
    trainer = FakeTrainer()
    world = World(schedule, compute_score, trainer=trainer, critic=trainer).run(steps=1)
    samples = [sample for batch in world.trainer.batches for sample in batch.samples]
    assert {sample.precomputed.values for sample in samples} == {("values", 0)}
    assert world.reports[0].num_groups == 4


def test_old_log_probs_are_taken_with_one_update_a_step_where_the_advantages_ask_for_them() -> None:
    for takes_old in (False, True):
        world = World(Schedule(groups_per_step=4), judge_of(3), takes_old=takes_old).run(steps=1)
        old = {sample.precomputed.old for batch in world.trainer.batches for sample in batch.samples}
        assert old == {("policy", 0) if takes_old else None}


class AgainstLast:
    """Score minus that of the group's last rollout."""

    needs = "group"

    def __call__(self, groups: Any, precomputed_of: Any = None) -> Any:
        return [[(reward.value or 0.0) - group.rewards[-1].value for reward in group.rewards] for group in groups]


def with_baseline(judge: Judge, **schedule: Any) -> World:
    world = World(
        Schedule(**{"groups_per_step": 4, **schedule}),
        judge,
        group_size=2,
        has_baseline=True,
        advantages=AgainstLast(),
        takes_reference=True,
    )
    return world.run(steps=1)


def test_a_baseline_is_judged_and_compared_with_and_neither_trained_nor_looked_at() -> None:
    async def compute_score(solution_str: str, extra_info: dict[str, Any]) -> float:
        assert extra_info["greedy"] is solution_str.endswith(".2")
        return float(solution_str.split(".")[1])

    world = with_baseline(compute_score)
    samples = [sample for batch in world.trainer.batches for sample in batch.samples]
    assert sorted(s.rollout.response for s in samples) == [f"{i}.{j}" for i in range(4) for j in range(2)]
    assert {sample.advantage for sample in samples} == {-2.0, -1.0}
    assert world.trainer.num_log_probs == 8
    report = world.reports[0]
    assert (report.num_scored, report.score_mean, report.baseline_score_mean) == (12, 0.5, 2.0)
    fates = Counter((one.rollout.index, one.why_not) for one in world.judged[0])
    assert fates == {(0, None): 4, (1, None): 4, (2, "baseline"): 4}


def test_a_group_whose_baseline_has_no_verdict_is_dropped_with_that_reason_and_refilled() -> None:
    async def compute_score(solution_str: str) -> float:
        prompt, index = map(int, solution_str.split("."))
        if (prompt, index) == (1, 2):
            raise ValueError("the judge does not know")
        await asyncio.sleep(1 + index)
        return float(index)

    world = with_baseline(compute_score, refill=1)
    report = world.reports[0]
    assert report.dropped == {"no_baseline": 1}
    assert report.failed == {"user_error": 1, "cancelled": 2}  # the other calls of the group no longer mattered
    assert (report.num_groups, report.num_reserves_used) == (4, 1)
    assert world.trained_prompts() == Counter(["0", "2", "3", "4"])


def test_verdicts_that_a_group_needs_are_counted_without_its_baseline() -> None:
    async def compute_score(solution_str: str) -> float:
        prompt, index = map(int, solution_str.split("."))
        if (prompt, index) == (1, 0):
            raise ValueError("the judge does not know")
        return 1.0

    assert with_baseline(compute_score).reports[0].dropped == {"too_few_verdicts": 1}
    assert with_baseline(compute_score, min_group=1).reports[0].dropped == {}


def test_scores_that_equal_the_baselines_teach_nothing_and_those_that_do_not_do() -> None:
    async def compute_score(solution_str: str) -> float:
        prompt, index = map(int, solution_str.split("."))
        return 1.0 if prompt == 0 or index < 2 else 0.0

    report = with_baseline(compute_score, drop_equal_scores=True).reports[0]
    assert report.dropped == {"equal_scores": 1}


def test_a_prompt_that_calls_itself_greedy_is_trained_like_any_other() -> None:
    class Greedy(FakePrompts):
        def take(self, count: int) -> Any:
            return [dataclasses.replace(prompt, extra_info={"greedy": True}) for prompt in super().take(count)]

    world = World(Schedule(groups_per_step=2), judge_of(3), group_size=2)
    world.prompts = Greedy()
    assert len(world.run(steps=1).trained()) == 4
