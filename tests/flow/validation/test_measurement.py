"""Versions are validated while training continues: on a clock that jumps, with every schedule."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewardflow import clock
from rewardflow.errors import FlowError, InvalidInput
from rewardflow.flow.fakes import CentredScores, FakeGenerator, FakePrompts, FakeTrainer
from rewardflow.flow.flow_parts import FlowParts
from rewardflow.flow.records import Boundary, GroupRequest, Prompt
from rewardflow.flow.reports import StepReport
from rewardflow.flow.run import Flow
from rewardflow.flow.schedule import Schedule
from rewardflow.flow.validation.validation_plan import Occasions, ValidationPlan
from rewardflow.flow.validation.validation_report import Validated
from rewardflow.observe.events import DeviceWorked, EventList
from rewardflow.observe.run_directory import read_steps
from rewardflow.reward.agent import RewardAgent
from rewardflow.types import Rollout

PROMPTS = tuple(Prompt(uid=str(i), text=f"v{i}", ground_truth=f"v{i}", data_source="abc"[i % 3]) for i in range(5))


@dataclass(slots=True, kw_only=True)
class Latency:
    """A judge that takes the given times, records the order of its calls, and scores by the answer alone."""

    train_s: float = 5.0
    validation_s: float = 5.0
    asked: list[str] = field(default_factory=list)

    async def compute_score(self, solution_str: str, ground_truth: str, extra_info: dict[str, Any]) -> float:
        self.asked.append(f"{ground_truth}")
        await asyncio.sleep(self.validation_s if ground_truth.startswith("v") else self.train_s)
        if random.Random(solution_str).random() < 0.2:
            raise ValueError("no verdict")
        return random.Random(f"{solution_str} ").random()

    @property
    def num_validation_calls(self) -> int:
        return sum(asked.startswith("v") for asked in self.asked)


@dataclass(slots=True, kw_only=True)
class NotingGenerator(FakeGenerator):
    """Records (step, version) of each call, separately for training and validation."""

    trained: list[tuple[int, int]] = field(default_factory=list)
    measured: list[tuple[int, int]] = field(default_factory=list)

    def generate(self, requests: Sequence[GroupRequest]) -> AsyncGenerator[Rollout]:
        (self.measured if requests[0].prefix else self.trained).append((requests[0].step, self.version))
        return FakeGenerator.generate(self, requests)


class ValidatedRun:
    """One run of the flow with fakes and validations."""

    def __init__(
        self, schedule: Schedule, judge: Any, *, steps: int = 4, is_measured: bool = True, **when: Any
    ) -> None:
        self.schedule, self.judge, self.steps = schedule, judge, steps
        self.generator = NotingGenerator(rollout_s=0.1)
        occasions = Occasions(**{"every": 2, **when})
        self.plan: ValidationPlan | None = None
        if is_measured:
            self.plan = ValidationPlan(prompts=PROMPTS, group_size=2, occasions=occasions)
        self.trainer = FakeTrainer(forward_backward_s=0.05, log_probs_s=0.01, optim_s=0.3)
        self.events = EventList()
        self.told: list[StepReport | Validated] = []
        self.boundaries: list[Boundary] = []
        self.start = Boundary(next_step=0)
        self.duration_s = 0.0

    def run(self, **agent_settings: Any) -> ValidatedRun:
        async def keep(boundary: Boundary) -> None:
            self.boundaries.append(boundary)

        async def main() -> None:
            options = {"max_concurrency": 64, "timeout_s": None, "max_attempts": 1, "outage_share": None}
            async with RewardAgent(self.judge, **{**options, **agent_settings}) as agent:
                parts = FlowParts(
                    schedule=self.schedule,
                    prompts=FakePrompts(),
                    generator=self.generator,
                    agent=agent,
                    trainer=self.trainer,
                    advantages=CentredScores(),
                    group_size=2,
                    validation=self.plan,
                )
                flow = Flow(
                    parts,
                    on_step=self.told.append,
                    at_boundary=keep,
                    sink=self.events,
                    on_validation=self.told.append,
                )
                started_s = asyncio.get_running_loop().time()
                await flow.run(steps=self.steps, start=self.start)
                self.duration_s = asyncio.get_running_loop().time() - started_s
                assert flow.statistics().validations == ()
                assert agent.statistics().in_flight == 0

        clock.run(main())
        return self

    @property
    def reports(self) -> list[StepReport]:
        return [one for one in self.told if isinstance(one, StepReport)]

    @property
    def validated(self) -> list[Validated]:
        return [one for one in self.told if isinstance(one, Validated)]

    @property
    def order(self) -> list[str]:
        names = []
        for one in self.told:
            names.append(f"step {one.step}" if isinstance(one, StepReport) else f"version {one.report.version}")
        return names

    def work(self) -> list[tuple[str, int]]:
        return [(event.work, event.step) for event in self.events.of(DeviceWorked)]

    def trained(self) -> list[tuple[int, str, object]]:
        return [(b.step, s.rollout.response, s.advantage) for b in self.trainer.batches for s in b.samples]


SYNCHRONOUS = Schedule(groups_per_step=4, min_group=1)
SCHEDULES = st.builds(
    lambda minis, size, **others: Schedule(groups_per_step=minis * size, mini_batches=minis, min_group=1, **others),
    st.integers(1, 3),
    st.integers(1, 3),
    stream=st.sampled_from(["batch", "mini_batch", "micro_batch"]),
    max_staleness=st.integers(0, 3),
    order=st.just("fixed"),
    placement=st.sampled_from(["colocated", "separate"]),
    refill=st.integers(0, 2),
)


@settings(max_examples=40)
@given(SCHEDULES, st.integers(1, 3), st.booleans(), st.floats(0.0, 60.0), st.integers(1, 40))
def test_each_version_that_is_due_is_measured_once_by_itself_and_training_is_not_changed_by_it(
    schedule: Schedule, every: int, at_start: bool, validation_s: float, slots: int
) -> None:
    judge = Latency(validation_s=validation_s)
    run = ValidatedRun(schedule, judge, steps=5, every=every, at_start=at_start, at_end=True).run(max_concurrency=slots)
    due = [version for version in range(6) if (version and version % every == 0) or version == 5]
    due = [0, *due] if at_start else due
    assert sorted(one.report.version for one in run.validated) == due
    assert run.generator.measured == [(version, version) for version in due]
    for one in run.validated:
        assert [group.rollouts[0].prompt for group in one.groups] == [prompt.text for prompt in PROMPTS]
        assert {rollout.policy_version for group in one.groups for rollout in group.rollouts} == {one.report.version}
    assert run.generator.trained == [(step, max(0, step - schedule.max_staleness)) for step in range(5)]
    plain = ValidatedRun(schedule, Latency(), steps=5, is_measured=False).run(max_concurrency=slots)
    assert run.trained() == plain.trained()


@settings(max_examples=25)
@given(SCHEDULES, st.integers(1, 2))
def test_a_version_is_measured_between_its_publishing_and_the_next_update(schedule: Schedule, every: int) -> None:
    """With generation on a separate device, the next publishing must wait."""
    run = ValidatedRun(schedule, Latency(), steps=4, every=every, at_start=True).run()
    changing = "publish" if schedule.placement == "separate" else "update"
    version = 0
    for work, step in run.work():
        if work == "validate":
            assert step == version
        elif work == changing:
            version = step + 1
    assert [step for work, step in run.work() if work == "validate"] == [v for v in range(5) if v % every == 0]


def test_training_goes_on_while_the_verdicts_of_a_validation_are_out() -> None:
    run = ValidatedRun(SYNCHRONOUS, Latency(validation_s=25), every=2, at_end=False).run()
    assert run.order == ["step 0", "step 1", "step 2", "step 3", "version 2", "version 4"]
    plain = ValidatedRun(SYNCHRONOUS, Latency(), is_measured=False).run()
    took_s = [report.duration_s for report in run.reports]
    without_s = [report.duration_s for report in plain.reports]
    # Step 2 generates first, and the validation is generated while step 2's verdicts are out: nothing waits for it.
    assert took_s == pytest.approx(without_s)


def test_the_time_of_the_device_is_booked_as_validation_and_steps_without_it_have_none() -> None:
    run = ValidatedRun(SYNCHRONOUS, Latency(train_s=0.0), every=2, at_end=False).run()
    validate_s = [report.usage.busy_s.get("validate", 0.0) for report in run.reports]
    assert validate_s == pytest.approx([0.0, 0.0, 1.0, 0.0])  # 5 prompts x 2 rollouts x 0.1 s
    for report in run.reports:
        assert report.usage.wall_s == pytest.approx(report.duration_s)
    assert run.validated[0].report.generate_s == pytest.approx(1.0)


def test_the_run_ends_when_the_last_validation_is_told() -> None:
    run = ValidatedRun(SYNCHRONOUS, Latency(validation_s=1000), every=None, at_end=True).run()
    assert run.order[-1] == "version 4"
    assert run.duration_s > 1000


def test_where_slots_are_scarce_training_up_to_the_next_validation_goes_first_and_later_training_does_not() -> None:
    """One call at a time, and a step has eight: the ten of version 2 are due with step 4."""
    judge = Latency(train_s=1.0, validation_s=1.0)
    schedule = Schedule(groups_per_step=4, min_group=1, max_staleness=1)
    ValidatedRun(schedule, judge, steps=8, every=2, at_end=False).run(max_concurrency=1)
    who = ["validation" if asked.startswith("v") else int(asked) // 4 for asked in judge.asked]
    first = who.index("validation")
    first_ten = [i for i, one in enumerate(who) if one == "validation"][:10]
    assert first >= 2 * 8
    late = [one for one in who[: first_ten[-1]] if one != "validation" and one >= 4]
    assert late == [], "step 4 must wait until version 2 is measured"
    before_last = Counter(one for one in who[: first_ten[0]] if one != "validation")
    assert before_last[2] >= 7  # all but a rollout that was not generated yet when a slot was free


def test_a_validation_counts_in_totals_of_its_own(tmp_path: Path) -> None:
    ValidatedRun(SYNCHRONOUS, Latency(), steps=2, every=1, at_start=True).run(run_dir=tmp_path / "run")
    steps = read_steps(tmp_path / "run")
    assert {step: sorted(sources) for step, sources in steps.items()} == {
        0: ["reward", "validation"],
        1: ["reward", "validation"],
        2: ["validation"],
    }
    assert [steps[step]["reward"]["rollouts"] for step in (0, 1)] == [8, 8]
    assert [steps[step]["validation"]["rollouts"] for step in (0, 1, 2)] == [10, 10, 10]


def test_what_was_delivered_before_a_kill_is_not_asked_again_and_the_report_is_the_same(tmp_path: Path) -> None:
    """Version 2 awaits verdicts at the boundary of step 3, where the resumed run starts."""
    journal = tmp_path / "journal.db"
    first = Latency(validation_s=25)
    run = ValidatedRun(SYNCHRONOUS, first, every=2, at_end=False).run(journal=journal)
    saved = next(boundary for boundary in run.boundaries if boundary.next_step == 3)
    assert [measured.step for measured in saved.validations] == [2]
    second = Latency(validation_s=25)
    resumed = ValidatedRun(SYNCHRONOUS, second, every=2, at_end=False)
    resumed.start = saved
    resumed.run(journal=journal)
    assert second.num_validation_calls == 0
    assert resumed.generator.measured == [(4, 4)]
    assert [one.report.overall for one in resumed.validated] == [one.report.overall for one in run.validated]


def test_a_validation_of_the_version_that_a_run_resumes_at_is_generated_again_and_paid_for_once(tmp_path: Path) -> None:
    journal = tmp_path / "journal.db"
    run = ValidatedRun(SYNCHRONOUS, Latency(), every=2).run(journal=journal)
    saved = next(boundary for boundary in run.boundaries if boundary.next_step == 2)
    assert saved.validations == ()
    judge = Latency()
    resumed = ValidatedRun(SYNCHRONOUS, judge, every=2)
    resumed.start = saved
    resumed.run(journal=journal)
    assert sorted(one.report.version for one in resumed.validated) == [2, 4]
    assert judge.num_validation_calls == 0


def test_a_run_that_fails_leaves_no_call_of_a_validation_behind() -> None:
    @dataclass(slots=True, kw_only=True)
    class Breaking(FakeTrainer):
        async def optim_step(self, token_share: float = 1.0) -> Any:
            if self.num_updates == 2:
                raise FlowError("broken")
            return await FakeTrainer.optim_step(self)

    run = ValidatedRun(SYNCHRONOUS, Latency(validation_s=10_000), every=1)
    run.trainer = Breaking()
    with pytest.raises(FlowError, match="broken"):
        run.run()
    assert run.validated == []


def test_a_generator_that_measures_another_version_is_refused() -> None:
    @dataclass(slots=True, kw_only=True)
    class Stuck(NotingGenerator):
        def _rollout(self, request: GroupRequest, index: int, version: int) -> Rollout:
            return FakeGenerator._rollout(self, request, index, 0 if request.prefix else version)

    run = ValidatedRun(SYNCHRONOUS, Latency(), every=1)
    run.generator = Stuck()
    with pytest.raises(FlowError, match="validation of version 1 must be generated by it, got policy_version=0"):
        run.run()


def test_a_plan_that_cannot_be_measured_is_refused() -> None:
    with pytest.raises(InvalidInput, match="k of pass@k must not exceed the rollouts of a prompt, got k=4, rollouts=2"):
        ValidationPlan(prompts=PROMPTS, group_size=2, ks=(1, 4))
    with pytest.raises(InvalidInput, match="at least one prompt"):
        ValidationPlan(prompts=())
