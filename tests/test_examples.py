"""Every example in the gallery: listed, and run as far as it can be here."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rewardflow.cli.main import build_parser, main
from rewardflow.mock_judge import MockJudge, MockJudgeSettings
from rewardflow.settings.run_file import load_run

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
FOLDERS = sorted(path.name for path in EXAMPLES.iterdir() if path.is_dir())
RUN_FILES = sorted(EXAMPLES.rglob("run.yaml"))


def test_the_gallery_lists_every_example_and_each_has_a_readme() -> None:
    gallery = (EXAMPLES / "README.md").read_text("utf-8")
    assert sorted(set(re.findall(r"\]\((\w+)/README\.md\)", gallery))) == FOLDERS
    assert all((EXAMPLES / name / "README.md").is_file() for name in FOLDERS)


@pytest.mark.parametrize("path", RUN_FILES, ids=lambda path: path.parent.name)
def test_every_run_file_is_valid(path: Path) -> None:
    assert load_run(path).steps > 0


def test_own_reward_trains_and_its_checkpoint_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_file, run_dir = str(EXAMPLES / "own_reward" / "run.yaml"), tmp_path / "run"
    overrides = ["steps=1", "schedule.groups_per_step=4", "trainer.threads=1", f"run_dir={run_dir}"]
    assert main(["train", run_file, "--json", *overrides]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["trained"], told["failed"]) == (1, {})


def test_rule_and_judge_asks_the_judge_only_about_what_the_rule_does_not_accept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = EXAMPLES / "rule_and_judge", tmp_path / "verdicts.jsonl"
    with MockJudge(MockJudgeSettings(latency="constant:0", scores="graded")) as judge:
        text = (folder / "judge.yaml").read_text("utf-8").replace("http://127.0.0.1:8077/v1", f"{judge.url}/v1")
        (tmp_path / "judge.yaml").write_text(text, "utf-8")
        reward = str(tmp_path / "judge.yaml")
        assert main(["score", str(folder / "answers.jsonl"), "--reward", reward, "--out", str(out), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["scored"], told["saved_by_cascade"], told["calls"]) == (4, 2, 2)


def test_retrieval_judge_shows_the_judge_the_passage_that_fits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out, journal = EXAMPLES / "retrieval_judge", tmp_path / "verdicts.jsonl", tmp_path / "verdicts.db"
    with MockJudge(MockJudgeSettings(latency="constant:0", scores="graded")) as judge:
        text = (folder / "judge.yaml").read_text("utf-8").replace("http://127.0.0.1:8077/v1", f"{judge.url}/v1")
        shutil.copytree(folder / "handbook", tmp_path / "handbook")
        (tmp_path / "judge.yaml").write_text(text, "utf-8")
        scoring = ["score", str(folder / "answers.jsonl"), "--reward", str(tmp_path / "judge.yaml"), "--json"]
        assert main([*scoring, "--out", str(out), "--journal", str(journal)]) == 0
    assert json.loads(capsys.readouterr().out)["scored"] == 3
    verdicts = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
    best = [one["extras"]["passages"][0]["id"] for one in verdicts]
    assert best == ["leave.txt", "leave.txt", "equipment.txt"]


def test_planning_gives_a_schedule_and_its_cost(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["simulated_steps=5", "prompts=16", "service.slots=16", "schedules=[pipeline]", "--processes", "1"]
    assert main(["plan", str(EXAMPLES / "planning" / "plan.yaml"), *small, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["recommended"] in ("synchronous", "pipeline")
    assert all(row["total_cost_usd"] > 0 for row in told["schedules"])


def test_smollm2_learns_trains_a_tiny_model_and_compares_its_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, run_dir, curves = EXAMPLES / "smollm2_learns", tmp_path / "run", tmp_path / "curves.svg"
    small = ["policy.model=tiny", "steps=2", "generation.group_size=2", "validation.data.limit=2"]
    with MockJudge(MockJudgeSettings(latency="constant:0")) as judge:
        text = (folder / "judge.yaml").read_text("utf-8").replace("http://127.0.0.1:8971", judge.url)
        text = text.replace("structured: prompt", "structured: schema")  # the mock judge knows no grammars
        (tmp_path / "judge.yaml").write_text(text, "utf-8")
        places = [f"reward={tmp_path / 'judge.yaml'}", f"run_dir={run_dir}"]
        assert main(["train", str(folder / "run.yaml"), "--json", *small, *places]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["trained"], told["failed"]) == (2, {})
    comparing = [sys.executable, str(folder / "compare.py"), f"overlapped={run_dir}", "--svg", str(curves)]
    page = subprocess.run(comparing, check=True, capture_output=True, text=True).stdout
    assert "| run | version | whole_sentence | cheerful |" in page
    assert "| overlapped | 2 |" in page
    assert "| What is a bridge? |" in page
    assert curves.read_text("utf-8").count("<polyline") == 2


COMMANDS = re.compile(r"^(?:rewardflow|tail) (?:[^#\n]*)", re.MULTILINE)
PAGES = [ROOT / "AGENTS.md", *sorted(EXAMPLES.rglob("README.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_every_command_in_the_pages_parses(page: Path) -> None:
    for program, *words in commands_of(page):
        if program == "rewardflow" and not any("$(" in word for word in words):  # the shell makes words of it
            assert callable(build_parser().parse_args(words).run), words


def commands_of(page: Path) -> list[list[str]]:
    """The words of each command of ours in the shell blocks of a page."""
    blocks = "\n".join(re.findall(r"```bash\n(.*?)```", page.read_text("utf-8"), re.DOTALL)).replace("\\\n", " ")
    return [line.split() for line in COMMANDS.findall(blocks)]


def test_the_commands_for_coding_assistants_work_one_after_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """All but the server, which stays; the run of 120 steps is shortened to 2."""
    monkeypatch.chdir(tmp_path)
    Path("answers.jsonl").write_text('{"response": "12", "ground_truth": "13"}\n', "utf-8")
    small = ["steps=2", "schedule.groups_per_step=4", "trainer.threads=1"]
    for program, *words in commands_of(ROOT / "AGENTS.md"):
        if words[0] == "watch":
            continue
        shortened = [*words, *small] if words[:2] == ["train", "my-run/run.yaml"] else words
        capfd.readouterr()
        if program == "tail":
            assert subprocess.run([program, *words], check=False).returncode == 0, words
        else:
            assert main(shortened) == 0, (words, capfd.readouterr().err)
        told = capfd.readouterr().out
        if "--json" in words and "ls" not in words:  # no verdict of this run failed, so `ls --failed` lists none
            assert json.loads(told)
    assert Path("my-run/runs/first/report.html").is_file()
