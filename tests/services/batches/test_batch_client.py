"""Requests gather into batches, wait for them, and are never sent twice; against the mock judge over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from rollouts import numbered

import rewardflow as rf
from rewardflow import clock
from rewardflow.errors import JournalWriteFailed
from rewardflow.mock_judge import MockJudge, MockJudgeSettings
from rewardflow.observe.redact import register_secret
from rewardflow.reward.code.current_call import Call, enter_call
from rewardflow.services import Cascade, Jury, ListwiseJudge, LLMJudge
from rewardflow.services.batches.batch_api import BatchProgress, Outcome, SentBatch, not_processed, url_under
from rewardflow.services.batches.batch_client import BatchClient
from rewardflow.services.batches.settings import BatchSettings
from rewardflow.services.rules import GSM8K

PRICES = {"input_usd_per_million": 1.0, "output_usd_per_million": 2.0}
APIS = ["openai", "anthropic"]


def judge_of(mock: MockJudge, api: str = "openai", *, sampling: dict[str, Any] | None = None, **batch: Any) -> LLMJudge:
    settings = {"api": api, "linger_s": 0.02, "poll_s": 0.005, **batch}
    own = {} if sampling is None else {"sampling": sampling}
    return LLMJudge(model="mock-judge", base_urls=[mock.base_url], prices=PRICES, batch=settings, **own)


async def score(judge: Any, count: int = 12, **options: Any) -> tuple[list[rf.Reward], rf.AgentStatistics]:
    async with rf.RewardAgent(judge, **options) as agent:
        groups = await agent.submit(numbered(count)).all()
        return [group.rewards[0] for group in groups], agent.statistics()


async def until(is_so: Callable[[], bool]) -> None:
    """Waits for real: another part, with its own sockets and threads, must get that far."""
    for _ in iter(is_so, True):
        await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def interrupted(mock: MockJudge, judge: Any, journal: Path, count: int = 12) -> AsyncIterator[None]:
    """Runs a session until its batch is at the service, then leaves the agent's block, as Ctrl-C does."""
    async with rf.RewardAgent(judge, journal=journal) as agent:
        ticket = agent.submit(numbered(count))
        await until(lambda: mock.statistics().batches > 0)
        await until(lambda: b"batch_0" in journal.with_name(f"{journal.name}.batches").read_bytes())
        assert ticket is not None
    yield


@pytest.mark.parametrize("api", APIS)
def test_calls_become_one_batch_and_one_verdict_each_at_half_the_price(api: str, tmp_path: Path) -> None:
    async def run() -> None:
        async with MockJudge() as mock:
            rewards, told = await score(judge_of(mock, api), journal=tmp_path / "j.db")
            asked = mock.statistics()
        async with MockJudge() as single:
            structured: Literal["auto", "prompt"] = "auto" if api == "openai" else "prompt"
            direct = LLMJudge(model="mock-judge", base_urls=[single.base_url], prices=PRICES, structured=structured)
            expected, full = await score(direct)
        assert [one.value for one in rewards] == [one.value for one in expected]
        assert (asked.batches, asked.admitted_again) == (1, {0: 12})
        assert told.ledger.spent_usd == pytest.approx(full.ledger.spent_usd / 2)

    asyncio.run(run())


@pytest.mark.parametrize("api", APIS)
def test_what_expires_or_fails_is_sent_again_and_the_rest_is_kept(api: str, tmp_path: Path) -> None:
    async def run() -> None:
        settings = MockJudgeSettings(batch_expired_share=0.4, faults={"500": 0.2, "malformed_verdict": 0.2}, seed=5)
        async with MockJudge(settings) as mock:
            rewards, told = await score(judge_of(mock, api), backoff_s=0.001, max_attempts=8, journal=tmp_path / "j.db")
            outcomes = mock.statistics().outcomes
        assert all(one.is_scored for one in rewards)
        assert outcomes["answered"] == 12
        assert outcomes["expired"] > 0
        assert outcomes["500"] > 0
        assert outcomes["malformed_verdict"] > 0
        assert told.ledger.uncertain_usd == 0  # nothing of it was charged without telling

    asyncio.run(run())


