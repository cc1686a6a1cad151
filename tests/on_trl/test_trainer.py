"""`rewardflow.adapters.trl.GRPOTrainer` in TRL's own loop, on CPU: what overlaps, what trains, and what is saved."""

from __future__ import annotations

import asyncio
import copy
import shutil
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
import trl

import rewardflow as rf
from rewardflow.adapters.trl import GRPOTrainer
from rewardflow.adapters.trl.failed_rows import ROW_SCALE

GROUP_SIZE = 4
PER_STEP = 16  # completions


async def judge(response: str, ground_truth: str) -> float:
    return sum(given == wanted for given, wanted in zip(response, ground_truth, strict=False)) + 0.01 * len(response)


class Heard:
    """A judge that notes the prompts of each step."""

    def __init__(self) -> None:
        self.prompts: dict[int, list[str]] = defaultdict(list)

    async def compute_score(self, rollout: rf.Rollout) -> float:
        self.prompts[rollout.step].append(rollout.prompt)
        return await judge(rollout.response, rollout.ground_truth)


class AtStepEnd(transformers.TrainerCallback):  # type: ignore[misc]
    def __init__(self, action: Any) -> None:
        self.action = action

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.action(state.global_step, control)


def weights(trainer: Any) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in trainer.model.state_dict().items()}


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert all(torch.equal(value, other[name]) for name, value in one.items())


# -- overlap -----------------------------------------------------------------------------------------------------------


def test_a_step_trains_while_the_next_ones_verdicts_are_out(make: Any, logged: Any) -> None:
    """The judge answers about a step only when the step before has been trained; a trainer that waits would hang."""
    trained = [threading.Event() for _ in range(4)]

    async def late(rollout: rf.Rollout) -> float:
        if rollout.step:
            await asyncio.to_thread(trained[rollout.step - 1].wait)
        return await judge(rollout.response, rollout.ground_truth)

    agent = rf.RewardAgent(late, max_concurrency=2 * PER_STEP)
    reward = agent.as_batch_function()
    trainer = make(GRPOTrainer, reward, steps=4, callbacks=[AtStepEnd(lambda step, _: trained[step - 1].set())])
    trainer.train()
    assert agent.statistics().verdicts.submitted == 4 * PER_STEP  # and nothing that would not be trained on
    reward.close()
    assert logged(trainer, "rewardflow/staleness") == [0.0, 1.0, 1.0, 1.0]
    assert logged(trainer, "rewardflow/failed_share") == [0.0] * 4
    assert len(logged(trainer, "rewardflow/exposed_s")) == len(logged(trainer, "rewardflow/cost_usd")) == 4


LOOPS = {
    "an update a generation": {"steps": 7},
    "accumulated gradients": {"steps": 3, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 2},
    "two updates a generation": {"steps": 6, "per_device_train_batch_size": 8, "steps_per_generation": 2},
    "two passes over a generation": {"steps": 6, "num_iterations": 2},
    "two generations an update": {"steps": 3, "gradient_accumulation_steps": 2, "steps_per_generation": 1},
    "data without a length": {"steps": 5, "is_stream": True, "shuffle_dataset": False},
}


@pytest.mark.parametrize("settings", LOOPS.values(), ids=LOOPS)
def test_every_step_has_the_prompts_that_it_has_in_trl(make: Any, logged: Any, settings: dict[str, Any]) -> None:
    """Over the ends of epochs: 12 prompts are three generations."""
    heard = []
    for kind in (trl.GRPOTrainer, GRPOTrainer):
        one = Heard()
        reward = rf.RewardAgent(one).as_batch_function(group_size=GROUP_SIZE)
        trainer = make(kind, reward, prompts=12, **settings)
        trainer.train()
        reward.close()
        heard.append({step: sorted(prompts) for step, prompts in one.prompts.items()})
    assert heard[0] == heard[1]
    assert max(logged(trainer, "rewardflow/staleness")) == 1.0


def test_the_first_update_is_trls(make: Any) -> None:
    results = []
    for kind in (trl.GRPOTrainer, GRPOTrainer):
        reward = rf.RewardAgent(judge).as_batch_function(group_size=GROUP_SIZE)
        trainer = make(kind, reward, steps=1)
        trainer.train()
        reward.close()
        results.append(weights(trainer))
    for name, value in results[0].items():
        torch.testing.assert_close(value, results[1][name], rtol=1e-5, atol=1e-6)


