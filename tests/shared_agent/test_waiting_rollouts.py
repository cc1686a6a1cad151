"""Questions without a verdict: numbers that are used once, and everything again after a break."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rollouts import rollout

from rewardflow.shared_agent.waiting_rollouts import NO_TICKET, Question, Unanswered

steps = st.lists(st.sampled_from(["ask", "answer", "answer and keep", "break"]), max_size=40)


@given(steps)
def test_after_a_break_all_that_is_out_is_asked_by_its_number_and_witnesses_by_new_ones(steps: list[str]) -> None:
    unanswered, out, witnesses = Unanswered(None), list[Question](), list[Question]()
    for number, step in enumerate([*steps, "break"]):
        match step:
            case "ask":
                out.append(unanswered.ask(rollout(str(number)), NO_TICKET))
            case "answer" | "answer and keep" if out:
                first = out.pop(0)
                assert unanswered.take_out(first.serial) is first
                assert unanswered.take_out(first.serial) is None
                if step == "answer and keep":
                    unanswered.keep_as_witness(first)
                    witnesses.append(first)
                assert unanswered.has_use(first) == (step == "answer and keep")
            case "break":
                want, again = unanswered.asked_again()
                assert want.serials == [question.serial for question in out]
                assert again[: len(out)] == out
                renewed = again[len(out) :]
                assert [one.serial for one in renewed] == [want.last + 1 + i for i in range(len(witnesses))]
                assert [one.rollout for one in renewed] == [one.rollout for one in witnesses]
                witnesses = renewed
        assert len(unanswered) == len(out)
        assert unanswered.all() == out


def test_of_witnesses_the_latest_are_kept() -> None:
    unanswered = Unanswered(None)
    for number in range(8193):
        question = unanswered.ask(rollout(str(number)), NO_TICKET)
        unanswered.take_out(question.serial)
        unanswered.keep_as_witness(question)
    _, again = unanswered.asked_again()
    assert len(again) == 8192
    assert [again[0].rollout.response, again[-1].rollout.response] == ["1", "8192"]
