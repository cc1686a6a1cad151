"""The page of a run: what is on it, and that text stays text."""

from __future__ import annotations

import html.parser
import json
import re
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from written_runs import metrics_line, totals_line, write_lines, write_run

from rewardflow.drawing.markup import visible
from rewardflow.observe.run_directory import RunDirectory
from rewardflow.report.rollouts.rollout_sample import RolloutSample, SampledRollout
from rewardflow.report.run_data import RunData, read_run
from rewardflow.report.run_page import comparison_page, run_page

EVIL = [
    "<script>window.stolen = 1</script>",
    "</script><script>window.stolen = 1</script>",
    "<img src=x onerror='window.stolen = 1'>",
    '"><svg onload="window.stolen = 1">',
    "<!--<script>",
    "javascript:window.stolen=1",
    "{{constructor.constructor('alert(1)')()}}",
]
NONE = RolloutSample(rollouts=(), origin="none")


def a_rollout(text: str) -> SampledRollout:
    return SampledRollout(
        step=0,
        group_id=text,
        index=0,
        question=text,
        answer=text,
        truth=text,
        source=text,
        score=None,
        kind=text,
        error=text,
        components={text: 0.5},
        query=text,
        explanation=text,
        facts={text: text},
    )


class Elements(html.parser.HTMLParser):
    """Every element, every attribute, and the text of scripts."""

    def __init__(self, markup: str) -> None:
        super().__init__(convert_charrefs=True)
        self.names: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.scripts: list[str] = []
        self.ids: set[str] = set()
        self.feed(markup)

    def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        self.names.append(name)
        if name == "script":
            self.scripts.append("")
        self.attributes += attributes
        self.ids |= {value for key, value in attributes if key == "id" and value is not None}

    def handle_data(self, data: str) -> None:
        if self.names and self.names[-1] == "script":
            self.scripts[-1] += data


@pytest.fixture
def run(tmp_path: Path) -> RunData:
    return read_run(write_run(tmp_path / "run", steps=6).path)


def assert_harmless(page: str) -> Elements:
    elements = Elements(page)
    assert elements.names.count("script") == 2
    assert not {"img", "iframe", "object", "embed", "form", "base", "a"} & set(elements.names)
    assert not [name for name, _ in elements.attributes if name.startswith("on") or name == "style"]
    addresses = [value for name, value in elements.attributes if name in ("src", "href", "action", "srcset", "data")]
    assert addresses == ["data:,"]
    return elements


def test_every_part_is_there(run: RunData) -> None:
    elements = assert_harmless(run_page(run, RolloutSample(rollouts=(a_rollout("x"),), origin="one")))
    sections = {"time", "timelines", "learning", "calls", "cost", "failures", "rollouts"}
    assert sections <= elements.ids
    assert elements.names.count("svg") > 15


def test_the_headline_has_the_figures(run: RunData) -> None:
    page = run_page(run, NONE)
    values = re.findall(r'<div class="card-value">([^<]*)</div>', page)
    assert values == ["6", "60 s", "30 %", "judge latency", "$4.50", "50 %"]


def test_a_run_that_goes_on_is_shown_as_far_as_it_has_come(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "run", steps=2)
    (directory.path / "settings.json").write_text('{"steps": 50}', "utf-8")
    with directory.metrics_path.open("a") as file:
        file.write('{"v":1,"step":2,"source":"train","dura')
    page = run_page(read_run(directory.path), NONE)
    assert "2 of 50" in page
    assert "no end recorded" in page


def test_a_run_that_has_done_nothing_has_a_page(tmp_path: Path) -> None:
    page = run_page(read_run(RunDirectory.create(tmp_path / "run").path), NONE)
    assert "Nothing yet" in page
    assert_harmless(page)


def test_a_run_without_a_trainer_has_a_page(tmp_path: Path) -> None:
    elements = assert_harmless(run_page(read_run(write_run(tmp_path / "run", with_trainer=False).path), NONE))
    assert {"timelines", "calls", "cost", "failures"} <= elements.ids
    assert "time" not in elements.ids


def test_figures_of_another_trainer_are_drawn_by_their_names(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "run")
    write_lines(directory.metrics_path, [metrics_line(step, **{"actor/new_figure": 1.0}) for step in range(3)])
    assert "actor/new_figure" in run_page(read_run(directory.path), NONE)


