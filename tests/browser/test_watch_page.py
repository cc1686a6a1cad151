"""`rewardflow watch` in a real browser, beside a run that goes on: pages that change in place, and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect
from written_runs import metrics_line, totals_line, write_lines, write_run

import rewardflow as rf
from rewardflow.bench.long_run import write_long_run
from rewardflow.observe.events import AccountLoad, to_json
from rewardflow.observe.process_lock import ProcessLock
from rewardflow.observe.run_directory import TRAINING_LOCK_FILE, RunDirectory

ROOT = Path(__file__).resolve().parents[2]
SLOW_MS = 60_000  # a page comes as fast as the machine lets it


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """A real server, in its own process, over `tmp_path / "runs"`."""
    (tmp_path / "runs").mkdir()
    code = "import sys; from rewardflow.cli.main import main; sys.exit(main())"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "watch", str(tmp_path / "runs"), "--port", "0", "--json"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    yield json.loads(process.stdout.readline())["url"]
    process.terminate()
    process.communicate(timeout=60)


@pytest.fixture
def page(browser: Browser, url: str) -> Iterator[Page]:
    """A page that fails the test if it asks another server for something, or says anything on the console."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.set_default_timeout(SLOW_MS)
    elsewhere: list[str] = []
    said: list[str] = []
    page.on("request", lambda one: None if one.url.startswith((url, "data:,")) else elsewhere.append(one.url))
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    yield page
    context.close()
    assert elsewhere == []
    assert said == []


def train_a_step(run: RunDirectory, step: int, **fields: object) -> None:
    write_lines(run.steps_path, [totals_line(step)])
    write_lines(run.metrics_path, [metrics_line(step, **fields)])


def test_a_run_that_starts_and_trains_is_shown_as_it_goes_and_as_it_ends(page: Page, url: str, tmp_path: Path) -> None:
    page.goto(url)
    expect(page.locator("#runs")).to_contain_text("no run here yet")
    run = write_run(tmp_path / "runs" / "digits", steps=1)
    with ProcessLock.acquire(run.path / TRAINING_LOCK_FILE):
        expect(page.locator("#runs .state")).to_have_text("running", timeout=SLOW_MS)
        page.get_by_role("link", name="digits").click()
        expect(page.locator("#top .card").first).to_contain_text("1")
        page.evaluate("window.notReloaded = true")
        train_a_step(run, 1, score_mean=0.875)
        load = AccountLoad(at_s=1.0, account="judge", in_flight=12, waiting=34, limit=64)
        write_lines(run.events_path, [to_json(load)])
        expect(page.locator("#top .card").first).to_contain_text("0.25 → 0.875", timeout=SLOW_MS)
        expect(page.locator("#now")).to_contain_text("12 of 64", timeout=SLOW_MS)
    write_lines(run.events_path, [{"v": 1, "event": "AgentClosed", "at_s": 2.0, "statistics": {}}])
    expect(page.locator("#subtitle")).to_contain_text("finished", timeout=SLOW_MS)
    expect(page.locator("#now")).to_have_count(0)
    assert page.evaluate("window.notReloaded") is True


def test_what_somebody_reads_stays_in_place_while_rollouts_come(page: Page, url: str, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "scored"

    def judge(solution_str: str) -> tuple[float, str, str]:
        return 0.5, "How good is it?", f"<b>fine</b>: {solution_str}"

    def score(step: int) -> None:
        rollouts = [rf.Rollout(group_id=f"{step}-{i}", response=f"quagga {step}-{i}", step=step) for i in range(4)]
        rf.score(rollouts, judge, run_dir=folder, journal=folder / "journal.db", max_concurrency=1)

    score(0)
    page.goto(f"{url}run?name=scored")
    page.locator("#rollout-list li", has_text="quagga 0-2").click()
    score(1)
    expect(page.locator("#rollout-list li", has_text="quagga 1-3")).to_have_count(1, timeout=SLOW_MS)
    expect(page.locator("#rollout-detail")).to_contain_text("quagga 0-2")
    expect(page.locator("#rollout-detail")).to_contain_text("<b>fine</b>")
    page.locator("#rollout-search").fill("QUAGGA 1-1")
    expect(page.locator("#rollout-list li")).to_have_count(1, timeout=SLOW_MS)
    expect(page.locator("#rollout-detail")).to_contain_text("quagga 1-1")
    page.locator("#rollout-search").fill("")
    expect(page.locator("#rollout-list li")).to_have_count(8, timeout=SLOW_MS)


def test_two_runs_are_chosen_and_compared(page: Page, url: str, tmp_path: Path) -> None:
    for name in ("synchronous", "pipeline", "third"):
        write_run(tmp_path / "runs" / name, steps=2)
    page.goto(url)
    button = page.get_by_role("button", name="compare two runs")
    expect(button).to_be_disabled()
    for name in ("synchronous", "pipeline"):
        page.get_by_label(f"compare {name}", exact=True).check()
    button.click()
    expect(page.locator("h1")).to_have_text("synchronous and pipeline")
    expect(page.locator("#top")).to_contain_text("step time (median)")
    page.get_by_role("link", name="all runs").click()
    expect(page.locator("#runs tbody tr")).to_have_count(3)


def test_a_run_of_a_thousand_steps_stays_current_also_when_it_goes_on_with_another_clock(
    page: Page, url: str, tmp_path: Path
) -> None:
    path = tmp_path / "runs" / "long"
    write_long_run(path, steps=1000, calls_a_step=8, journal_rows=100)
    run = RunDirectory.open(path)
    page.goto(f"{url}run?name=long")
    steps = page.locator("#top .card").first
    expect(steps).to_contain_text("1,000", timeout=SLOW_MS)
    page.evaluate("window.notReloaded = true")
    train_a_step(run, 1000, ended_s=300_010.0)
    expect(steps).to_contain_text("1,001", timeout=SLOW_MS)
    train_a_step(run, 1001, ended_s=20.0)  # as after a restart of the machine
    expect(steps).to_contain_text("1,002", timeout=SLOW_MS)
    assert page.evaluate("window.notReloaded") is True


@pytest.mark.parametrize("path", ["", "run?name=first", "compare?one=first&other=second"])
def test_nothing_sticks_out_at_a_phones_width(page: Page, url: str, tmp_path: Path, path: str) -> None:
    for name in ("first", "second"):
        write_run(tmp_path / "runs" / name, steps=3)
    page.set_viewport_size({"width": 360, "height": 740})
    page.goto(url + path)
    expect(page.locator("main")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_a_server_that_ended_is_said_on_the_page(browser: Browser, url: str, tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "first", steps=1)
    page = browser.new_page()
    page.goto(f"{url}run?name=first")
    page.route("**/*", lambda route: route.abort())
    expect(page.locator("#live")).to_contain_text("does not answer", timeout=SLOW_MS)
    page.close()
