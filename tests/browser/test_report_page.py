"""The report in a real browser: what is there, what can be done with it, and that nothing on it acts by itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from seen_page import Seen
from written_runs import metrics_line, totals_line, write_lines, write_run

import rewardflow as rf
from rewardflow.bench.long_run import write_long_run
from rewardflow.cli.main import main
from rewardflow.report.rollouts.rollout_sample import RolloutSample, SampledRollout, sample_rollouts
from rewardflow.report.run_data import read_run
from rewardflow.report.run_page import comparison_page, run_page

LookAt = Callable[..., Seen]

EVIL = [
    "<script>window.stolen = 1</script>",
    "</script><script>window.stolen = 1</script>",
    "</style><script>window.stolen = 1</script>",
    "<img src=x onerror='window.stolen = 1'>",
    '"><svg onload="window.stolen = 1"></svg>',
    '" autofocus onfocus="window.stolen = 1',
    "<iframe srcdoc='<script>parent.stolen = 1</script>'></iframe>",
    "<a href='javascript:window.stolen = 1'>click</a>",
    "<form action='https://evil.example'><button>click</button></form>",
    "<link rel=stylesheet href='https://evil.example/x.css'>",
    "<meta http-equiv=refresh content='0;url=https://evil.example'>",
    "<!--<script>",
    "\u2028window.stolen = 1//",
    "${window.stolen = 1}{{window.stolen = 1}}",
]


def a_rollout(
    index: int = 0, *, text: str = "42", score: float | None = 0.5, kind: str = "", step: int = 0
) -> SampledRollout:
    return SampledRollout(
        step=step,
        group_id="7",
        index=index,
        question=text,
        answer=text,
        truth=text,
        source=text,
        score=score,
        kind=kind,
        error=text if kind else "",
        components={text: 0.5},
        query=text,
        explanation=text,
        facts={text: text, "latency_s": 1.5},
    )


@pytest.fixture
def html(tmp_path: Path) -> str:
    rollouts = (
        a_rollout(0, text="first answer", score=0.25),
        a_rollout(1, text="second answer", score=None, kind="timeout"),
        a_rollout(2, text="third answer", score=0.75, step=3),
    )
    run = read_run(write_run(tmp_path / "run", steps=8).path)
    return run_page(run, RolloutSample(rollouts=rollouts, origin="three"))


def test_every_section_is_shown_without_a_word_on_the_console_or_a_request(look_at: LookAt, html: str) -> None:
    seen = look_at(html)
    for section in ("time", "timelines", "learning", "calls", "cost", "failures", "rollouts"):
        assert seen.page.locator(f"#{section} h2").is_visible()
    assert seen.page.locator(".card").count() == 6
    assert seen.page.locator("svg.timeline").count() == 3
    assert seen.page.locator("svg.timeline rect.kind-reward").first.is_visible()
    assert seen.page.locator("svg.timeline path.load").first.is_visible()
    seen.assert_quiet()


@pytest.mark.parametrize("width", [360, 800, 1600])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_sticks_out_of_the_page_narrow_or_wide(look_at: LookAt, html: str, width: int, scheme: str) -> None:
    seen = look_at(html, width=width, scheme=scheme)
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
    seen.assert_quiet()


def test_colours_follow_the_readers_choice_of_light_or_dark(look_at: LookAt, html: str) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    light, dark = (look_at(html, scheme=scheme).page.evaluate(colour) for scheme in ("light", "dark"))
    assert light != dark


def test_a_chart_tells_its_figures_under_the_pointer(look_at: LookAt, html: str) -> None:
    seen = look_at(html)
    chart = seen.page.locator("#learning figure", has_text="Score").first.locator(".plot-box")
    chart.hover()
    assert "step" in seen.page.locator("#tip").inner_text()
    assert "Score" in seen.page.locator("#tip").inner_text()
    seen.page.locator("h1").hover()
    assert seen.page.locator("#tip").is_hidden()
    seen.page.locator("svg.timeline rect.kind-reward").first.hover()
    assert "waits for verdicts" in seen.page.locator("#tip").inner_text()
    seen.assert_quiet()


def test_rollouts_are_browsed_with_the_keyboard_alone(look_at: LookAt, html: str) -> None:
    seen = look_at(html)
    detail = seen.page.locator("#rollout-detail")
    seen.page.locator("#rollout-list").focus()
    assert "first answer" in detail.inner_text()
    for key, answer in [
        ("ArrowDown", "second"),
        ("j", "third"),
        ("j", "third"),
        ("k", "second"),
        ("Home", "first"),
        ("End", "third"),
    ]:
        seen.page.keyboard.press(key)
        assert f"{answer} answer" in detail.inner_text()
    seen.assert_quiet()


def test_rollouts_are_filtered_by_outcome_score_step_and_text(look_at: LookAt, html: str) -> None:
    seen = look_at(html)

    def answers() -> list[str]:
        return seen.page.locator("#rollout-list .row-text").all_inner_texts()

    seen.page.get_by_role("button", name="failed", exact=True).click()
    assert answers() == ["second answer"]
    assert seen.page.locator("#rollout-detail pre.error").inner_text() == "second answer"
    seen.page.get_by_role("button", name="lowest first").click()
    assert answers() == ["first answer", "third answer"]
    seen.page.get_by_role("button", name="highest first").click()
    assert answers() == ["third answer", "first answer"]
    seen.page.get_by_role("button", name="all", exact=True).click()
    seen.page.get_by_role("combobox").select_option("3")
    assert answers() == ["third answer"]
    seen.page.get_by_role("combobox").select_option("")
    seen.page.get_by_label("containing").fill("SECOND")
    assert answers() == ["second answer"]
    seen.page.get_by_label("containing").fill("no such text")
    assert "No rollout" in seen.page.locator("#rollout-detail").inner_text()
    seen.assert_quiet()


@pytest.mark.parametrize("text", EVIL)
def test_text_from_models_and_judges_is_shown_and_does_nothing(look_at: LookAt, tmp_path: Path, text: str) -> None:
    directory = write_run(tmp_path / "run", name=text)
    texts = {"component_means": {text: 1.0}, "failed": {text: 1}, "dropped": {text: 1}, "warnings": [text], text: 1.0}
    write_lines(directory.metrics_path, [metrics_line(1, **texts)])
    account = {"limits": {"pace": {"min": 1.0, "max": 2.0, "last": 1.0}}, "breakers": {text: "open"}}
    write_lines(directory.steps_path, [{**totals_line(1), "accounts": {text: account}, "outcomes": {text: 3}}])
    run = read_run(directory.path)
    sample = RolloutSample(rollouts=(a_rollout(text=text, kind=text, score=None),), origin=text)
    for html in (run_page(run, sample), comparison_page(run, run)):
        seen = look_at(html)
        assert seen.page.locator("h1").inner_text().strip() != ""
        for chart in seen.page.locator("#learning .plot-box:visible").all()[:3]:
            chart.hover()
        if seen.page.locator("#rollout-list li").count():
            seen.page.locator("#rollout-list li").first.click()
            assert seen.page.locator("#rollout-detail pre.answer").evaluate("e => e.textContent") == text
            assert seen.page.locator("#rollout-detail pre.answer *").count() == 0
        assert seen.page.evaluate("window.stolen") is None
        assert seen.page.locator("img, iframe, form, a, base").count() == 0
        seen.assert_quiet()


@pytest.mark.parametrize("text", [text for text in EVIL if "/" not in text])
def test_the_path_of_a_run_is_shown_and_does_nothing(look_at: LookAt, tmp_path: Path, text: str) -> None:
    """Paths stand for names where two runs have the same."""
    runs = [read_run(write_run(tmp_path / folder / text, name="same").path) for folder in ("a", "b")]
    seen = look_at(comparison_page(*runs))
    assert str(tmp_path / "a") in seen.page.locator("h1").inner_text()
    assert seen.page.evaluate("window.stolen") is None
    assert seen.page.locator("img, iframe, form, a, base").count() == 0
    seen.assert_quiet()


def test_what_a_run_was_told_by_its_policy_and_its_judge_is_shown_from_its_files(
    look_at: LookAt, tmp_path: Path
) -> None:
    """All the way: a reward whose every word is hostile, the run's own files, the command."""

    async def judge(rollout: rf.Rollout) -> rf.Reward:
        if rollout.index:
            raise rf.ServiceError(EVIL[3], retryable=False)
        return rf.Reward(value=1.0, query=EVIL[0], explanation=EVIL[1], components={EVIL[4]: 1.0}, extras={EVIL[6]: 1})

    rollouts = [
        rf.Rollout(group_id=f"{place} {text}", index=index, group_size=2, prompt=text, response=text, ground_truth=text)
        for place, text in enumerate(EVIL)
        for index in range(2)
    ]
    run = tmp_path / "run"
    rf.score(rollouts, rf.Weighted(judge, name=EVIL[3]), run_dir=run, journal=run / "journal.db")
    assert main(["report", str(run)]) == 0
    seen = look_at((run / "report.html").read_text("utf-8"))
    assert seen.page.locator("#rollout-list li").count() == len(rollouts)
    for place in range(len(rollouts)):
        seen.page.locator("#rollout-list li").nth(place).click()
    seen.page.get_by_label("containing").fill("stolen")
    assert EVIL[0] in seen.page.locator("#rollout-detail").inner_text()
    assert seen.page.evaluate("window.stolen") is None
    assert seen.page.locator("img, iframe, form, a, base").count() == 0
    seen.assert_quiet()