def test_a_run_that_was_stopped_is_not_called_finished(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "run", steps=3)
    write_lines(directory.events_path, [{"v": 1, "event": "AgentClosed", "at_s": 200.0}])
    assert "finished ·" in run_page(read_run(directory.path), NONE)
    (directory.path / "settings.json").write_text('{"steps": 9}')
    page = run_page(read_run(directory.path), NONE)
    assert "stopped before its end ·" in page
    assert "3 of 9" in page


def test_validations_and_warnings_have_sections_of_their_own(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "run")
    measured = {"v": 1, "step": 2, "source": "validation", "validation/score_mean": 0.5, "duration_s": 3.0}
    warned = metrics_line(1, warnings=["entropy is low <b>"])
    write_lines(directory.metrics_path, [measured, warned])
    page = run_page(read_run(directory.path), NONE)
    assert {"validation", "warnings"} <= Elements(page).ids
    assert "step 1: entropy is low &lt;b&gt;" in page


def test_limits_that_moved_are_drawn_and_hold_where_they_did_not(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "run")
    limits = {"pace": {"changes": 1, "min": 300.0, "max": 600.0, "last": 450.0}}
    account = {"limits": limits, "breakers_opened": 1, "breakers": {"": "open"}, "outages": 0}
    write_lines(directory.steps_path, [{**totals_line(1), "accounts": {"judge": account}}])
    page = run_page(read_run(directory.path), NONE)
    assert "Learnt rate" in page
    assert "Breakers and outages" in page
    assert page.count("&quot;450&quot;") == 2


@pytest.mark.parametrize("text", EVIL)
def test_text_from_models_judges_and_names_does_nothing(tmp_path: Path, text: str) -> None:
    directory = write_run(tmp_path / "run", name=text)
    texts = {"component_means": {text: 1.0}, "failed": {text: 1}, "dropped": {text: 2}, "warnings": [text], text: 1.0}
    write_lines(directory.metrics_path, [metrics_line(1, **texts)])
    account = {"limits": {"pace": {"min": 1.0, "max": 1.0, "last": 1.0}}, "breakers": {text: "open"}}
    texts = {"accounts": {text: account}, "outcomes": {text: 3}, "failed": {text: 1}}
    write_lines(directory.steps_path, [{**totals_line(1), **texts}])
    run = read_run(directory.path)
    elements = assert_harmless(run_page(run, RolloutSample(rollouts=(a_rollout(text),), origin=text)))
    data = json.loads(elements.scripts[0])
    assert data["rollouts"][0]["answer"] == text
    assert_harmless(comparison_page(run, run))


@given(text=st.text())
def test_any_text_reaches_the_script_as_it_is_and_nothing_else(plain_run: RunData, text: str) -> None:
    text = visible(text)
    elements = assert_harmless(run_page(plain_run, RolloutSample(rollouts=(a_rollout(text),), origin=text)))
    assert json.loads(elements.scripts[0])["rollouts"][0]["explanation"] == text


@pytest.fixture(scope="module")
def plain_run(tmp_path_factory: pytest.TempPathFactory) -> RunData:
    """Without a step, because a page with charts takes long to make a hundred times."""
    return read_run(RunDirectory.create(tmp_path_factory.mktemp("plain") / "run").path)


def test_two_runs_are_told_apart_by_name_or_else_by_path(tmp_path: Path) -> None:
    one, other = (read_run(write_run(tmp_path / folder / "same", steps=2).path) for folder in ("a", "b"))
    page = comparison_page(one, other)
    assert str(tmp_path / "a" / "same") in page
    elements = assert_harmless(page)
    assert {"time", "timelines", "learning", "calls", "cost", "failures"} <= elements.ids


def test_no_field_of_a_rollout_is_forgotten_by_the_script() -> None:
    script = (Path(run_page.__code__.co_filename).parent / "page.js").read_text("utf-8")
    missing = [field.name for field in fields(SampledRollout) if f"rollout.{field.name}" not in script]
    assert missing == []


def test_the_script_makes_no_markup_of_texts_and_asks_its_own_server_only_on_a_served_page() -> None:
    script = (Path(run_page.__code__.co_filename).parent / "page.js").read_text("utf-8")
    parsing = ("innerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(", "XMLHttp", "import(")
    assert not [word for word in parsing if word in script]
    assert not re.search(r"outerHTML\s*=[^=]", script)  # it is read, to compare, and never set
    assert re.findall(r"fetch\(([\w.]+)", script) == ["data.live.search", "location.href"]
    assert script.count("keepCurrent(") == 2  # its definition, and one call
    assert "if (data.live !== null) keepCurrent(" in script
