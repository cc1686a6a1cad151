"""The server of reports, over real HTTP: what it shows, whom it answers, and that it only reads."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from written_runs import metrics_line, write_lines, write_run

import rewardflow as rf
from rewardflow.errors import InvalidInput
from rewardflow.watch.watch_server import WatchServer


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    text: str
    headers: Mapping[str, str]


Ask = Callable[..., Awaitable[Answer]]


def with_server(folder: Path, script: Callable[[WatchServer, Ask], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        async with WatchServer(folder, **options) as server, aiohttp.ClientSession() as session:

            async def ask(path: str, *, method: str = "GET", **headers: str) -> Answer:
                url = f"http://127.0.0.1:{server.port}{path}"
                async with session.request(method, url, headers=headers, allow_redirects=False) as got:
                    return Answer(got.status, await got.text(), got.headers)

            await script(server, ask)

    asyncio.run(main())


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for name in ("first", "study/second"):
        write_run(tmp_path / "runs" / name, steps=2)
    return tmp_path / "runs"


def test_all_runs_one_run_and_two_compared_are_pages_of_the_report(runs: Path) -> None:
    async def script(server: WatchServer, ask: Ask) -> None:
        home = await ask("/")
        assert home.status == 200
        assert "run?name=study%2Fsecond" in home.text
        one = await ask("/run?name=study%2Fsecond")
        assert "Exposed reward time" in one.text
        assert "connect-src &#x27;self&#x27;" in one.text
        two = await ask("/compare?one=first&other=study%2Fsecond")
        assert "step time (median)" in two.text

    with_server(runs, script)


def test_a_page_is_current_and_one_that_has_not_changed_has_no_body(runs: Path) -> None:
    async def script(server: WatchServer, ask: Ask) -> None:
        before = await ask("/run?name=first")
        same = await ask("/run?name=first", **{"If-None-Match": before.headers["ETag"]})
        assert (same.status, same.text) == (304, "")
        write_lines(runs / "first" / "metrics.jsonl", [metrics_line(2)])
        after = before
        while after.text == before.text:  # the page rests for a moment after it was made
            after = await ask("/run?name=first", **{"If-None-Match": before.headers["ETag"]})
            after = before if after.status == 304 else after
        assert "3 of 2" in after.text

    with_server(runs, script)


def test_a_run_that_starts_later_appears(runs: Path) -> None:
    async def script(server: WatchServer, ask: Ask) -> None:
        assert "third" not in (await ask("/")).text
        write_run(runs / "third", steps=1)
        assert "third" in (await ask("/")).text

    with_server(runs, script)


def test_a_broken_run_does_not_hide_the_others(runs: Path) -> None:
    (runs / "first" / "metrics.jsonl").write_text("no JSON\n{}\n", "utf-8")

    async def script(server: WatchServer, ask: Ask) -> None:
        home = await ask("/")
        assert "cannot be read" in home.text
        assert "run?name=study%2Fsecond" in home.text
        assert (await ask("/run?name=first")).status == 404

    with_server(runs, script)


@pytest.mark.parametrize("name", ["../private", "..%2Fprivate", "%2Fetc", "first%2F..%2F..%2Fprivate", "missing", ""])
def test_a_name_is_looked_up_and_never_used_as_a_path(runs: Path, name: str) -> None:
    write_run(runs.parent / "private", steps=1)

    async def script(server: WatchServer, ask: Ask) -> None:
        answer = await ask(f"/run?name={name}")
        assert answer.status == 404
        assert "there is no run" in answer.text

    with_server(runs, script)


def test_pages_of_other_sites_and_writing_methods_are_refused(runs: Path) -> None:
    async def script(server: WatchServer, ask: Ask) -> None:
        assert (await ask("/", Host="evil.example")).status == 403
        assert (await ask("/", Origin="http://evil.example")).status == 403
        assert (await ask("/", method="POST")).status == 405
        assert (await ask("/nothing")).status == 404

    with_server(runs, script)


def test_an_address_that_others_reach_needs_a_token(runs: Path) -> None:
    with pytest.raises(InvalidInput, match=r"needs a token, got host 0\.0\.0\.0"):
        WatchServer(runs, host="0.0.0.0")

    async def script(server: WatchServer, ask: Ask) -> None:
        assert server.url.endswith("?token=s3cret")
        assert (await ask("/")).status == 401
        assert (await ask("/?token=wrong")).status == 401
        let_in = await ask("/?token=s3cret")
        assert (let_in.status, let_in.headers["Location"]) == (303, "/")
        cookie = let_in.headers["Set-Cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert (await ask("/", Cookie=cookie.split(";")[0])).status == 200
        assert "s3cret" not in (await ask("/", Cookie=cookie.split(";")[0])).text

    with_server(runs, script, token="s3cret")


def test_rollouts_are_searched_and_can_be_left_out(tmp_path: Path) -> None:
    def judge(solution_str: str) -> float:
        return 1.0

    folder = tmp_path / "runs" / "scored"
    rollouts = [rf.Rollout(group_id=str(i), response=f"</script>quagga {i}") for i in range(3)]
    rf.score(rollouts, judge, run_dir=folder, journal=folder / "journal.db")

    async def script(server: WatchServer, ask: Ask) -> None:
        found = await ask("/rollouts?name=scored&text=QUAGGA+2")
        assert found.text.count('"group_id"') == 1
        assert "</script>" not in found.text
        assert (await ask("/rollouts?name=scored&text=")).status == 404

    async def without(server: WatchServer, ask: Ask) -> None:
        assert "quagga" not in (await ask("/run?name=scored")).text
        assert (await ask("/rollouts?name=scored&text=quagga")).status == 404

    with_server(tmp_path / "runs", script)
    with_server(tmp_path / "runs", without, rollouts=False)


def test_a_port_in_use_and_a_file_in_place_of_the_folder_are_named(runs: Path) -> None:
    async def script(server: WatchServer, ask: Ask) -> None:
        with pytest.raises(InvalidInput, match=f"must be free to listen on, got 127.0.0.1:{server.port}"):
            async with WatchServer(runs, port=server.port):
                pass
        with pytest.raises(InvalidInput, match="a folder of runs"):
            async with WatchServer(runs / "first" / "metrics.jsonl"):
                pass

    with_server(runs, script)
