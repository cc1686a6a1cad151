"""A hostile service sends the key back in every way it can, and the key reaches no file, log or screen of a run."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import urllib.parse
from pathlib import Path

import pytest
from aiohttp import web
from scripted_server import Request, ScriptedServer, completion, verdict

import rewardflow as rf
from rewardflow.cli.main import main
from rewardflow.observe.secret_values import SecretValues
from rewardflow.services.judges.llm_judge import LLMJudge
from rewardflow.services.reward_model import RewardModel

KEY = 'q7Zp0aTT+lm/29xw&Q"e'  # nothing about its form says that it is a key
SECOND = "zz-Second-4711-header"
JUDGE = """
reward: llm_judge
model: m
base_urls: ["{url}"]
api_key_env: JUDGE_ENTRY
headers: {{X-Gate: $GATE}}
"""


def forms_of(key: str) -> list[str]:
    return [
        key,
        json.dumps(key)[1:-1],
        urllib.parse.quote(key, safe=""),
        base64.b64encode(key.encode()).decode(),
        f"{key[:9]}\n{key[9:]}",
        " ".join(key),
    ]


async def echo(request: Request) -> web.Response:
    """Sends the keys back; the response to judge, a number, says how."""
    key = request.headers["Authorization"].removeprefix("Bearer ")
    prompt = request.user_prompt
    number = next(number for number in range(20) if f"case-{number:02d}" in prompt)
    headers = {"X-Your-Key": urllib.parse.quote(key), "X-RateLimit-Reset-Requests": urllib.parse.quote(key)}
    told = f"You sent {forms_of(key)[number % 6]} and {request.headers['X-Gate']}."
    match number // 6:
        case 0:
            return web.json_response(completion(verdict(told)), headers=headers)
        case 1:
            bodies = {
                6: web.json_response({"error": {"message": told}}, status=400),
                7: web.Response(text=told, status=401),
                8: web.Response(text=f"<p>{told}</p>", content_type="text/html"),
                9: web.json_response({"error": {"code": 400, "message": told}}),
                10: web.json_response(completion(None, refusal=told)),
                11: web.Response(status=302, headers={"Location": f"/{urllib.parse.quote(key)}"}),
            }
            return bodies[number]
        case _:
            texts = (told, "x" * 1990 + key + "y" * 3000, f'{{"reason": "{key}", "correctness": "{key}"}}')
            return web.json_response(completion(texts[number % 3]))


def left_in(folder: Path) -> dict[str, str]:
    """Returns every file in which one of the keys can be found, in one of its forms."""
    found = {}
    for file in (one for one in folder.rglob("*") if one.is_file()):
        text = file.read_bytes().decode("utf-8", "replace")
        for key in (KEY, SECOND):
            if SecretValues([key]).are_in(text) or any(form in text for form in forms_of(key)):
                found[file.name] = text
    return found


def test_a_key_that_a_service_sends_back_leaves_the_process_nowhere(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JUDGE_ENTRY", KEY)
    monkeypatch.setenv("GATE", SECOND)
    caplog.set_level(logging.DEBUG)
    rows = [{"prompt": "p", "response": f"case-{number:02d}", "ground_truth": "t"} for number in range(18)]
    Path("answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    async def run() -> int:
        async with ScriptedServer(echo) as server:
            await asyncio.to_thread(Path("judge.yaml").write_text, JUDGE.format(url=server.url))
            command = ["score", "answers.jsonl", "--reward", "judge.yaml", "--out", "out.jsonl", "-vv", "--json"]
            return await asyncio.to_thread(main, [*command, "--run-dir", "run", "--max-attempts", "1"])

    assert asyncio.run(run()) == 3
    assert main(["report", "run"]) == 0
    told = capsys.readouterr()
    scores = [json.loads(line)["score"] for line in Path("out.jsonl").read_text().splitlines()]
    assert scores == [0.7] * 6 + [None] * 12
    assert Path("run/report.html").exists()
    assert "[redacted]" in Path("out.jsonl").read_text()
    assert not left_in(tmp_path)
    for text in (told.out, told.err, caplog.text):
        assert not SecretValues([KEY, SECOND]).are_in(text)


def test_no_repr_of_a_service_shows_the_secrets_of_its_address() -> None:
    address = "https://me:sesame-open@host/v1?api-version=2024-10-21&x=entry-4711"
    for service in (LLMJudge(model="m", base_urls=[address]), RewardModel(model="m", base_urls=address)):
        shown = repr(service)
        assert "sesame-open" not in shown
        assert "entry-4711" not in shown
        assert "api-version=2024-10-21" in shown
        assert "model='m'" in shown


def test_errors_and_logs_that_quote_a_secret_setting_do_not_show_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "picky.py"
    file.write_text(
        "import logging\n"
        "class Picky:\n"
        "    def __init__(self, api_key):\n"
        "        logging.getLogger('rewardflow.picky').warning('built with %s', api_key)\n"
        "        raise ValueError(f'the settings are {api_key[:8]} {api_key[8:]}')\n"
    )
    kwargs = {"api_key": "plain-words-and-4"}
    with pytest.raises(rf.RewardLoadError) as raised:
        rf.score([rf.Rollout(group_id="0", response="r")], f"{file}:Picky", reward_kwargs=kwargs)
    assert "the settings are [redacted]" in str(raised.value)
    assert "built with [redacted]" in caplog.text
    assert "plain-words" not in str(rf.Weighted(f"{file}:Picky", reward_kwargs=kwargs))
