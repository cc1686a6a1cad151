"""The page: whole, self-contained, and deaf to what names say."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

import rewardflow
from rewardflow.plan.plan_page import plan_page
from rewardflow.plan.planner import Plan, make_plan
from rewardflow.plan.settings import DeviceSettings, PlanSettings, PublishedRun, ServiceSettings

HOSTILE = '<script>alert("x")</script>'


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.opened: list[str] = []
        self.unclosed: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.opened.append(tag)
        if tag != "meta":
            self.unclosed.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.opened.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.unclosed.pop() == tag


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(
        PlanSettings(
            prompts=8,
            responses=2,
            device=DeviceSettings(generation_s=10, log_probs_s=2, update_s=10, publish_s=1, placement="separate"),
            service=ServiceSettings(slots=4, latency="uniform:1,9", price_usd=0.001),
            simulated_steps=11,
            as_original=True,
            published=(PublishedRun(name=HOSTILE, synchronous_s=60.0, changes={"pipeline": -0.1}),),
        )
    )


def test_every_schedule_has_its_row_and_its_picture(plan: Plan) -> None:
    page = plan_page(plan, title="A plan")
    tags = Tags()
    tags.feed(page)
    assert tags.unclosed == []
    assert tags.opened.count("svg") == len(plan.rows) == 8
    assert all(page.count(f"<td>{row.schedule}</td>") >= 1 for row in plan.rows)


def test_the_page_needs_nothing_from_elsewhere_and_runs_nothing(plan: Plan) -> None:
    page = plan_page(plan, title=HOSTILE)
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert re.search(r"(src|href)=|https?:|url\(|@import|\son\w+=", page) is None


def test_pictures_have_one_scale_and_show_the_calls(plan: Plan) -> None:
    page = plan_page(plan, title="A plan")
    widths = [float(width) for width in re.findall(r'x="0" y="0" width="([0-9.]+)"', page)]
    durations = [timeline.duration_s for timeline in plan.timelines]
    assert len(widths) == len(durations)
    for width, duration_s in zip(widths, durations, strict=True):
        assert width == pytest.approx(960 * duration_s / max(durations), abs=0.1)
    assert page.count("<polygon") == 8


def test_a_plan_in_which_nothing_takes_time_can_be_shown() -> None:
    nothing = PlanSettings(
        prompts=4,
        responses=2,
        device=DeviceSettings(generation_s=0, update_s=0),
        service=ServiceSettings(latency="constant:0"),
        simulated_steps=11,
    )
    plan = make_plan(replace(nothing, schedules=("pipeline",)))
    assert "<svg" in plan_page(plan, title="Nothing")


def test_work_has_the_colours_that_a_report_gives_it(plan: Plan) -> None:
    report = (Path(rewardflow.__file__).parent / "report" / "page.css").read_text("utf-8")
    page = plan_page(plan, title="t")
    for work in ("generate", "log_probs", "update", "publish"):
        colours = [re.findall(rf"--{work}: ?(#\w+)", text) for text in (report, page)]
        assert len(colours[0]) == 2  # for light and for dark screens
        assert colours[0] == colours[1]
