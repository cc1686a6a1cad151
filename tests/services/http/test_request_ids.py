"""Which responses hold the id of another request."""

from __future__ import annotations

import multiprocessing
import os

import pytest

from rewardflow.services.http.request_ids import RequestIds


def test_no_id_is_given_twice() -> None:
    ids = RequestIds()
    assert len({ids.new() for _ in range(1000)} | {RequestIds().new() for _ in range(10)}) == 1010


@pytest.mark.parametrize("form", ["{}", "chatcmpl-{}", '{{"id": "{}"}}'])
def test_a_response_with_the_id_of_another_request_is_recognised_wherever_the_id_is(form: str) -> None:
    ids = RequestIds()
    mine, other = ids.new(), ids.new()
    for request_id, is_other in ((mine, False), (other, True)):
        text = form.format(request_id)
        assert ids.names_another(mine, {"x-request-id": text}, b"{}") == is_other
        assert ids.names_another(mine, {}, text.encode()) == is_other


def test_ids_that_this_process_did_not_make_are_ignored() -> None:
    ids = RequestIds()
    mine = ids.new()
    for foreign in ("req_011CQ", RequestIds().new(), mine[:-1], "rf-1", ""):
        assert not ids.names_another(mine, {"x-request-id": foreign}, foreign.encode())


def test_a_forked_process_makes_other_ids() -> None:
    ids = RequestIds()
    read, write = os.pipe()
    child = multiprocessing.get_context("fork").Process(target=lambda: os.write(write, ids.new().encode()))
    child.start()
    child.join()
    assert os.read(read, 100).decode().rpartition("-")[2] != ids.new().rpartition("-")[2]
    os.close(read)
    os.close(write)
