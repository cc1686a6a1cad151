"""What people see of a run: numbers from its reports and its statistics, on a terminal and elsewhere."""

from __future__ import annotations

import asyncio
import dataclasses
import io
from typing import Any

from rich.console import Console

from rewardflow.cli.train.live_view import TrainView, reward_curve
from rewardflow.flow.device_usage import UsageTotals
from rewardflow.flow.records import UpdateReport
from rewardflow.flow.reports import StepReport
from rewardflow.flow.run import FlowStatistics
from rewardflow.flow.validation.measurement import ValidationStatistics
from rewardflow.flow.validation.validation_report import PassAt, Validated, ValidationFigures, ValidationReport
from rewardflow.reward.agent import RewardAgent
from rewardflow.reward.agent_statistics import AgentStatistics

WAITING = FlowStatistics(
    step=1, version=1, num_steps=10, num_ready=3, num_untrained=8, work=None, waits_for="reward", verdicts_out=1234
)
UPDATING = FlowStatistics(
    step=1, version=1, num_steps=10, num_ready=3, num_untrained=8, work="update", waits_for="other", verdicts_out=0
)


def report(step: int = 0, **fields: Any) -> StepReport:
    usage = UsageTotals(
        busy_s={"generate": 2.0, "log_probs": 0.5, "update": 1.0, "publish": 0.0},
        idle_s={"reward": 0.3, "other": 0.2},
        hidden_s=3.0,
    )
    defaults: dict[str, Any] = {
        "step": step,
        "version": step + 1,
        "ended_s": 4.0,
        "duration_s": 4.0,
        "first_update_s": 3.0,
        "usage": usage,
        "updates": (UpdateReport(num_sequences=1, num_tokens=1, grad_norm=1.0, lr=1e-6),),
        "num_groups": 8,
        "num_reserves_used": 0,
        "dropped": {"too_few_verdicts": 2},
        "num_scored": 60,
        "failed": {"timeout": 3, "service": 1},
        "score_mean": 0.25,
        "component_means": {},
        "response_tokens_mean": 5.0,
        "staleness_mean": 0.5,
        "staleness_max": 1,
        "reward_latency_mean_s": 1.0,
        "cost_usd": 0.6,
    }
    return StepReport(**{**defaults, **fields})


def agent_statistics() -> AgentStatistics:
    async def run() -> AgentStatistics:
        async with RewardAgent(lambda response: 1.0, max_concurrency=5) as agent:
            return agent.statistics()

    return asyncio.run(run())


def shown(view: TrainView, flow: FlowStatistics) -> str:
    console = Console(file=io.StringIO(), width=110, force_terminal=False)
    with console.capture() as captured:
        console.print(view.picture(flow, agent_statistics()))
    return captured.get()


def a_view(*reports: StepReport, num_steps: int = 10) -> TrainView:
    view = TrainView(num_steps, Console(file=io.StringIO(), width=110))
    for one in reports:
        view.add(one)
    return view


def test_a_line_says_all_about_the_last_step() -> None:
    line = a_view(report()).line(WAITING, agent_statistics())
    assert line == (
        "step 1 of 10; score 0.25; 4.0 s (generate 2.0 s, log-probs 0.5 s, update 1.0 s, idle 0.5 s); "
        "reward 0.3 s exposed, 3.0 s hidden; staleness 0.5 (at most 1); "
        "4 verdicts failed (1 service, 3 timeout), 2 groups dropped (too few verdicts); "
        "device waits for verdicts; 1,234 verdicts out; 0 in flight; 0 waiting; "
        "$0.00; 5 at once, no rate limit met so far; about 36 s left"
    )


def test_before_the_first_step_there_is_only_what_is_going_on() -> None:
    line = a_view().line(UPDATING, agent_statistics())
    assert line.startswith("step 0 of 10; device updating; 0 verdicts out; 0 in flight")
    assert "left" not in line
    assert "score" not in shown(a_view(), UPDATING)


def test_the_picture_has_the_curve_the_wait_and_what_was_lost() -> None:
    picture = shown(a_view(report(0, score_mean=-1.0), report(1, score_mean=0.0), report(2, score_mean=1.0)), WAITING)
    assert "▁▅█ -1 -> 1" in picture
    assert "step 3 of 10" in picture
    assert "waits for verdicts   1,234 verdicts out   3 of 8 groups ready" in picture
    assert "12 verdicts failed (3 service, 9 timeout), 6 groups dropped" in picture
    assert "0.3 s exposed   3.0 s hidden" in picture