@pytest.mark.parametrize("api", APIS)
def test_a_batch_whose_creation_was_not_answered_is_found_and_not_created_again(api: str) -> None:
    async def run() -> None:
        async with MockJudge(MockJudgeSettings(lost_creations=1)) as mock:
            rewards, _ = await score(judge_of(mock, api))
            assert (mock.statistics().batches, mock.statistics().admitted_again) == (1, {0: 12})
        assert all(one.is_scored for one in rewards)

    asyncio.run(run())


@pytest.mark.parametrize("api", APIS)
def test_an_address_with_a_query_has_batches_too_and_keeps_its_query(api: str) -> None:
    async def run() -> None:
        async with MockJudge(MockJudgeSettings(lost_creations=1)) as mock:  # so that every route is asked
            judge = replace(judge_of(mock, api), base_urls=[f"{mock.base_url}?api-version=2"])
            rewards, _ = await score(judge)
            assert (mock.statistics().batches, mock.statistics().admitted_again) == (1, {0: 12})
        assert all(one.is_scored for one in rewards)

    asyncio.run(run())
    assert url_under("http://h/v1?a=1", "/batches", "limit=2") == "http://h/v1/batches?a=1&limit=2"
    assert url_under("http://h/v1", "/files") == "http://h/v1/files"


def test_a_batch_is_sent_when_it_is_full_by_count_or_by_bytes() -> None:
    async def run() -> None:
        async with MockJudge() as mock:
            await score(judge_of(mock, max_requests=5, linger_s=30), count=10)
            assert mock.statistics().batches == 2
        async with MockJudge() as mock:
            await score(judge_of(mock, max_bytes=6000), count=10)
            assert 3 <= mock.statistics().batches <= 10

    asyncio.run(run())


