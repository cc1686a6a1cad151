"""Who asks: tokens that are known, unknown, short, shared, or in an address."""

from __future__ import annotations

import base64

import pytest

from rewardflow.errors import InvalidInput
from rewardflow.serve.settings import Forbidden, Jobs, ServeSettings, Unauthorized

ENVIRON = {"A": "a" * 16, "B": "b" * 16, "SHORT": "abc"}


def jobs_of(**section: object) -> Jobs:
    return Jobs(ServeSettings.of(section), ENVIRON)


def test_without_tokens_a_request_names_its_run() -> None:
    jobs = jobs_of()
    assert not jobs.needs_token
    assert [jobs.of(None, None).run, jobs.of(None, "mine").run] == ["default", "mine"]
    with pytest.raises(InvalidInput, match="run must be a name of 1 to 200"):
        jobs.of(None, "x" * 201)
    with pytest.raises(InvalidInput, match="run must be text in UTF-8"):
        jobs.of(None, b"\xff".decode("utf-8", "surrogateescape"))  # as the server reads such a header


def test_a_token_stands_for_its_job_as_bearer_and_as_password() -> None:
    jobs = jobs_of(jobs={"a": {"token_env": "A", "share": 2}})
    basic = base64.b64encode(b"anybody:" + b"a" * 16).decode()
    for authorization in (f"Bearer {'a' * 16}", f"bearer  {'a' * 16}", f"Basic {basic}"):
        job = jobs.of(authorization, None)
        assert (job.run, job.share, job.sees_all) == ("a", 2, False)
    with pytest.raises(Forbidden):
        jobs.of(f"Bearer {'a' * 16}", "b")


@pytest.mark.parametrize(
    "authorization", [None, "", "Bearer", "Bearer x", "Basic ???", "Basic YWJj", "Digest x", "Bearer \udcff"]
)
def test_any_other_token_is_refused(authorization: str | None) -> None:
    with pytest.raises(Unauthorized):
        jobs_of(jobs={"a": {"token_env": "A"}}).of(authorization, None)


def test_the_servers_own_token_may_ask_for_any_run_with_the_runs_own_share() -> None:
    jobs = jobs_of(token_env="B", jobs={"a": {"token_env": "A", "share": 2, "max_waiting": 7}})
    job = jobs.of(f"Bearer {'b' * 16}", "a")
    assert (job.run, job.share, job.sees_all) == ("a", 2, True)
    assert jobs.of(f"Bearer {'b' * 16}", "other").share is None
    assert jobs.max_waiting_of("a") == 7
    assert jobs.max_waiting_of("other") == ServeSettings().max_waiting


def test_a_token_must_be_set_long_and_unique() -> None:
    for name in ("MISSING", "SHORT"):
        with pytest.raises(InvalidInput, match=f"{name} must hold a token of at least 16 characters"):
            jobs_of(token_env=name)
    with pytest.raises(InvalidInput, match="a token of its own"):
        jobs_of(jobs={"a": {"token_env": "A"}, "b": {"token_env": "A"}})
