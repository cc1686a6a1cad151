"""Records as JSON: what goes comes back, and what does not fit is refused by its place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rewardflow as rf
from rewardflow.errors import InvalidInput
from rewardflow.reward.agent import RewardAgent
from rewardflow.serve.http_json import from_plain, json_problem, read_json, to_json
from rewardflow.shared_agent.messages import Delivery, Halt, HostStatistics, Submit


@dataclass(frozen=True)
class Inner:
    kind: Literal["a", "b"]
    by_step: Mapping[int, float]


@dataclass(frozen=True)
class Outer:
    name: str
    pairs: list[tuple[int, tuple[Any, ...]]]
    inner: Inner | None = None
    number: float = 1.0


PLAIN = {"name": "x", "pairs": [[1, ["a", None]]], "inner": {"kind": "a", "by_step": {"3": 0.5}}}


def test_a_record_comes_back_with_its_types() -> None:
    made = from_plain(Outer, PLAIN)
    assert made == Outer("x", [(1, ("a", None))], Inner("a", {3: 0.5}))
    assert from_plain(Outer, orjson.loads(to_json(made))) == made


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"name": 3}, r"the body\.name must be str, got 3"),
        ({"number": "1"}, r"the body\.number must be float, got '1'"),
        ({"number": True}, r"the body\.number must be float, got True"),
        ({"pairs": [[1]]}, r"the body\.pairs must be a list of 2"),
        ({"pairs": {}}, r"the body\.pairs must be a list"),
        ({"inner": {"kind": "c", "by_step": {}}}, r"the body\.inner\.kind must be one of 'a', 'b', got 'c'"),
        ({"inner": {"kind": "a", "by_step": {"x": 1.0}}}, r"the names in the body\.inner\.by_step must be int"),
        ({"inner": {"kind": "a"}}, r"the body\.inner must have 'by_step'"),
        ({"more": 1}, r"the body takes name, pairs, inner, number, got 'more'"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_place(change: dict[str, Any], place: str) -> None:
    with pytest.raises(InvalidInput, match=place):
        from_plain(Outer, {**PLAIN, **change})


@given(
    st.recursive(
        st.none() | st.booleans() | st.text() | st.floats(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_no_json_breaks_a_record(value: Any) -> None:
    for kind in (Outer, Submit, Delivery):
        try:
            from_plain(kind, value)
        except InvalidInput:
            continue


def test_a_delivery_and_the_statistics_of_an_agent_survive_the_journey() -> None:
    delivery = Delivery(3, [(1, (0.5, None), 0.25)], Halt("BudgetExhausted", "over"), events=[("CallEnded", 1)])
    assert from_plain(Delivery, orjson.loads(to_json(delivery))) == delivery

    async def main() -> None:
        async with RewardAgent(lambda solution_str: 1.0, serves_runs=True) as agent:
            await agent.submit(rf.Rollout(group_id="g", response="x")).all()
            sent = HostStatistics(agent=agent.statistics(), clients=(), incarnation="1", up_s=1.0)
            assert from_plain(HostStatistics, orjson.loads(to_json(sent))) == sent

    rf.clock.run(main())


def test_an_odd_value_is_named_and_travels_as_a_text() -> None:
    assert json_problem({"a": {1, 2}}) is not None
    assert json_problem({"a": rf.types.EMPTY}) is None
    assert b"which cannot travel" in to_json({"a": object()})
    with pytest.raises(InvalidInput, match="must be JSON"):
        read_json(b"{")


@pytest.mark.parametrize("odd", [2**64, -(2**63) - 1, 1 << 20000, "a\ud800b", {"\ud800": 1}, [[2**70]]], ids=range(6))
def test_what_json_cannot_hold_becomes_a_text_wherever_it_is(odd: Any) -> None:
    written = orjson.loads(to_json({"fine": 1, "deep": [{"odd": odd}], "halt": Halt("E", "why")}))
    assert written["fine"] == 1
    assert written["halt"] == {"error": "E", "message": "why"}
    assert isinstance(written["deep"][0]["odd"], str | dict | list)


def test_what_is_nested_too_deep_is_cut_off() -> None:
    deep: Any = 1
    for _ in range(900):
        deep = [deep]
    assert b"which cannot travel" in to_json({"deep": deep})