class Watched(GRPOTrainer):
    """Keeps what the loss was computed from."""

    def _compute_loss(self, model: Any, inputs: Any) -> Any:
        loss = super()._compute_loss(model, inputs)
        self.losses = [*getattr(self, "losses", []), (dict(inputs), loss.detach())]
        return loss


def test_old_log_probs_are_those_of_the_weights_that_generated(make: Any, model: str) -> None:
    """TRL leaves them out with one update a generation, and then takes the current ones."""
    reward = rf.RewardAgent(judge).as_batch_function()
    trainer = make(Watched, reward, steps=2)
    trainer.train()
    reward.close()
    batch = trainer.losses[1][0]  # the second generation, which the first weights made
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    attention = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
    first = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    with torch.no_grad():
        logits = first(input_ids=ids, attention_mask=attention).logits[:, :-1].log_softmax(-1)
    expected = logits.gather(-1, ids[:, 1:, None]).squeeze(-1)[:, -batch["completion_ids"].size(1) :]
    mask = batch["completion_mask"].bool()
    torch.testing.assert_close(batch["old_per_token_logps"][mask], expected[mask], rtol=1e-4, atol=1e-4)


def log_probs_by_hand(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    attention = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
    logits = model(input_ids=ids, attention_mask=attention).logits[:, :-1].log_softmax(-1)
    return logits.gather(-1, ids[:, 1:, None]).squeeze(-1)[:, -batch["completion_ids"].size(1) :]


def advantages_by_hand(tokenizer: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Judges what the batch holds; the prompts of a generation differ, so they tell its groups apart."""
    prompts = tokenizer.batch_decode(batch["prompt_ids"], skip_special_tokens=True)
    responses = tokenizer.batch_decode(batch["completion_ids"], skip_special_tokens=True)
    scores = [
        asyncio.run(judge(response, prompt.removesuffix("=")))
        for prompt, response in zip(prompts, responses, strict=True)
    ]
    groups = {
        one: torch.tensor([score for prompt, score in zip(prompts, scores, strict=True) if prompt == one])
        for one in prompts
    }
    assert all(len(group) == GROUP_SIZE for group in groups.values())
    return torch.tensor(
        [
            (score - groups[prompt].mean()) / (groups[prompt].std() + 1e-4)
            for prompt, score in zip(prompts, scores, strict=True)
        ]
    )


def test_training_is_that_of_a_loop_by_hand_one_generation_behind(make: Any, model: str) -> None:
    """Generation k is that of weights k - 1, with their log-probs and its own verdicts, and updates weights k."""
    reward = rf.RewardAgent(judge).as_batch_function()
    trainer = make(Watched, reward, steps=5, lr_scheduler_type="constant")
    trainer.train()
    reward.close()
    policy = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-2, weight_decay=0.0)
    generating = [copy.deepcopy(policy)]  # the weights before each update
    num_clipped = 0
    for step, (batch, loss) in enumerate(trainer.losses):
        mask = batch["completion_mask"].bool()
        with torch.no_grad():
            old = log_probs_by_hand(generating[max(0, step - 1)], batch)
        torch.testing.assert_close(batch["old_per_token_logps"][mask], old[mask], rtol=1e-3, atol=1e-4)
        advantages = advantages_by_hand(trainer.processing_class, batch)
        torch.testing.assert_close(batch["advantages"], advantages, rtol=1e-4, atol=1e-4)
        ratio = (log_probs_by_hand(policy, batch) - old).exp()
        num_clipped += int((mask & ((ratio < 0.8) | (ratio > 1.2))).sum())
        gains = torch.min(ratio * advantages[:, None], ratio.clamp(0.8, 1.2) * advantages[:, None])
        by_hand = -gains[mask].sum() / mask.sum()
        torch.testing.assert_close(loss, by_hand.detach(), rtol=1e-3, atol=1e-4)
        optimizer.zero_grad()
        by_hand.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        generating.append(copy.deepcopy(policy))
    assert num_clipped > 0  # else nothing was learnt about ratios
    for name, value in policy.state_dict().items():
        torch.testing.assert_close(weights(trainer)[name], value, rtol=1e-2, atol=1e-3)


# -- failures ----------------------------------------------------------------------------------------------------------


async def fails_at_the_end(rollout: rf.Rollout) -> float:
    if rollout.index == 3 or (rollout.position == 1 and rollout.index):  # the second group has one verdict
        raise rf.ServiceError("no such key", retryable=False)
    return await judge(rollout.response, rollout.ground_truth) + rollout.index


@pytest.mark.parametrize("beta", [0.0, 0.1])
@pytest.mark.parametrize("loss_type", ["dapo", "grpo", "dr_grpo", "bnpo"])
def test_the_loss_is_that_of_the_same_batch_without_the_failed_completions(
    make: Any, loss_type: str, beta: float
) -> None:
    reward = rf.RewardAgent(fails_at_the_end).as_batch_function()
    trainer = make(Watched, reward, steps=1, loss_type=loss_type, beta=beta)
    trainer.train()
    reward.close()
    batch, loss = trainer.losses[0]
    kept = batch["completion_mask"].sum(dim=1) > 0
    assert int(kept.sum()) == 9  # three groups of three verdicts; the group of one is left out
    scale = batch.get(ROW_SCALE, torch.tensor(1.0))
    rest = {name: value[kept] if value.ndim else value for name, value in batch.items() if name != ROW_SCALE}
    rest["advantages"] = rest["advantages"] / scale
    rest["num_items_in_batch"] = rest["completion_mask"].sum()
    trainer.model.load_state_dict(
        transformers.AutoModelForCausalLM.from_pretrained(trainer.model.name_or_path, dtype=torch.float32).state_dict()
    )
    trainer.model.train()
    alone = trl.GRPOTrainer._compute_loss(trainer, trainer.model, rest).detach()
    torch.testing.assert_close(loss, alone, rtol=1e-4, atol=1e-6)
    assert batch["advantages"][~kept].abs().max() == 0
    assert batch["advantages"][kept].abs().max() > 0


def test_a_failure_is_no_zero_in_a_sum_with_another_reward(make: Any, logged: Any) -> None:
    async def fails(rollout: rf.Rollout) -> float:
        if rollout.index % 2:
            raise rf.ServiceError("no such key", retryable=False)
        return 7.0

    def length(completions: list[str], **_: Any) -> list[float]:
        return [1.0] * len(completions)

    agent = rf.RewardAgent(fails)
    trainer = make(GRPOTrainer, [agent, length], steps=1, log_completions=False)
    trainer.train()
    assert logged(trainer, "reward") == [8.0]
    assert logged(trainer, "rewards/length/mean") == [1.0]
    assert logged(trainer, "rewardflow/failed_share") == [0.5]


# -- evaluation --------------------------------------------------------------------------------------------------------


def test_an_evaluation_waits_for_its_own_verdicts_and_leaves_the_generation_in_flight(make: Any, logged: Any) -> None:
    sizes: dict[str, set[int]] = defaultdict(set)

    async def noted(rollout: rf.Rollout) -> float:
        sizes[rollout.prompt].add(rollout.group_size)
        return await judge(rollout.response, rollout.ground_truth)

    agent = rf.RewardAgent(noted)
    reward = agent.as_batch_function()
    settings = {"eval_strategy": "steps", "eval_steps": 1, "num_generations_eval": 2, "eval_on_start": True}
    trainer = make(GRPOTrainer, reward, steps=3, held_out=8, **settings)
    trainer.train()
    submitted = agent.statistics().verdicts.submitted
    reward.close()
    assert submitted == 3 * PER_STEP + 4 * 16  # four evaluations of eight prompts, two completions each
    assert sizes["000="] == {GROUP_SIZE}
    assert sizes["016="] == {2}
    assert logged(trainer, "rewardflow/staleness") == [0.0, 1.0, 1.0]
    assert len(logged(trainer, "eval_rewardflow/exposed_s")) == 4


# -- checkpoints -------------------------------------------------------------------------------------------------------

asked: list[tuple[int, str]] = []  # not in a closure, whose values would belong to the reward's identity


async def counted(rollout: rf.Rollout) -> float:
    asked.append((rollout.step, rollout.prompt))
    return await judge(rollout.response, rollout.ground_truth)


@pytest.mark.parametrize(
    ("settings", "at"),
    [({}, 2), (LOOPS["two updates a generation"] | {"steps": 5}, 3)],
    ids=["between generations", "within a generation"],
)
def test_a_resumed_run_goes_on_as_if_it_had_not_been_stopped(
    make: Any, tmp_path: Path, settings: dict[str, Any], at: int
) -> None:
    settings = {"steps": 5, **settings, "save_strategy": "steps", "save_steps": at, "lr_scheduler_type": "constant"}
    journal = tmp_path / "run.db"
    agent = rf.RewardAgent(counted, journal=journal)
    reward = agent.as_batch_function()
    whole = make(GRPOTrainer, reward, **settings)
    whole.train()
    reward.close()
    asked.clear()
    reward = rf.RewardAgent(counted, journal=journal).as_batch_function()
    resumed = make(GRPOTrainer, reward, **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "out" / f"checkpoint-{at}"))
    reward.close()
    assert_same(weights(whole), weights(resumed))
    assert asked == []  # every verdict was in the journal, also those of the generation in flight


def test_a_checkpoint_without_a_saved_generation_resumes_and_generates_anew(make: Any, tmp_path: Path) -> None:
    settings = {"steps": 3, "save_strategy": "steps", "save_steps": 1}
    reward = rf.RewardAgent(judge).as_batch_function(group_size=GROUP_SIZE)
    make(trl.GRPOTrainer, reward, **settings).train()
    trainer = make(GRPOTrainer, reward, **settings)
    trainer.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-1"))
    reward.close()
    assert trainer.state.global_step == 3


def test_a_saved_generation_of_other_prompts_is_not_trained_on(
    make: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"steps": 3, "save_strategy": "steps", "save_steps": 1}
    reward = rf.RewardAgent(judge).as_batch_function()
    make(GRPOTrainer, reward, **settings).train()
    shutil.copytree(tmp_path / "out" / "checkpoint-1", tmp_path / "moved")
    heard = Heard()
    again = rf.RewardAgent(heard).as_batch_function()
    make(GRPOTrainer, again, prompts=12, **settings).train(resume_from_checkpoint=str(tmp_path / "moved"))
    reward.close()
    again.close()
    assert "other prompts" in caplog.text
    assert {step: len(prompts) for step, prompts in heard.prompts.items()} == {1: PER_STEP, 2: PER_STEP}


# -- the end -----------------------------------------------------------------------------------------------------------


async def hangs_after_the_first_step(rollout: rf.Rollout) -> float:
    if rollout.step:
        await asyncio.Event().wait()
    return await judge(rollout.response, rollout.ground_truth)


def interrupted(step: int, control: Any) -> None:
    raise KeyboardInterrupt


def stopped(step: int, control: Any) -> None:
    control.should_training_stop = True


@pytest.mark.parametrize("action", [interrupted, stopped])
def test_when_training_ends_early_nothing_is_waited_for_and_no_call_goes_on(make: Any, action: Any) -> None:
    agent = rf.RewardAgent(hangs_after_the_first_step, timeout_s=None)
    reward = agent.as_batch_function()
    trainer = make(GRPOTrainer, reward, steps=4, callbacks=[AtStepEnd(action)])
    if action is interrupted:
        with pytest.raises(KeyboardInterrupt):
            trainer.train()
    else:
        trainer.train()
    verdicts = agent.statistics().verdicts
    assert (verdicts.scored, verdicts.failed, verdicts.pending_groups) == (PER_STEP, {"cancelled": PER_STEP}, 0)
    # The verdicts are there at once; the calls themselves end on the agent's own thread, a moment later.
    deadline = time.monotonic() + 60.0
    while agent.statistics().in_flight and time.monotonic() < deadline:
        time.sleep(0.01)
    assert agent.statistics().in_flight == 0
    reward.close()


def test_a_spent_budget_ends_training_with_its_own_error(make: Any) -> None:
    async def paid(response: str) -> float:
        rf.report_usage(cost_usd=0.1)
        return float(len(response))

    agent = rf.RewardAgent(paid, max_cost_usd=0.1 * PER_STEP * 2, call_cost_usd=0.1)
    reward = agent.as_batch_function()
    trainer = make(GRPOTrainer, reward, steps=4)
    with pytest.raises(rf.BudgetExhausted):
        trainer.train()
    assert trainer.state.global_step in (1, 2)
    reward.close()


def test_a_second_training_of_the_same_trainer_works(make: Any) -> None:
    agent = rf.RewardAgent(judge)
    reward = agent.as_batch_function()
    trainer = make(GRPOTrainer, reward, steps=2)
    trainer.train()
    trainer.train()
    assert agent.statistics().verdicts.submitted == 4 * PER_STEP
    reward.close()


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_environments_are_refused_before_anything_is_loaded() -> None:
    with pytest.raises(rf.InvalidInput, match="environment_factory must be left out"):
        GRPOTrainer("no such model", rf.RewardAgent(judge), environment_factory=object)


def test_without_a_reward_of_the_agent_there_is_nothing_to_overlap(make: Any) -> None:
    with pytest.raises(rf.InvalidInput, match="RewardAgent or its as_batch_function"):
        make(GRPOTrainer, [lambda completions, **_: [0.0] * len(completions)])