def test_eighty_columns_cut_the_limits_and_the_curve_but_no_figure() -> None:
    console = Console(file=io.StringIO(), width=80)
    view = TrainView(200, console)
    for index in range(100):
        view.add(report(index, score_mean=index / 1000))
    with console.capture() as captured:
        console.print(view.picture(UPDATING, agent_statistics()))
    rows = dict(line.split(maxsplit=1) for line in captured.get().splitlines()[1:])
    assert rows["score"].rstrip().endswith("█ 0 -> 0.099")
    assert rows["agent"].startswith("0 in flight   0 waiting   $0.00   5 at once, no rate limit")


def test_the_last_row_leaves_room_for_what_a_terminal_echoes_of_ctrl_c() -> None:
    console = Console(file=io.StringIO(), width=60)
    view = TrainView(200, console)
    with console.capture() as captured:
        console.print(view.picture(UPDATING, agent_statistics()))
    last = captured.get().splitlines()[-1].rstrip()
    assert last.endswith("…")
    assert len(last) == 58


def test_a_warning_is_shown_from_its_step_on_and_cannot_steer_the_terminal() -> None:
    view = a_view(report(0, warnings=("entropy is 0.001\x1b[2J, below 0.005",)), report(1))
    assert "warning" in shown(view, WAITING)
    assert "entropy is 0.001" in shown(view, WAITING)
    assert "\x1b" not in shown(view, WAITING)
    assert view.totals.to_json()["warnings"] == ["entropy is 0.001\x1b[2J, below 0.005"]
    assert "warning" not in shown(a_view(report()), WAITING)


MEASURED = ValidationFigures(
    num_prompts=100,
    num_rollouts=200,
    num_scored=197,
    num_imputed=0,
    failed={"timeout": 3},
    group_size=2,
    score_mean=0.5,
    mean_at_n=0.5,
    pass_share=0.25,
    pass_at=(PassAt(2, 0.375, 98),),
    component_means={},
    response_tokens_mean=5.0,
    truncated_share=0.0,
    cost_usd=1.0,
)


def test_a_validation_has_a_line_when_it_is_told_and_is_seen_while_it_is_under_way() -> None:
    file = io.StringIO()
    view = TrainView(10, Console(file=file, width=110))
    measured = ValidationReport(
        version=4, ended_s=1.0, duration_s=1.0, generate_s=0.5, overall=MEASURED, by_source={"": MEASURED}
    )
    view.add_validation(Validated(report=measured, groups=()))
    told = "version 4: score 0.5, 25% passed, pass@2 0.375, 3 of 200 verdicts failed and left out"
    assert file.getvalue() == f"validation: {told}\n"
    judged = ValidationStatistics(version=6, num_rollouts=200, num_generated=200, num_judged=50)
    generated = ValidationStatistics(version=8, num_rollouts=200, num_generated=20, num_judged=0)
    under_way = dataclasses.replace(UPDATING, validations=(judged, generated))
    line = view.line(under_way, agent_statistics())
    assert "validation of version 6: 50 of 200 judged; validation of version 8: 20 of 200 generated" in line
    assert told in shown(view, UPDATING)


def test_a_step_without_scores_and_rollouts_can_be_shown() -> None:
    view = a_view(report(score_mean=None, staleness_mean=None, staleness_max=None, failed={}, dropped={}))
    assert "score none" in view.line(WAITING, agent_statistics())
    assert "nothing" in shown(view, WAITING)


def test_a_curve_runs_from_the_lowest_to_the_highest_score() -> None:
    assert reward_curve([-3.0, -2.0, -1.0], 60) == "▁▅█"
    assert reward_curve([0.5, 0.5], 60, ascii_only=True) == ".."


def test_steps_share_a_place_where_there_are_more_than_places() -> None:
    assert reward_curve([0, 2, 4, 6, 10, 12], 3) == "▁▄█"
    assert len(reward_curve(list(range(1001)), 60)) == 60


def test_time_left_follows_the_latest_steps() -> None:
    slow = [report(i, duration_s=100.0) for i in range(5)]
    fast = [report(i, duration_s=2.0) for i in range(5, 25)]
    assert a_view(*slow, *fast, num_steps=35).line(WAITING, agent_statistics()).endswith("about 20 s left")
