"""Questions without a verdict: numbers that are used once, and everything again after a break."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rollouts import rollout

from rewardflow.shared_agent.waiting_rollouts import NO_TICKET, WaitingRollout, WaitingRollouts

steps = st.lists(st.sampled_from(["ask", "answer", "answer and keep", "break"]), max_size=40)


@given(steps)
def test_after_a_break_all_that_is_out_is_asked_by_its_number_and_witnesses_by_new_ones(steps: list[str]) -> None:
    waiting_rollouts, out, kept = WaitingRollouts(None), list[WaitingRollout](), list[WaitingRollout]()
    for number, step in enumerate([*steps, "break"]):
        match step:
            case "ask":
                out.append(waiting_rollouts.add(rollout(str(number)), NO_TICKET))
            case "answer" | "answer and keep" if out:
                first = out.pop(0)
                assert waiting_rollouts.take_out(first.serial) is first
                assert waiting_rollouts.take_out(first.serial) is None
                if step == "answer and keep":
                    waiting_rollouts.keep_for_group(first)
                    kept.append(first)
                assert waiting_rollouts.has_use(first.serial) == (step == "answer and keep")
            case "break":
                want, again = waiting_rollouts.to_send_again()
                assert want.serials == [question.serial for question in out]
                assert again[: len(out)] == out
                renewed = again[len(out) :]
                assert [one.serial for one in renewed] == [want.last + 1 + i for i in range(len(kept))]
                assert [one.rollout for one in renewed] == [one.rollout for one in kept]
                kept = renewed
        assert len(waiting_rollouts) == len(out)
        assert waiting_rollouts.all() == out


def test_of_witnesses_the_latest_are_kept() -> None:
    waiting_rollouts = WaitingRollouts(None)
    for number in range(8193):
        question = waiting_rollouts.add(rollout(str(number)), NO_TICKET)
        waiting_rollouts.take_out(question.serial)
        waiting_rollouts.keep_for_group(question)
    _, again = waiting_rollouts.to_send_again()
    assert len(again) == 8192
    assert [again[0].rollout.response, again[-1].rollout.response] == ["1", "8192"]
