"""`rewardflow train`, `eval` and `report` on real Ray clusters, as people type them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from processes_here import wait_until_gone
from ray.cluster_utils import Cluster
from ray_here import LOOPBACK
from tiny_run import calls_in, write_run_file

from rewardflow.cli.main import main
from rewardflow.observe.run_directory import read_events
from rewardflow.shared_agent.ray_actor import stop

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own

torch.set_num_threads(1)

ROOT = Path(__file__).resolve().parents[2]
AGENT = "agent of the commands' tests"

VALIDATION = """
validation: {data: {task: copy_digits, limit: 5}, every: 2, rollouts: 2, temperature: 1.0, passes_from: -20}
checkpoint: {every: 1, keep: 9}
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_run_file(tmp_path)
    return tmp_path


def figures(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """What a command prints for programs."""
    capsys.readouterr()
    assert main([*arguments, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert isinstance(told, dict)
    return told


def lines_of(file: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(file).read_text("utf-8").splitlines()]


def test_a_critic_and_a_validation_run_on_two_ranks_as_in_one_process_and_eval_finds_the_same(
    here: Path, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    with Path("run.yaml").open("a") as file:
        file.write(VALIDATION)
    options = ["algorithm.advantage=gae", "schedule.stream=batch", "schedule.order=fixed", "trainer.eps=1e-3"]
    on_ray = ["runtime=auto", "runtime.ranks=2"]
    alone = figures(capsys, "train", "run.yaml", *options, "run_dir=alone")
    spread = figures(capsys, "train", "run.yaml", *options, *on_ray)
    assert spread["steps"] == alone["steps"] == 3
    names = ("policy_loss", "value_loss", "entropy", "critic_grad_norm")
    losses = [
        [
            one[name]
            for line in lines_of(f"{place}/metrics.jsonl")
            for one in line.get("mini_batches", ())
            for name in names
        ]
        for place in ("run", "alone")
    ]
    assert len(losses[0]) == 24
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)
    told, expected = ([line["overall"] for line in lines_of(f"{place}/validation.jsonl")] for place in ("run", "alone"))
    assert [one["score_mean"] for one in told] == pytest.approx([one["score_mean"] for one in expected])
    found = figures(capsys, "eval", "run.yaml", *options, *on_ray, "--checkpoint", "latest", "--no-probe")
    assert found["overall"]["score_mean"] == pytest.approx(told[-1]["score_mean"])
    assert found["version"] == 3


def test_a_run_by_a_shared_agent_is_reported_like_one_of_its_own(
    here: Path, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    shared = ["runtime=auto", f"shared_agent.name={AGENT}", f"limits.journal={here / 'shared.db'}"]
    try:
        figures(capsys, "train", "run.yaml", *shared)
    finally:
        stop(name=AGENT)
    told = figures(capsys, "report", "run")
    assert (told["state"], told["num_trained"]) == ("finished", 3)
    assert (told["rollouts"], told["calls"], told["scored"], told["failed"]) == (48, 48, 48, {})
    assert told["cost_usd"] == pytest.approx(0.48)
    assert told["latency_s"]["count"] == 48
    assert told["latency_s"]["min"] >= 0.005
    events = [type(event).__name__ for event in read_events("run")]
    assert (events[0], events[-1]) == ("AgentOpened", "AgentEnded")
    assert events.count("CallEnded") == 48 + 2  # and the sample
    assert len(calls_in(here)) == 48 + 2
    assert main(["report", "run"]) == 0
    assert "Reward calls" in Path("run/report.html").read_text("utf-8")


def test_check_looks_at_the_cluster_that_the_run_would_join_and_starts_nothing(
    here: Path, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    told = figures(capsys, "train", "run.yaml", "runtime=auto", "runtime.ranks=2", "trainer.device=cuda:1", "--check")
    assert told["memory"]["device"] == "each of 2 ranks"
    assert told["memory"]["fits"] is None
    assert not Path("run").exists()
    capsys.readouterr()
    assert main(["train", "run.yaml", "runtime=auto", "runtime.ranks=2", "runtime.gpus=1", "--check"]) == 2
    assert "the run needs 2 processes with 1 CPU and 1 GPU each, and there is room for 0" in capsys.readouterr().err


def test_an_error_in_a_rank_is_told_with_its_traceback_in_few_lines(
    here: Path, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """Weights that no rehearsal reads."""
    assert main(["train", "run.yaml", "steps=1"]) == 0
    assert main(["export", "run", "broken"]) == 0
    Path("broken/model.safetensors").write_bytes(b"not weights")
    capsys.readouterr()
    assert main(["train", "run.yaml", "runtime=auto", "runtime.ranks=2", "policy.model=broken", "run_dir=other"]) == 2
    said = capsys.readouterr().err.splitlines()
    (first,) = (number for number, line in enumerate(said) if line.startswith("rewardflow: "))
    assert said[first].startswith("rewardflow: rank ")
    assert " of 2 failed: " in said[first]
    assert said[first + 1] == "Traceback (most recent call last):"
    assert not any("RayTaskError" in line or "ray::" in line for line in said)
    assert said[-1].split(": ")[0].rpartition(".")[2] in said[first]


# ---- in a process of its own --------------------------------------------------------------------------------------


def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    """In a session of its own, so that all that it starts can be found."""
    code = "import sys; from rewardflow.cli.main import main; sys.exit(main())"
    clean = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "COLUMNS")}
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env={**clean, "PYTHONPATH": str(ROOT / "src"), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def until_step(process: subprocess.Popen[str]) -> list[str]:
    """What it says up to its first step."""
    assert process.stderr is not None
    said: list[str] = []
    for line in process.stderr:
        said.append(line.rstrip())
        if line.startswith("step "):
            return said
    raise AssertionError("\n".join(said))


def processes_of(session: int) -> list[int]:
    """That are in the session or are children of one that is: Ray gives some a session of their own."""
    parents: dict[int, tuple[int, int]] = {}
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            try:
                fields = (place / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] != "Z":
                parents[int(place.name)] = int(fields[1]), int(fields[3])
    found = {pid for pid, (_, sid) in parents.items() if sid == session}
    while more := {pid for pid, (parent, _) in parents.items() if parent in found and pid not in found}:
        found |= more
    return sorted(found)


def addresses_listened_on(pids: list[int]) -> set[str]:
    """By these processes, over TCP."""
    sockets = set()
    for pid in pids:
        for file in Path(f"/proc/{pid}/fd").iterdir():
            try:
                target = os.readlink(file)
            except OSError:
                continue
            if target.startswith("socket:["):
                sockets.add(target[len("socket:[") : -1])
    found = set()
    for table, size in (("/proc/net/tcp", 8), ("/proc/net/tcp6", 32)):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in sockets:
                found.add(_address(fields[1][:size]))
    return found


def _address(text: str) -> str:
    words = [bytes.fromhex(text[at : at + 8])[::-1] for at in range(0, len(text), 8)]
    return socket.inet_ntop(socket.AF_INET if len(words) == 1 else socket.AF_INET6, b"".join(words))


def test_ctrl_c_ends_a_run_on_a_cluster_of_its_own_with_everything_that_it_started(here: Path) -> None:
    """As a terminal sends it: to all processes that it knows of."""
    process = start("train", "run.yaml", "runtime=ray", "runtime.ranks=2", "steps=1000000", RAY_ADDRESS="")
    try:
        said = until_step(process)
        assert said[1] == "starting Ray on this machine"
        assert said[2].startswith("waiting for room in the cluster: 2 processes with 1 CPU each")
        assert said[3] == "waiting for 2 ranks to load tiny"
        started = processes_of(process.pid)
        assert len(started) > 5
        # Ray's own servers are on all addresses, whatever they are told; they want a token.
        assert addresses_listened_on(started) <= {"127.0.0.1", "127.0.0.2", "::ffff:127.0.0.1", "::1", "::"}
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert "checkpoint " in out
    assert "Traceback" not in err
    num_steps = len(lines_of("run/metrics.jsonl"))
    assert err.splitlines()[-1] == f"rewardflow: interrupted; --resume starts at step {num_steps:,} of 1,000,000"
    assert wait_until_gone(started) == []


def test_a_run_that_sigterm_ends_leaves_the_cluster_free_and_goes_on_there_with_other_ranks(
    here: Path, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    process = start(
        "train", "run.yaml", "runtime=ray", "runtime.ranks=2", "checkpoint.every=1", RAY_ADDRESS=cluster.address
    )
    try:
        said = until_step(process)
        assert said[1] == f"joining Ray at {cluster.address}"
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130, err
    num_steps = len(lines_of("run/metrics.jsonl"))
    assert err.splitlines()[-1] == f"rewardflow: interrupted; --resume starts at step {num_steps} of 3"
    deadline_s = time.monotonic() + 30
    while ray.available_resources()["CPU"] < 32 and time.monotonic() < deadline_s:
        time.sleep(0.2)
    assert ray.available_resources()["CPU"] == 32
    told = figures(capsys, "train", "run.yaml", "runtime=auto", "checkpoint.every=1", "--resume")
    assert told["trained"] == 3
    assert [line["step"] for line in lines_of("run/metrics.jsonl")] == [0, 1, 2]


def test_a_rank_that_is_killed_ends_the_run_with_its_name_and_the_way_on(here: Path, cluster: Cluster) -> None:
    process = start("train", "run.yaml", f"runtime={cluster.address}", "runtime.ranks=2", "steps=1000000")
    try:
        until_step(process)
        ranks = wait_until_gone(_named("ray::Rank", cluster), patience_s=0)
        assert len(ranks) == 2
        os.kill(ranks[0], signal.SIGKILL)
        _, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 2, err
    (told,) = (line for line in err.splitlines() if line.startswith("rewardflow: "))
    assert f"of 2 (node {LOOPBACK}, process {ranks[0]}) went away: " in told
    assert "--resume goes on from the last checkpoint" in told
    assert "Traceback" not in err
    assert wait_until_gone(ranks) == []


def _named(name: str, cluster: Cluster) -> list[int]:
    """Processes of this cluster, whose raylet knows its folder."""
    folder = cluster.head_node.get_temp_dir_path().encode()
    found = []
    for place in Path("/proc").iterdir():
        try:
            if place.name.isdigit() and (place / "cmdline").read_bytes().startswith(name.encode()):
                parent = (place / "stat").read_text().rpartition(")")[2].split()[1]
                if folder in Path(f"/proc/{parent}/cmdline").read_bytes():
                    found.append(int(place.name))
        except OSError:
            continue
    return found


STRANGER = """
import os, subprocess, sys
from rewardflow.runtime.on_ray.cluster import private_cluster

JOIN = "import logging, ray; ray.init(address={!r}, log_to_driver=False, logging_level=logging.CRITICAL)"
with private_cluster():
    import ray

    session = ray._private.worker._global_node.get_session_dir_path()
    places = [session]
    while os.path.dirname(places[-1]) != "/tmp":
        places.append(os.path.dirname(places[-1]))
    print(oct(os.stat(places[-1]).st_mode & 0o777), len(places))
    code = JOIN.format(ray.get_runtime_context().gcs_address)
    stranger = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    for environment in (dict(os.environ), stranger):
        print(subprocess.run([sys.executable, "-c", code], env=environment, stderr=subprocess.DEVNULL).returncode)
"""


def test_nobody_joins_a_cluster_of_a_runs_own_without_its_token_or_enters_its_folder(tmp_path: Path) -> None:
    (tmp_path / "stranger.py").write_text(STRANGER, "utf-8")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    said = subprocess.run(
        [sys.executable, str(tmp_path / "stranger.py")],
        env={**clean, "PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
        check=True,
    )
    assert said.stdout.split() == ["0o700", "3", "0", "1"]  # Ray opens up its own folder, the second of three


def test_an_address_where_nobody_listens_is_told_at_once() -> None:
    """By a process of its own: this one may be in a cluster already, and would stay there."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        process = start("agent", "status", "--address", address)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 2
    assert f"must be that of a running Ray cluster, got {address!r}: " in said
