"""What a row must bring for its loss, and which rows need a pass at all."""

from typing import Any

import pytest
import torch
from tiny_training import rollout, sample, tiny_model

from rewardflow.errors import InvalidInput
from rewardflow.settings.run_settings import AlgorithmSettings
from rewardflow.train.loss_terms import LossTerms
from rewardflow.train.packing import TokenRow, pack
from rewardflow.train.token_log_probs import token_log_probs

PLAIN = LossTerms(algorithm=AlgorithmSettings(), uses_old=False)
EVERYTHING = LossTerms(algorithm=AlgorithmSettings(loss="decoupled", kl_coef=0.1, entropy_coef=0.1), uses_old=True)
OF = rollout([1, 2], [3, 4], log_probs=[0.0, 0.0, -0.5, -0.75])
SAVED: dict[str, Any] = {"old": torch.tensor([-1.0, -2.0]), "reference": torch.tensor([-3.0, -4.0])}


def columns(terms: LossTerms, advantage: Any = 1.0, **log_probs: Any) -> dict[str, list[float]]:
    row = terms.training_row(sample(OF, advantage, **log_probs), TokenRow.of(OF))
    return {name: values.tolist() for name, values in row.columns.items()}


@pytest.mark.parametrize(
    ("advantage", "settings", "expected"),
    [
        (1.0, {}, True),
        (0.0, {}, False),
        (torch.zeros(2), {}, False),
        (torch.tensor([0.0, 0.1]), {}, True),
        (float("nan"), {}, True),
        (0.0, {"kl_coef": 0.1}, True),
        (0.0, {"entropy_coef": 0.1}, True),
    ],
)
def test_a_row_needs_a_pass_for_its_advantage_or_for_another_term(
    advantage: Any, settings: dict[str, float], expected: bool
) -> None:
    terms = LossTerms(algorithm=AlgorithmSettings(**settings), uses_old=False)  # type: ignore[arg-type]
    assert terms.has_gradient(sample(OF, advantage)) is expected


def test_a_row_carries_what_its_loss_needs_and_nothing_else() -> None:
    assert columns(PLAIN, **SAVED) == {"advantage": [1.0, 1.0]}
    assert set(columns(EVERYTHING, **SAVED)) == {"advantage", "old", "reference", "behaviour"}


def test_kl_in_the_reward_is_no_term_of_the_loss() -> None:
    terms = LossTerms(algorithm=AlgorithmSettings(reward_kl_coef=0.1), uses_old=True)
    assert set(columns(terms, **SAVED)) == {"advantage", "old"}
    assert not terms.has_gradient(sample(OF, 0.0))


@pytest.mark.parametrize(("estimator", "expected"), [("k1", 1.0), ("k2", 0.5), ("abs", 1.0), ("k3", 0.367879)])
def test_kl_in_the_loss_is_estimated_as_the_settings_say(estimator: Any, expected: float) -> None:
    terms = LossTerms(algorithm=AlgorithmSettings(kl_coef=0.1, kl_estimator=estimator), uses_old=False)
    row = TokenRow.of(OF)
    packed = pack([row], torch.device("cpu"))
    scores = token_log_probs(tiny_model(), packed, temperature=1.0)
    one_below = (scores.log_probs_N - 1).detach()
    training_row = terms.training_row(sample(OF, 1.0, reference=one_below), row)
    numerator = terms.numerator([training_row], packed, scores)
    assert numerator.sums.weighted["kl"].item() == pytest.approx(2 * expected, rel=1e-4)


def test_the_engines_log_probs_stand_for_the_behaviour_unless_the_trainer_took_them() -> None:
    assert columns(EVERYTHING, **SAVED)["behaviour"] == [-0.5, -0.75]
    assert columns(EVERYTHING, **SAVED, behaviour=torch.tensor([-9.0, -8.0]))["behaviour"] == [-9.0, -8.0]


@pytest.mark.parametrize(
    ("missing", "settings", "cause"),
    [
        ("old", {}, "several updates a step"),
        ("reference", {"kl_coef": 0.1}, "kl_coef=0.1"),
        ("behaviour", {"loss": "decoupled", "behaviour": "trainer"}, "loss=decoupled and behaviour=trainer"),
        ("behaviour", {"reject": "token", "behaviour": "trainer"}, "reject=token and behaviour=trainer"),
        ("behaviour", {"behaviour_weights": "sequence", "behaviour": "trainer"}, "behaviour_weights=sequence and"),
    ],
)
def test_log_probs_that_are_missing_are_named_with_what_needs_them(
    missing: str, settings: dict[str, Any], cause: str
) -> None:
    given = {**SAVED, "behaviour": torch.zeros(2), missing: None}
    terms = LossTerms(algorithm=AlgorithmSettings(**settings), uses_old=True)
    with pytest.raises(InvalidInput, match=f"{cause}.* needs its {missing} log-probs, got none for rollout 0"):
        columns(terms, **given)


def test_a_column_of_another_length_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"advantage must have one entry .* got shape \(3,\) for 2 tokens"):
        columns(PLAIN, advantage=torch.ones(3))
    of = rollout([1, 2], [3, 4], log_probs=[-0.5, -0.75])
    with pytest.raises(InvalidInput, match="as long as its token_ids, got 2 and 4"):
        EVERYTHING.training_row(sample(of, 1.0, **SAVED), TokenRow.of(of))


def test_an_idle_row_reaches_every_weight_with_a_gradient_of_0() -> None:
    model = tiny_model()
    row = EVERYTHING.idle_row()
    packed = pack([row.row], torch.device("cpu"))
    scores = token_log_probs(model, packed, temperature=1.0, entropy="trained")
    numerator = EVERYTHING.numerator([row], packed, scores)
    numerator.value.backward()
    assert all(weight.grad is not None and not weight.grad.any() for weight in model.parameters())
    sums = {**numerator.sums.weighted, **numerator.sums.counted}
    assert {name for name, value in sums.items() if value != 0} == set()
