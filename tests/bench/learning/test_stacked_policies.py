"""The stacked policies compute what the models with their weights compute."""

from __future__ import annotations

import torch

from rewardflow.bench.learning.stacked_policies import StackedPolicies
from rewardflow.policy.tiny import build_model
from rewardflow.settings.run_settings import PolicySettings

SEEDS = (5, 6)
SETTINGS = PolicySettings(tiny_hidden=16, tiny_layers=2)


def test_logits_are_those_of_the_model_of_each_seed() -> None:
    policies = StackedPolicies.built(SETTINGS, SEEDS)
    generator = torch.Generator().manual_seed(0)
    prompts_SGP = torch.randint(4, 70, (2, 3, 5), generator=generator)
    responses_SGRT = torch.randint(4, 70, (2, 3, 4, 3), generator=generator)
    logits = policies.logits(prompts_SGP, responses_SGRT)
    for seed, prompts, responses, found in zip(SEEDS, prompts_SGP, responses_SGRT, logits, strict=True):
        model = build_model(16, 2, seed=seed)
        whole = torch.cat([prompts[:, None].expand(-1, 4, -1), responses], dim=-1).flatten(0, 1)
        expected = model(whole).logits[:, 4:-1].view(3, 4, 3, -1)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_token_by_token_gives_the_logits_of_a_whole_pass() -> None:
    policies = StackedPolicies.built(SETTINGS, SEEDS)
    generator = torch.Generator().manual_seed(1)
    prompts_SGP = torch.randint(4, 70, (2, 3, 5), generator=generator)
    responses_SGRT = torch.randint(4, 70, (2, 3, 4, 3), generator=generator)
    first, prompt = policies.read(prompts_SGP)
    logits, past = [first[:, :, None].expand(-1, -1, 4, -1)], None
    for position in range(2):
        later, past = policies.continued(responses_SGRT[..., position : position + 1], prompt, past)
        logits.append(later[:, :, :, 0])
    torch.testing.assert_close(torch.stack(logits, dim=3), policies.logits(prompts_SGP, responses_SGRT))
