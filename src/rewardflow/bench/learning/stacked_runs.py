"""Trains the copying run with many seeds at once, without judge, agent or event loop.

Always true: each seed learns what the run with its settings and that seed learns: the same initial weights, prompts and
random numbers, and the same losses, corrections, learning rates and staleness. Only rounding differs, because sums are
taken in another order (tests/bench/learning/test_stacked_runs.py compares both). What this module cannot train, it
refuses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import torch
from torch import Tensor

from rewardflow.algo import aggregation
from rewardflow.algo.diagnostics import off_policy_sums
from rewardflow.algo.estimators.grpo import divisors
from rewardflow.algo.losses import policy_loss
from rewardflow.algo.score_statistics import mean
from rewardflow.bench.learning.engine_dtype import EngineDtype
from rewardflow.bench.learning.stacked_adamw import StackedAdamW
from rewardflow.bench.learning.stacked_policies import StackedPolicies
from rewardflow.data.generated_tasks import GeneratedTask
from rewardflow.errors import InvalidInput
from rewardflow.flow.reports import combined_metrics
from rewardflow.generate.hf.sampling import draw, random_streams, uniforms
from rewardflow.generate.samplings import training_sampling
from rewardflow.mock_judge.marking import share_right
from rewardflow.policy.tiny import build_tokenizer
from rewardflow.policy.torch_threads import torch_threads
from rewardflow.settings.run_settings import AlgorithmSettings, RunSettings
from rewardflow.train.learning_rate import share


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFigures:
    """A step of one seed: the mean score of its responses, the share of completely right ones, and what the metrics of
    the same names tell of its updates.
    """

    score: float
    exact: float
    entropy: float = 0.0
    behaviour_kl_k3: float = 0.0
    effective_share: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """The responses of one step, of every seed. `log_probs` are the engine's."""

    prompts_SGP: Tensor
    tokens_SGRT: Tensor
    log_probs_SGRT: Tensor
    sampled_SGRT: Tensor
    trained_SGR: Tensor  # responses to train on
    advantages_SGR: Tensor
    scores: Sequence[StepFigures]


def train_together(
    settings: RunSettings, seeds: Sequence[int], *, engine: EngineDtype = "float32"
) -> list[list[StepFigures]]:
    """Returns the steps of each seed. `settings.seed` is not used.

    `engine` imitates an engine that computes differently: it generates with weights rounded to this dtype, and its
    log-probs are those of the rounded weights.
    """
    _check(settings)
    with torch_threads(settings.trainer.threads):
        return _trained(_StackedRuns(settings, seeds, engine), settings, len(seeds))


def _trained(runs: _StackedRuns, settings: RunSettings, num_seeds: int) -> list[list[StepFigures]]:
    num_steps, staleness = settings.steps, settings.schedule.max_staleness
    waiting = [runs.generate(step) for step in range(min(staleness + 1, num_steps))]
    found: list[list[StepFigures]] = [[] for _ in range(num_seeds)]
    for step in range(num_steps):
        batch = waiting.pop(0)
        figures = runs.train(step, batch)
        if step + 1 + staleness < num_steps:
            waiting.append(runs.generate(step + 1 + staleness))
        for of_seed, one in zip(found, figures, strict=True):
            of_seed.append(one)
    return found


def _check(settings: RunSettings) -> None:
    algorithm, schedule = settings.algorithm, settings.schedule
    usual = AlgorithmSettings()
    unsupported = [
        f"algorithm.{name}={getattr(algorithm, name)}"
        for name in ("advantage", "discount", "component_weights", "reward_kl_coef", "kl_coef", "behaviour")
        if getattr(algorithm, name) != getattr(usual, name)
    ]
    unsupported += [] if settings.policy.model == "tiny" else [f"policy.model={settings.policy.model}"]
    unsupported += [] if schedule.order == "fixed" else [f"schedule.order={schedule.order}"]
    unsupported += [] if schedule.epochs == 1 else [f"schedule.epochs={schedule.epochs}"]
    if unsupported or settings.data.task is None:
        raise InvalidInput(f"seeds train together on generated tasks with grpo alone, got {', '.join(unsupported)}")