@pytest.mark.parametrize("when", ["keep", "cancel"])
@pytest.mark.parametrize("api", APIS)
def test_an_interrupted_batch_is_collected_by_the_next_session_or_cancelled_by_choice(
    api: str, when: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        async with MockJudge(MockJudgeSettings(batch_latency="constant:3600")) as mock:
            judge = judge_of(mock, api, when_interrupted=when)
            async with interrupted(mock, judge, tmp_path / "j.db"):
                mock.end_batches()
            rewards, told = await score(judge, journal=tmp_path / "j.db", backoff_s=0.001)
            asked = mock.statistics()
        assert all(one.is_scored for one in rewards)
        assert (asked.batches == 1) == (when == "keep")
        assert asked.admitted_again == {0: 12}
        full_usd = (asked.prompt_tokens + 2 * asked.completion_tokens) / 1e6
        assert told.ledger.spent_usd == pytest.approx(full_usd / 2)

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    assert ("go on at the service" if when == "keep" else "were cancelled") in caplog.text


class ExpiringBatches:
    """A service at which the first batch expires, and later ones run until `is_over`."""

    def __init__(self) -> None:
        self.batches: list[list[bytes]] = []
        self.is_over = False

    def encode(self, key: str, payload: Mapping[str, Any]) -> bytes:
        return key.encode()

    async def create(self, key: str, parts: Sequence[bytes]) -> str:
        self.batches.append([*parts])
        return str(len(self.batches) - 1)

    async def find(self, sent: SentBatch) -> str | None:
        return None

    async def progress(self, batch_id: str) -> BatchProgress:
        return BatchProgress(batch_id == "0" or self.is_over, (batch_id,))

    async def results(self, progress: BatchProgress) -> AsyncGenerator[tuple[str, Outcome], None]:
        for batch_id in progress.places:
            for key in self.batches[int(batch_id)]:
                yield key.decode(), not_processed("expired") if batch_id == "0" else {"answer": batch_id}

    async def cancel(self, batch_id: str) -> None: ...


def test_a_second_attempt_that_an_interrupted_session_sent_is_not_sent_again(tmp_path: Path) -> None:
    """The first attempt expired; a new session begins with the first attempt, and must find the second."""
    service = ExpiringBatches()

    async def send(attempt: int, seconds: float) -> Mapping[str, Any]:
        client = BatchClient(BatchSettings(), lambda _: service)
        client.resume(tmp_path / "j.db", "scope")
        enter_call(Call(tuple(numbered(1)), attempt=1))
        try:
            for number in range(1, attempt):
                with pytest.raises(rf.ServiceError, match="expired"):
                    await client.send("http://127.0.0.1:1", {"model": "m"})
                enter_call(Call(tuple(numbered(1)), attempt=number + 1))
            async with asyncio.timeout(seconds):
                return await client.send("http://127.0.0.1:1", {"model": "m"})
        finally:
            await client.aclose()

    with pytest.raises(TimeoutError):
        clock.run(send(attempt=2, seconds=600))
    service.is_over = True
    assert clock.run(send(attempt=1, seconds=600)) == {"answer": "1"}
    assert len(service.batches) == 2


def test_an_attempt_after_a_timeout_waits_for_the_request_that_is_still_out(caplog: pytest.LogCaptureFixture) -> None:
    service = ExpiringBatches()
    service.batches.append([])  # the one that expires

    async def run() -> Mapping[str, Any]:
        client = BatchClient(BatchSettings(), lambda _: service)
        for attempt in (1, 2):
            enter_call(Call(tuple(numbered(1)), attempt=attempt))
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(60):
                    await client.send("http://127.0.0.1:1", {"model": "m"})
        service.is_over = True
        enter_call(Call(tuple(numbered(1)), attempt=3))
        answer = await client.send("http://127.0.0.1:1", {"model": "m"})
        await client.aclose()
        return answer

    with caplog.at_level(logging.WARNING):
        assert clock.run(run()) == {"answer": "1"}
    assert len(service.batches) == 2
    assert len(service.batches[1]) == 1
    assert caplog.text.count("remove timeout_s") == 1


def test_equal_requests_of_a_call_that_timed_out_are_each_waited_for_once() -> None:
    service = ExpiringBatches()
    service.batches.append([])

    async def send_three(client: BatchClient, attempt: int) -> list[Mapping[str, Any]]:
        enter_call(Call(tuple(numbered(1)), attempt=attempt))
        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            sent = [tasks.create_task(client.send("http://127.0.0.1:1", {"model": "m"})) for _ in range(3)]
        return [one.result() for one in sent]

    async def run() -> None:
        client = BatchClient(BatchSettings(), lambda _: service)
        with pytest.raises(TimeoutError):
            await send_three(client, 1)
        service.is_over = True
        assert await send_three(client, 2) == [{"answer": "1"}] * 3
        await client.aclose()

    clock.run(run())
    assert len(set(service.batches[1])) == 3
    assert len(service.batches) == 2


@pytest.mark.parametrize("is_saved", [True, False])
def test_answers_are_forgotten_only_if_every_verdict_is_in_the_journal(is_saved: bool, tmp_path: Path) -> None:
    journal = tmp_path / "j.db"

    def num_answers() -> int:
        with sqlite3.connect(tmp_path / "j.db.batches") as connection:
            return len(connection.execute("SELECT key FROM requests WHERE answer IS NOT NULL").fetchall())

    async def run() -> None:
        async with MockJudge() as mock:
            judge = judge_of(mock)
            with contextlib.nullcontext() if is_saved else pytest.raises(JournalWriteFailed):
                async with rf.RewardAgent(judge, journal=journal) as agent:
                    await agent.submit(numbered(12)).all()
                    if not is_saved:
                        journal.unlink()
            assert num_answers() == (0 if is_saved else 12)
            rewards, _ = await score(judge, journal=journal)
            assert mock.statistics().admitted_again == {0: 12}
        assert all(one.is_scored for one in rewards)
        assert num_answers() == 0

    asyncio.run(run())


def test_a_batch_at_an_address_with_a_password_is_found_again_although_the_file_has_no_password(tmp_path: Path) -> None:
    register_secret("pw-0123456789")
    service = ExpiringBatches()
    service.batches.append([])  # the one that expires
    asked: list[str] = []

    async def send(seconds: float) -> Mapping[str, Any]:
        def make_api(address: str) -> ExpiringBatches:
            asked.append(address)
            return service

        client = BatchClient(BatchSettings(), make_api)
        client.resume(tmp_path / "j.db", "scope")
        try:
            async with asyncio.timeout(seconds):
                return await client.send("http://me:pw-0123456789@127.0.0.1:1", {"model": "m"})
        finally:
            await client.aclose()

    with pytest.raises(TimeoutError):
        clock.run(send(600))
    assert b"pw-0123456789" not in (tmp_path / "j.db.batches").read_bytes()
    service.is_over = True
    assert clock.run(send(600)) == {"answer": "1"}
    assert set(asked) == {"http://me:pw-0123456789@127.0.0.1:1"}
    assert len(service.batches) == 2


def test_an_answer_that_changed_on_disk_is_asked_for_again(tmp_path: Path) -> None:
    service = ExpiringBatches()
    service.is_over = True

    async def send() -> Mapping[str, Any]:
        client = BatchClient(BatchSettings(), lambda _: service)
        client.resume(tmp_path / "j.db", "scope")
        enter_call(Call(tuple(numbered(1)), attempt=1))
        try:
            return await client.send("http://127.0.0.1:1", {"model": "m"})
        finally:
            await client.aclose()

    with pytest.raises(rf.ServiceError, match="expired"):
        clock.run(send())
    assert clock.run(send()) == clock.run(send()) == {"answer": "1"}
    with sqlite3.connect(tmp_path / "j.db.batches") as connection:
        connection.execute("""UPDATE requests SET answer = CAST('{"answer":"9"}' AS BLOB)""")
    assert clock.run(send()) == {"answer": "2"}


def test_a_cap_counts_a_found_batch_once(tmp_path: Path) -> None:
    """The first session sets aside most of the cap for its batch; the second one must not need as much again."""

    async def run() -> None:
        async with MockJudge(MockJudgeSettings(batch_latency="constant:3600")) as mock:
            judge = judge_of(mock, max_requests=12, linger_s=30)
            bound_usd = judge.cost_bound_usd(numbered(1)[0])
            assert bound_usd is not None
            options: dict[str, Any] = {"journal": tmp_path / "j.db", "max_cost_usd": 12.5 * bound_usd}
            async with rf.RewardAgent(judge, **options) as agent:
                agent.submit(numbered(12))
                await until(lambda: mock.statistics().batches > 0)
                assert agent.statistics().ledger.reserved_usd == pytest.approx(12 * bound_usd, rel=0.01)
            mock.end_batches()
            rewards, told = await score(judge, **options)
        assert all(one.is_scored for one in rewards)
        assert told.ledger.uncertain_usd == pytest.approx(0, abs=1e-12)
        assert told.ledger.spent_usd == pytest.approx(sum(one.cost_usd for one in rewards))

    asyncio.run(run())


@pytest.mark.parametrize("change", ["its reference", "another answer of its group"])
def test_a_cap_still_counts_a_batch_whose_requests_are_not_found_again_because_an_input_changed(
    change: str, tmp_path: Path
) -> None:
    def pair(reference: str, other: str) -> list[rf.Rollout]:
        whole = rf.Rollout(group_id="g", group_size=2, prompt="6 * 7?", response="42", ground_truth=reference)
        return [whole, replace(whole, index=1, response=other)]

    async def run() -> None:
        async with MockJudge(MockJudgeSettings(batch_latency="constant:3600")) as mock:
            judge: Any = judge_of(mock, linger_s=0.05)
            if change == "another answer of its group":
                judge = ListwiseJudge(judge=judge)
                later = pair("42", "forty-two")
            else:
                later = pair("forty-two", "41")
            bound_usd = sum(judge.cost_bound_usd(rollout) for rollout in pair("42", "41"))
            options: dict[str, Any] = {"journal": tmp_path / "j.db", "max_cost_usd": 1.2 * bound_usd}
            async with rf.RewardAgent(judge, **options) as agent:
                agent.submit(pair("42", "41"))
                await until(lambda: mock.statistics().batches > 0)
            num_sent = mock.statistics().batches
            async with rf.RewardAgent(judge, **options) as agent:
                assert agent.statistics().ledger.uncertain_usd == pytest.approx(bound_usd, rel=0.1)
                with pytest.raises(rf.BudgetExhausted):
                    async with asyncio.timeout(10):
                        await agent.submit(later).all()
            assert mock.statistics().batches == num_sent

    asyncio.run(run())


def test_equal_requests_of_one_call_are_different_requests_also_after_an_interrupt(tmp_path: Path) -> None:
    async def run() -> None:
        async with MockJudge(MockJudgeSettings(batch_latency="constant:3600")) as mock:
            judge = judge_of(mock, sampling={"temperature": 1.0, "max_tokens": 512})
            jury = Jury(judges=[judge], samples=3)
            async with interrupted(mock, jury, tmp_path / "j.db", count=4):
                mock.end_batches()
            rewards, _ = await score(jury, count=4, journal=tmp_path / "j.db")
            assert mock.statistics().admitted_again == {0: 4, 1: 4, 2: 4}
        assert [len(one.extras["votes"]) for one in rewards] == [3] * 4

    asyncio.run(run())


def test_judges_that_wrap_a_judge_with_batches_send_batches_too() -> None:
    async def run() -> None:
        async with MockJudge() as mock:
            judge = judge_of(mock)
            for wrapped in (ListwiseJudge(judge=judge), Cascade(first=GSM8K(), then=judge, ask_below=1.0)):
                rewards, told = await score(wrapped, count=6)
                assert all(one.is_scored for one in rewards)
                assert told.accounts[0].governors.concurrency.limit == BatchSettings().max_requests
            assert mock.statistics().batches == 2

    asyncio.run(run())


def test_limits_that_the_user_gives_win_over_those_that_batches_usually_have() -> None:
    async def run() -> None:
        async with MockJudge() as mock:
            _, told = await score(judge_of(mock), max_concurrency=4)
            assert told.accounts[0].governors.concurrency.limit == 4
            assert mock.statistics().batches == 3

    asyncio.run(run())


def test_a_cancelled_call_is_not_sent_and_another_one_drives_the_batch() -> None:
    async def run() -> None:
        async with MockJudge() as mock:
            judge = judge_of(mock, linger_s=0.2)
            async with asyncio.TaskGroup() as tasks:
                first, *others = [tasks.create_task(judge.compute_score(one)) for one in numbered(3)]
                await asyncio.sleep(0.01)
                first.cancel()
            assert all(one.result().is_scored for one in others)
            assert mock.statistics().admitted_again == {0: 2}
            await judge.aclose()

    asyncio.run(run())


def test_a_service_that_is_down_for_a_while_delays_a_batch_and_loses_nothing() -> None:
    async def run() -> None:
        async with MockJudge(MockJudgeSettings(batch_latency="constant:3600")) as mock:
            async with rf.RewardAgent(judge_of(mock)) as agent:
                mock.go_down()
                ticket = agent.submit(numbered(12))
                await asyncio.sleep(0.05)
                mock.come_up()
                await until(lambda: mock.statistics().batches > 0)
                mock.go_down()
                await asyncio.sleep(0.02)
                mock.end_batches()
                mock.come_up()
                groups = await ticket.all()
            assert all(group.rewards[0].is_scored for group in groups)
            assert mock.statistics().admitted_again == {0: 12}

    asyncio.run(run())


def test_what_a_batch_cannot_do_is_refused_before_anything_is_sent() -> None:
    urls = ["http://127.0.0.1:1"]
    with pytest.raises(rf.InvalidInput, match="expected_score needs log-probs"):
        LLMJudge(model="m", base_urls=urls, expected_score=True, batch={"api": "anthropic"})
    with pytest.raises(rf.InvalidInput, match="structured must be auto or prompt"):
        LLMJudge(model="m", base_urls=urls, structured="schema", batch={"api": "anthropic"})
    with pytest.raises(rf.InvalidInput, match="no setting 'seed'"):
        LLMJudge(model="m", base_urls=urls, sampling={"max_tokens": 9, "seed": 1}, batch={"api": "anthropic"})
    with pytest.raises(rf.InvalidInput, match="there is no setting 'lingers'"):
        LLMJudge(model="m", base_urls=urls, batch={"lingers": 3})
    with pytest.raises(rf.InvalidInput, match="api must be one of openai, anthropic"):
        LLMJudge(model="m", base_urls=urls, batch={"api": "azure"})
    with pytest.raises(rf.InvalidInput, match="max_requests of a batch must be at most 50,000 with api=openai"):
        LLMJudge(model="m", base_urls=urls, batch={"max_requests": 50_001})
    with pytest.raises(rf.InvalidInput, match="max_bytes of a batch must be at most 256,000,000"):
        LLMJudge(model="m", base_urls=urls, batch={"api": "anthropic", "max_bytes": 256_000_001})
