"""`rewardflow score` with a wrong key, or with nobody at the port, ends at once and says why."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from rewardflow.cli.main import main

NUM_ROWS = 40
ANSWER = {
    "choices": [
        {"message": {"role": "assistant", "content": '{"reason": "so", "correctness": 7}'}, "finish_reason": "stop"}
    ],
    "usage": {"prompt_tokens": 10, "completion_tokens": 5},
}


class Service:
    """A judge of chat completions that refuses with a status, from a number of calls on."""

    def __init__(self) -> None:
        self.refuses_with = 0
        self.num_calls = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                outer.num_calls += 1
                said = {"error": {"message": "this key was revoked"}} if outer.refuses_with else ANSWER
                body = json.dumps(said).encode()
                self.send_response(outer.refuses_with or 200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_GET(self) -> None:
                self.send_error(404)

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"


@pytest.fixture
def service() -> Iterator[Service]:
    service = Service()
    thread = threading.Thread(target=service.server.serve_forever)
    thread.start()
    yield service
    service.server.shutdown()
    thread.join()
    service.server.server_close()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rows = [{"prompt": f"What is {number}?", "response": str(number)} for number in range(NUM_ROWS)]
    (tmp_path / "answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def score(url: str, *flags: str) -> int:
    Path("judge.yaml").write_text(f"reward: llm_judge\nmodel: m\nbase_urls: ['{url}']\ncriteria: [correctness]\n")
    return main(["score", "answers.jsonl", "--reward", "judge.yaml", "--out", "out.jsonl", *flags])


def scores() -> list[float | None]:
    return [json.loads(line)["score"] for line in Path("out.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("status", [401, 403])
def test_a_wrong_key_ends_the_command_after_one_call_with_what_the_service_said(
    here: Path, service: Service, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    service.refuses_with = status
    assert score(service.url) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert f"answered {status}" in told
    assert "this key was revoked" in told
    assert (service.num_calls, Path("out.jsonl").exists()) == (1, False)


def test_nobody_at_the_port_ends_the_command(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        assert score(f"http://127.0.0.1:{port}/v1", "--max-attempts", "1") == 2
    told = " ".join(capsys.readouterr().err.split())
    assert f"got no connection to 127.0.0.1:{port}" in told
    assert "(--no-probe starts without asking)" in told


def test_a_key_that_was_mended_or_broke_since_is_asked_about_with_a_row_that_is_not_in_the_journal(
    here: Path, service: Service
) -> None:
    assert score(service.url, "--limit", "20") == 0
    assert service.num_calls == 20
    service.refuses_with = 401
    assert score(service.url) == 2
    assert 20 < service.num_calls < NUM_ROWS
    service.refuses_with, service.num_calls = 0, 0
    assert score(service.url) == 0
    assert service.num_calls == 20
    assert None not in scores()


def test_the_first_verdict_counts_and_is_paid_once_also_without_a_journal(here: Path, service: Service) -> None:
    assert score(service.url, "--journal", "none") == 0
    assert service.num_calls == NUM_ROWS
    assert len(scores()) == NUM_ROWS


def test_no_probe_goes_on(here: Path, service: Service, capsys: pytest.CaptureFixture[str]) -> None:
    service.refuses_with = 401
    assert score(service.url, "--limit", "3", "--no-probe") == 3
    assert scores() == [None] * 3


def test_a_first_row_that_fails_by_itself_ends_nothing(here: Path) -> None:
    (here / "reward.py").write_text("def judge(response):\n    return 1 / int(response)\n")
    assert main(["score", "answers.jsonl", "--reward", "reward.py:judge", "--out", "out.jsonl"]) == 3
    assert scores().count(None) == 1


DEAD_PORT = """
import urllib.request

def with_urllib(response):
    urllib.request.urlopen("http://127.0.0.1:{port}/judge", timeout=5)

async def with_aiohttp(response):
    import aiohttp

    async with aiohttp.ClientSession() as session:
        await session.post("http://127.0.0.1:{port}/judge")

def by_row(response):
    if int(response) < 3:
        with_urllib(response)
    return 1.0
"""


@pytest.fixture
def port() -> Iterator[int]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        yield free.getsockname()[1]


@pytest.mark.parametrize(
    ("name", "max_attempts"), [("with_urllib", "3"), ("with_aiohttp", "1"), ("with_aiohttp", "50")]
)
def test_a_function_that_calls_a_port_with_nobody_there_ends_the_command_with_the_reason(
    here: Path, port: int, name: str, max_attempts: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "reward.py").write_text(DEAD_PORT.replace("{port}", str(port)))
    flags = ["--out", "out.jsonl", "--max-attempts", max_attempts, "--backoff-s", "0.1", "--max-backoff-s", "0.2"]
    assert main(["score", "answers.jsonl", "--reward", f"reward.py:{name}", *flags]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "the reward's service must be reachable" in told
    assert "refused" in told or "Cannot connect" in told
    assert not Path("out.jsonl").exists()


def test_a_few_rows_that_the_service_cannot_serve_end_nothing(here: Path, port: int) -> None:
    (here / "reward.py").write_text(DEAD_PORT.replace("{port}", str(port)))
    flags = ["--out", "out.jsonl", "--max-attempts", "1"]
    assert main(["score", "answers.jsonl", "--reward", "reward.py:by_row", *flags]) == 3
    assert scores().count(None) == 3


def test_a_job_of_which_only_failures_are_left_ends_as_it_did_before(here: Path, port: int) -> None:
    code = DEAD_PORT.replace("{port}", str(port)).replace("int(response) < 3", "int(response) % 4 == 3")
    (here / "reward.py").write_text(code)
    flags = ["--out", "out.jsonl", "--max-attempts", "1", "--max-concurrency", "4"]
    for _ in range(2):
        assert main(["score", "answers.jsonl", "--reward", "reward.py:by_row", *flags]) == 3
        assert scores().count(None) == NUM_ROWS // 4


def test_a_function_whose_key_is_refused_ends_the_command(
    here: Path, service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    service.refuses_with = 401
    code = f"""
import urllib.error
import urllib.request

def judge(response):
    try:
        urllib.request.urlopen("{service.url}", data=b"1", timeout=5)
    except urllib.error.HTTPError as refused:
        refused.close()
        raise
"""
    (here / "reward.py").write_text(code)
    assert main(["score", "answers.jsonl", "--reward", "reward.py:judge", "--out", "out.jsonl"]) == 2
    assert "the reward's service must accept its caller" in " ".join(capsys.readouterr().err.split())
    assert service.num_calls == 1


def test_a_cascade_whose_rule_decides_the_first_answers_ends_when_nobody_is_at_the_port_of_its_judge(
    here: Path, port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"prompt": "", "response": str(n), "ground_truth": str(n if n < 5 else -1)} for n in range(NUM_ROWS)]
    (here / "answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    judge = f"{{reward: llm_judge, model: m, base_urls: ['http://127.0.0.1:{port}/v1'], criteria: [correctness]}}"
    rule = "{reward: regex, answer: '[0-9]+'}"
    (here / "judge.yaml").write_text(f"reward: cascade\nfirst: {rule}\nthen: {judge}\nask_below: 1.0\n")
    assert main(["score", "answers.jsonl", "--reward", "judge.yaml", "--out", "out.jsonl"]) == 2
    assert f"got no connection to 127.0.0.1:{port}" in " ".join(capsys.readouterr().err.split())