class _StackedRuns:
    """The policies, their optimizer and their prompts."""

    def __init__(self, settings: RunSettings, seeds: Sequence[int], engine: EngineDtype) -> None:
        self._settings = settings
        self._seeds = seeds
        self._engine = engine
        self._policies = StackedPolicies.built(settings.policy, seeds)
        self._optimizer = StackedAdamW(list(self._policies.weights.values()), settings.trainer)
        data = settings.data
        assert data.task is not None
        self._tasks = [GeneratedTask(task=data.task, num_digits=data.num_digits, seed=seed) for seed in seeds]
        tokenizer = build_tokenizer()
        special = set(tokenizer.all_special_ids)
        words = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
        self._characters = ["" if number in special else word for number, word in enumerate(words)]
        self._numbers = {word: number for number, word in enumerate(words)}
        self._end = tokenizer.eos_token_id

    # -- generation --

    @torch.no_grad()
    def generate(self, step: int) -> _Batch:
        settings = self._settings
        num_groups = settings.schedule.groups_per_step
        numbers = range(step * num_groups, (step + 1) * num_groups)
        prompts = [[task[number] for number in numbers] for task in self._tasks]
        ids = [[[self._numbers[letter] for letter in prompt.text] for prompt in of_seed] for of_seed in prompts]
        prompts_SGP = torch.tensor(ids)
        tokens_SGRT, log_probs_SGRT = self._sampled(prompts_SGP, numbers)
        is_end = tokens_SGRT == self._end
        sampled_SGRT = is_end.long().cumsum(-1) - is_end.long() == 0  # up to the end token, which is sampled, too
        references = [[str(prompt.ground_truth) for prompt in of_seed] for of_seed in prompts]
        scores, steps = self._scored(tokens_SGRT, sampled_SGRT, references)
        is_whole_SGR = (is_end & sampled_SGRT).any(-1)
        trained_SGR = is_whole_SGR if settings.algorithm.mask_truncated else torch.ones_like(is_whole_SGR)
        return _Batch(
            prompts_SGP=prompts_SGP,
            tokens_SGRT=tokens_SGRT,
            log_probs_SGRT=log_probs_SGRT,
            sampled_SGRT=sampled_SGRT,
            trained_SGR=trained_SGR,
            advantages_SGR=self._advantages(scores),
            scores=steps,
        )

    def _sampled(self, prompts_SGP: Tensor, numbers: range) -> tuple[Tensor, Tensor]:
        """Draws token by token, with the random numbers that `generate.hf` would draw."""
        sampling, size = training_sampling(self._settings), self._settings.generation.group_size
        group_numbers = [number for number in numbers for _ in range(size)]
        indices = [index for _ in numbers for index in range(size)]
        streams = torch.cat([random_streams(seed, group_numbers, indices) for seed in self._seeds])
        rounded = self._policies.changed(lambda weight: weight.to(getattr(torch, self._engine)).float())
        logits_SGV, prompt = rounded.read(prompts_SGP)
        logits = logits_SGV[:, :, None].expand(-1, -1, size, -1)
        past, tokens, log_probs = None, [], []
        for position in range(sampling.max_response_tokens):
            drawn = draw(
                logits.reshape(len(streams), -1), uniforms(streams, torch.full_like(streams, position)), sampling
            )
            tokens.append(drawn.tokens.view(*logits.shape[:-1], 1))
            log_probs.append(drawn.log_probs.view(*logits.shape[:-1], 1))
            if position + 1 < sampling.max_response_tokens:
                continued, past = rounded.continued(tokens[-1], prompt, past)
                logits = continued[:, :, :, 0]
        return torch.cat(tokens, dim=-1), torch.cat(log_probs, dim=-1)

    def _scored(
        self, tokens_SGRT: Tensor, sampled_SGRT: Tensor, references: Sequence[Sequence[str]]
    ) -> tuple[list[list[list[float]]], list[StepFigures]]:
        """Returns the scores by seed, group and response, and the means of each seed."""
        every, means = [], []
        columns = zip(tokens_SGRT.tolist(), sampled_SGRT.sum(-1).tolist(), references, strict=True)
        for tokens, lengths, of_seed in columns:
            answers = [
                ["".join(self._characters[token] for token in row[:length]) for row, length in zip(*group, strict=True)]
                for group in zip(tokens, lengths, strict=True)
            ]
            marked = [[share_right(one, truth) for one in group] for group, truth in zip(answers, of_seed, strict=True)]
            right = [one == truth for group, truth in zip(answers, of_seed, strict=True) for one in group]
            every.append(marked)
            means.append(StepFigures(score=fmean(score for group in marked for score in group), exact=fmean(right)))
        return every, means

    def _advantages(self, scores: Sequence[Sequence[Sequence[float]]]) -> Tensor:
        scale = self._settings.algorithm.scale
        return torch.tensor(
            [
                [
                    [(score - mean(group)) / divisor for score in group]
                    for group, divisor in zip(of_seed, divisors(scale, of_seed), strict=True)
                ]
                for of_seed in scores
            ]
        )

    # -- training --

    def train(self, step: int, batch: _Batch) -> list[StepFigures]:
        settings = self._settings
        measured: list[list[Mapping[str, float]]] = []  # by mini-batch and seed
        lr = settings.trainer.lr * share(step, settings.steps, settings.trainer)
        with torch.no_grad():
            old_SGRT, _ = self._log_probs(batch.prompts_SGP, batch.tokens_SGRT)
        size = settings.schedule.groups_per_step // settings.schedule.mini_batches
        for start in range(0, settings.schedule.groups_per_step, size):
            groups = slice(start, start + size)
            log_probs, entropy = self._log_probs(batch.prompts_SGP[:, groups], batch.tokens_SGRT[:, groups])
            measured.append(_measures(log_probs.detach(), entropy.detach(), batch, groups))
            numerators_S, denominators_S = self._loss(batch, groups, old_SGRT, log_probs, entropy)
            self._optimizer.step(numerators_S, denominators_S, lr)
        of_seeds = [combined_metrics(parts) for parts in zip(*measured, strict=True)]
        return [replace(scores, **metrics) for scores, metrics in zip(batch.scores, of_seeds, strict=True)]

    def _loss(
        self, batch: _Batch, groups: slice, old_SGRT: Tensor, log_probs: Tensor, entropy: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Returns numerator and denominator of each seed's mini-batch; it trains on nothing if the latter is 0."""
        sampled = batch.sampled_SGRT[:, groups]
        trained = batch.trained_SGR[:, groups]
        mask_BT = aggregation.trained_mask(sampled.flatten(0, 2), trained.flatten())
        algorithm = self._settings.algorithm
        loss_BT = policy_loss(
            algorithm,
            log_probs_BT=log_probs.flatten(0, 2),
            old_BT=old_SGRT[:, groups].flatten(0, 2),
            behaviour_BT=batch.log_probs_SGRT[:, groups].flatten(0, 2),
            advantages_BT=batch.advantages_SGR[:, groups].reshape(-1, 1).expand_as(mask_BT),
            mask_BT=mask_BT,
        ).loss_BT
        weights_BT = aggregation.token_weights(algorithm.aggregation, mask_BT)
        values_BT = loss_BT - algorithm.entropy_coef * entropy.flatten(0, 2)
        numerators_S = torch.where(weights_BT > 0, values_BT * weights_BT, 0.0).view(len(self._seeds), -1).sum(-1)
        return numerators_S, self._denominators(batch, sampled, trained)

    def _log_probs(self, prompts: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the log-probs of the tokens, and the entropies of the distributions that they were drawn from."""
        every = self._policies.logits(prompts, tokens).log_softmax(-1)
        return every.gather(-1, tokens[..., None]).squeeze(-1), -(every.exp() * every).sum(-1)

    def _denominators(self, batch: _Batch, sampled: Tensor, trained: Tensor) -> Tensor:
        settings, found = self._settings, []
        longest, rule = settings.generation.max_response_tokens, settings.algorithm.aggregation
        for seed in range(len(self._seeds)):
            own = aggregation.denominator(rule, sampled[seed].flatten(0, 1), trained[seed].flatten(), longest)
            tokens_share = sampled[seed].sum() * settings.schedule.mini_batches / batch.sampled_SGRT[seed].sum()
            found.append(own / aggregation.token_share_divisor(rule, tokens_share.item()))
        return torch.stack(found)


def _measures(log_probs: Tensor, entropy: Tensor, batch: _Batch, groups: slice) -> list[Mapping[str, float]]:
    """Compares the policy of each seed with the one that generated; nothing where a mini-batch trains on nothing."""
    found: list[Mapping[str, float]] = []
    trained_SGRT = batch.sampled_SGRT & batch.trained_SGR[..., None]
    for seed, trained in enumerate(trained_SGRT[:, groups]):
        mask_BT = trained.flatten(0, 1)
        behaviour_BT = batch.log_probs_SGRT[seed, groups].flatten(0, 1)
        ratios = off_policy_sums(log_probs[seed].flatten(0, 1), behaviour_BT, mask_BT).measures()
        if not ratios:
            found.append({})
            continue
        found.append(
            {
                "entropy": entropy[seed].flatten(0, 1)[mask_BT].mean().item(),
                "behaviour_kl_k3": ratios["kl_k3"],
                "effective_share": ratios["effective_share"],
            }
        )
    return found