def test_even_markup_that_slipped_in_could_not_run(look_at: LookAt, html: str) -> None:
    """The policy is the second line of defence: break the first on purpose."""
    broken = html.replace("<main>", "<main><img src=x onerror='window.stolen = 1'><script>window.stolen = 1</script>")
    seen = look_at(broken)
    assert seen.page.evaluate("window.stolen") is None
    assert any("Content Security Policy" in line for line in seen.console)


def test_the_browser_would_tell_of_a_script_that_ran(look_at: LookAt) -> None:
    seen = look_at("<!DOCTYPE html><script>window.stolen = 1; console.log('x'); fetch('https://evil.example')</script>")
    seen.page.wait_for_function("window.stolen === 1")
    assert seen.page.evaluate("window.stolen") == 1
    with pytest.raises(AssertionError):
        seen.assert_quiet()


def test_two_runs_beside_each_other_are_quiet_too(look_at: LookAt, tmp_path: Path) -> None:
    runs = [read_run(write_run(tmp_path / name, steps=steps).path) for name, steps in (("a", 3), ("b", 6))]
    seen = look_at(comparison_page(*runs))
    assert "a and b" in seen.page.locator("h1").inner_text()
    assert seen.page.locator(".comparison tbody tr").count() > 10
    seen.assert_quiet()


def test_a_run_of_a_thousand_steps_is_shown(look_at: LookAt, tmp_path: Path) -> None:
    write_long_run(tmp_path / "run", steps=1000, calls_a_step=10, journal_rows=500)
    run = read_run(tmp_path / "run")
    seen = look_at(run_page(run, sample_rollouts(run)))
    assert seen.page.locator(".card-value").first.inner_text() == "1,000"
    assert seen.page.locator("#rollout-list li").count() > 100
    seen.assert_quiet()
