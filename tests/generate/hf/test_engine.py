"""The engine on transformers models, against transformers' own generation and a plain forward pass."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
from array import array
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma2Config, GPT2Config, PretrainedConfig

from rewardflow.errors import FlowError, InvalidInput
from rewardflow.flow.device_thread import DeviceThread
from rewardflow.flow.records import GroupRequest, Prompt, Sampling
from rewardflow.generate.hf.decoding import Decoder, DecodingRow
from rewardflow.generate.hf.engine import HFEngine
from rewardflow.generate.hf.grouped_attention import grouped_attention
from rewardflow.generate.hf.stopping import StopRule
from rewardflow.generate.responses import EngineStatistics
from rewardflow.policy.load_policy import Policy
from rewardflow.settings.run_settings import GenerationSettings
from rewardflow.types import Rollout

TEXTS = ("12+3=", "7=", "abcdefghijk>", "0 0 0 0 0 0 0 0 0 0=", "55*5=", "Z>")


SAMPLING = Sampling(max_response_tokens=12)


def requests(*texts: str, group_size: int = 3, first: int = 0) -> list[GroupRequest]:
    prompts = [Prompt(uid=f"p{i}", text=text) for i, text in enumerate(texts)]
    return [
        GroupRequest(number=number, step=4, prompt=prompt, group_size=group_size, sampling=SAMPLING)
        for number, prompt in enumerate(prompts, first)
    ]


def engine_on(policy: Policy, thread: DeviceThread, **options: Any) -> HFEngine:
    """Options are those of the engine, or settings of the generation."""
    names = ("samplings", "autocast", "weights")
    own = {name: options.pop(name) for name in names if name in options}
    settings = GenerationSettings(**{"max_prompt_tokens": 64, **options})
    return HFEngine(policy, settings, thread=thread, **{"samplings": [SAMPLING], **own})


def generate(policy: Policy, asked: Sequence[GroupRequest], **changed: Any) -> list[Rollout]:
    """Every rollout, in the order in which they ended. What is changed is the sampling, or the generation."""
    names = [field.name for field in dataclasses.fields(Sampling)]
    sampling = dataclasses.replace(SAMPLING, **{name: changed.pop(name) for name in names if name in changed})
    sampled = [dataclasses.replace(request, sampling=sampling) for request in asked]

    async def run() -> list[Rollout]:
        with DeviceThread("test") as thread:
            engine = engine_on(policy, thread, samplings=[sampling], **changed)
            return [rollout async for rollout in engine.generate(sampled)]

    return asyncio.run(run())


def by_place(rollouts: Sequence[Rollout]) -> dict[tuple[str, int], list[int]]:
    """The tokens of each."""
    return {(rollout.group_id, rollout.index): list(rollout.token_ids or ()) for rollout in rollouts}


def response_ids(rollout: Rollout) -> list[int]:
    assert rollout.token_ids is not None
    assert rollout.response_mask is not None
    return [token for token, is_response in zip(rollout.token_ids, rollout.response_mask, strict=True) if is_response]


def other_model(policy: Policy, config: PretrainedConfig) -> Policy:
    """A model of another kind for the same tokenizer, with opinions too."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter *= 4
    return Policy(model, policy.tokenizer)


# -- what is drawn --


def test_near_temperature_0_it_says_what_transformers_says_greedily(policy: Policy) -> None:
    rollouts = generate(policy, requests(*TEXTS, group_size=2), temperature=1e-6, max_sequences=5)
    expected = {text: greedy(policy, text) for text in TEXTS}
    assert len(rollouts) == 2 * len(TEXTS)
    for rollout in rollouts:
        assert response_ids(rollout) == expected[rollout.prompt]


def greedy(policy: Policy, text: str) -> list[int]:
    tokens = policy.tokenizer(text, return_tensors="pt")
    policy.model.eval()
    told = policy.model.generate(**tokens, max_new_tokens=12, do_sample=False)
    policy.model.train()
    return told[0, tokens.input_ids.shape[1] :].tolist()


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probs_are_those_of_a_plain_forward_pass(policy: Policy, temperature: float) -> None:
    for rollout in generate(policy, requests(*TEXTS), temperature=temperature, max_sequences=7):
        check_log_probs(policy, rollout, temperature)


def check_log_probs(policy: Policy, rollout: Rollout, temperature: float = 1.0) -> None:
    assert rollout.token_ids is not None
    assert rollout.log_probs is not None
    assert rollout.response_mask is not None
    tokens = torch.tensor([list(rollout.token_ids)])
    policy.model.eval()
    with torch.no_grad():
        whole = (policy.model(tokens).logits[0, :-1].float() / temperature).log_softmax(-1)
    policy.model.train()
    expected = whole.gather(-1, tokens[0, 1:, None]).squeeze(-1) * torch.tensor(list(rollout.response_mask)[1:])
    assert torch.allclose(torch.tensor(list(rollout.log_probs)[1:]), expected, atol=1e-5, rtol=0)


def test_a_group_alone_draws_what_it_draws_among_others(policy: Policy) -> None:
    asked = requests(*TEXTS)
    together = by_place(generate(policy, asked, max_sequences=16))
    alone = [by_place(generate(policy, [request])) for request in asked]
    assert together == {place: tokens for group in alone for place, tokens in group.items()}


def test_the_width_of_the_batch_and_the_order_of_requests_change_nothing(policy: Policy) -> None:
    asked = requests(*TEXTS)
    expected = by_place(generate(policy, asked))
    for max_sequences in (1, 2, 5, 17):
        assert by_place(generate(policy, asked[::-1], max_sequences=max_sequences)) == expected


def test_rollouts_of_one_prompt_differ_and_so_do_groups_and_seeds(policy: Policy) -> None:
    one, other = (
        generate(policy, requests("12=", "12=", group_size=8)),
        generate(policy, requests("12=", "12=", group_size=8), seed=1),
    )
    assert len({tuple(tokens) for tokens in (*by_place(one).values(), *by_place(other).values())}) > 28


def test_the_same_seed_draws_the_same_again(policy: Policy) -> None:
    assert by_place(generate(policy, requests(*TEXTS))) == by_place(generate(policy, requests(*TEXTS)))


@pytest.mark.parametrize("max_sequences", [2, 256])
def test_the_baseline_of_a_group_is_greedy_and_the_others_are_sampled_as_without_it(
    policy: Policy, max_sequences: int
) -> None:
    plain = requests(*TEXTS)
    asked = [dataclasses.replace(one, group_size=4, has_baseline=True) for one in plain]
    found = generate(policy, asked, max_sequences=max_sequences)
    baselines = {rollout.group_id: rollout for rollout in found if rollout.index == 3}
    assert {rollout.extra_info["greedy"] for rollout in baselines.values()} == {True}
    assert {rollout.extra_info["greedy"] for rollout in found if rollout.index < 3} == {False}
    for request, text in zip(asked, TEXTS, strict=True):
        assert response_ids(baselines[request.group_id]) == greedy(policy, text)
    sampled = by_place([rollout for rollout in found if rollout.index < 3])
    assert sampled == by_place(generate(policy, plain))


def test_top_k_of_1_is_greedy_whatever_the_temperature(policy: Policy) -> None:
    (rollout,) = generate(policy, requests("12+3=", group_size=1), top_k=1)
    assert response_ids(rollout) == greedy(policy, "12+3=")
    check_log_probs(policy, rollout)


def test_requests_of_one_call_may_be_sampled_in_different_ways(policy: Policy) -> None:
    ways = [SAMPLING, dataclasses.replace(SAMPLING, seed=7, top_k=1, max_response_tokens=5)]
    asked = [dataclasses.replace(request, sampling=ways[number % 2]) for number, request in enumerate(requests(*TEXTS))]

    async def run() -> list[Rollout]:
        with DeviceThread("test") as thread:
            return [rollout async for rollout in engine_on(policy, thread, samplings=ways).generate(asked)]

    together = by_place(asyncio.run(run()))
    alone = [by_place(generate(policy, asked[way::2], **dataclasses.asdict(ways[way]))) for way in range(2)]
    assert together == {**alone[0], **alone[1]}


@pytest.mark.parametrize(
    "config",
    [
        GPT2Config(vocab_size=72, n_embd=32, n_layer=2, n_head=4, n_positions=128, bos_token_id=1, eos_token_id=2),
        Gemma2Config(
            vocab_size=72, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, head_dim=8, sliding_window=6, max_position_embeddings=128,
            pad_token_id=0, bos_token_id=1, eos_token_id=2,
        ),
    ],
    ids=["learned_positions", "sliding_window"],
)  # fmt: skip
def test_other_kinds_of_model_decode_the_same_way(policy: Policy, config: PretrainedConfig) -> None:
    other = other_model(policy, config)
    rollouts = generate(other, requests(*TEXTS), max_sequences=7)
    assert len(rollouts) == 3 * len(TEXTS)
    for rollout in rollouts:
        check_log_probs(other, rollout)


# -- what a rollout says --


def test_a_rollout_carries_its_prompt_its_tokens_and_its_place(policy: Policy) -> None:
    messages = ({"role": "user", "content": "1+2"},)
    prompt = Prompt(uid="a", messages=messages, ground_truth="3", data_source="sums", extra_info={"level": 1})
    asked = [GroupRequest(number=17, step=2, prompt=prompt, group_size=2)]
    for rollout in generate(policy, asked):
        assert (rollout.group_id, rollout.group_size, rollout.step) == ("17", 2, 2)
        assert (rollout.messages, rollout.prompt, rollout.ground_truth) == (messages, "", "3")
        assert (rollout.data_source, rollout.extra_info["level"]) == ("sums", 1)
        prompt_ids = [policy.tokenizer.bos_token_id, *policy.tokenizer.encode("1+2>")]
        assert list(rollout.token_ids or ())[:5] == prompt_ids
        assert list(rollout.response_mask or ()) == [0] * 5 + [1] * len(response_ids(rollout))
        assert list(rollout.log_probs or ())[:5] == [0.0] * 5
        assert rollout.response == policy.tokenizer.decode(response_ids(rollout), skip_special_tokens=True)
        assert all(isinstance(one, array) for one in (rollout.token_ids, rollout.response_mask, rollout.log_probs))


def test_a_response_ends_with_its_end_token_or_says_that_it_was_cut_off(policy: Policy) -> None:
    rollouts = generate(policy, requests(*TEXTS, group_size=32), max_response_tokens=20)
    ended = [rollout for rollout in rollouts if "truncated" not in rollout.extra_info]
    cut = [rollout for rollout in rollouts if rollout.extra_info.get("truncated") is True]
    assert ended
    assert cut
    assert len(ended) + len(cut) == len(rollouts)
    eos = policy.tokenizer.eos_token_id
    assert all(response_ids(rollout).index(eos) == len(response_ids(rollout)) - 1 for rollout in ended)
    assert all(len(response_ids(rollout)) == 20 and eos not in response_ids(rollout) for rollout in cut)
    assert all("<" not in rollout.response for rollout in ended)


def test_a_column_of_the_data_cannot_say_that_a_response_was_cut_off(policy: Policy) -> None:
    (request,) = requests("12=", group_size=32)
    request = replace(request, prompt=replace(request.prompt, extra_info={"truncated": True}))
    rollouts = generate(policy, [request], max_response_tokens=20)
    for rollout in rollouts:
        ended = response_ids(rollout)[-1] == policy.tokenizer.eos_token_id
        assert rollout.extra_info["truncated"] is not ended


def test_a_stop_string_ends_a_response_and_stays_in_it(policy: Policy) -> None:
    plain = generate(policy, requests("12=", group_size=1))[0]
    stop = plain.response[3:5]
    (stopped,) = generate(policy, requests("12=", group_size=1), stop=["never said", stop])
    assert stopped.response == plain.response[: plain.response.index(stop) + 2]
    assert response_ids(stopped) == response_ids(plain)[: len(response_ids(stopped))]
    assert "truncated" not in stopped.extra_info


# -- when it is said --


def test_every_rollout_is_given_once_and_early_ones_before_the_last(policy: Policy) -> None:
    rollouts = generate(policy, requests(*TEXTS * 4, group_size=4), max_sequences=8, max_response_tokens=24)
    assert len(by_place(rollouts)) == len(rollouts) == 4 * 4 * len(TEXTS)
    # Groups are finished one after another: the last of the first group ends long before the first of the last one.
    groups = [int(rollout.group_id) for rollout in rollouts]
    assert max(place for place, group in enumerate(groups) if group == 0) < groups.index(23)


def test_whoever_stops_listening_stops_the_decoding(policy: Policy) -> None:
    async def run() -> EngineStatistics:
        with DeviceThread("test") as thread:
            engine = engine_on(policy, thread, max_sequences=4)
            async with aclosing(engine.generate(requests(*TEXTS * 50))) as rollouts:
                async for _ in rollouts:
                    break
            return engine.statistics()

    assert 0 < asyncio.run(run()).num_rollouts < 3 * 50 * len(TEXTS)


def test_a_version_is_published_between_calls_and_never_within_one(policy: Policy) -> None:
    async def run() -> list[list[int | None]]:
        with DeviceThread("test") as thread:
            engine = engine_on(policy, thread)
            before = engine.generate(requests(*TEXTS))
            versions = [[(await anext(before)).policy_version]]
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(engine.publish(5))
                versions[0] += [rollout.policy_version async for rollout in before]
            versions.append([rollout.policy_version async for rollout in engine.generate(requests(*TEXTS))])
            return versions

    assert asyncio.run(run()) == [[0] * 18, [5] * 18]


def test_published_weights_are_the_ones_that_generate(policy: Policy) -> None:
    learner = Policy(copy.deepcopy(policy.model), policy.tokenizer)
    before = generate(learner, requests("12="))
    with torch.no_grad():
        learner.model.lm_head.weight.neg_()
    after = generate(learner, requests("12="))
    assert by_place(before) != by_place(after)
    for rollout in after:
        check_log_probs(learner, rollout)


def test_a_copy_generates_with_the_weights_of_the_trainer_as_they_were_when_it_published(policy: Policy) -> None:
    trained, copied = (Policy(copy.deepcopy(policy.model), policy.tokenizer) for _ in range(2))
    weights = trained.model.named_parameters

    async def run() -> tuple[list[Rollout], list[Rollout]]:
        with DeviceThread("test") as thread:
            engine = engine_on(copied, thread, weights=weights)
            with torch.no_grad():
                trained.model.lm_head.weight.neg_()
            before = [rollout async for rollout in engine.generate(requests("12="))]
            await engine.publish(1)
            return before, [rollout async for rollout in engine.generate(requests("12="))]

    before, after = asyncio.run(run())
    assert by_place(before) == by_place(generate(policy, requests("12=")))
    assert by_place(after) == by_place(generate(trained, requests("12=")))
    assert {rollout.policy_version for rollout in after} == {1}


def test_weights_are_received_in_pieces_and_are_a_version_when_all_are_there(policy: Policy) -> None:
    given = {name: -weight.detach() for name, weight in policy.model.named_parameters()}
    fed = Policy(copy.deepcopy(policy.model), policy.tokenizer)
    *first, last = given

    async def run() -> None:
        with DeviceThread("test") as thread:
            engine = engine_on(fed, thread)
            await engine.receive({name: given[name] for name in first})
            await engine.receive({last: given[last]})
            await engine.publish(3)
            await engine.publish(4)  # nothing was received: the weights have another name
            assert [one.policy_version async for one in engine.generate(requests("7=", group_size=1))] == [4]
            await engine.receive({last: given[last]})
            with pytest.raises(FlowError, match="published weights must be all of the generator's, got none for"):
                await engine.publish(5)

    asyncio.run(run())
    assert all(torch.equal(weight, given[name]) for name, weight in fed.model.named_parameters())


def test_dropout_is_off_while_generating_and_back_on_afterwards(policy: Policy) -> None:
    learner = Policy(copy.deepcopy(policy.model), policy.tokenizer)
    for layer in learner.model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    for rollout in generate(learner, requests(*TEXTS)):
        check_log_probs(learner, rollout)
    assert learner.model.training
    tokens = torch.tensor([[5, 6, 7]])
    learner.model(tokens).logits.sum().backward()
    assert learner.model.lm_head.weight.grad is not None


def test_it_computes_in_the_precision_of_the_trainer(policy: Policy) -> None:
    learner = Policy(copy.deepcopy(policy.model), policy.tokenizer)
    dtypes = set[torch.dtype]()
    learner.model.lm_head.register_forward_hook(lambda module, given, logits: dtypes.add(logits.dtype))

    async def run() -> list[Rollout]:
        with DeviceThread("test") as thread:
            engine = engine_on(learner, thread, autocast=torch.bfloat16)
            return [rollout async for rollout in engine.generate(requests("12="))]

    assert len(asyncio.run(run())) == 3
    assert dtypes == {torch.bfloat16}


def test_the_past_is_kept_in_what_attention_computes_in_and_changes_nothing(policy: Policy) -> None:
    rule = StopRule(policy, (), policy.model.config.vocab_size)
    rows = [DecodingRow(request, 0, (5, 6, 7)) for request in requests(*TEXTS, group_size=1)]

    def decoded(kept_in: torch.dtype | None) -> dict[str, list[float]]:
        decoder = Decoder(policy, rule, max_rows=4, autocast=kept_in)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16), grouped_attention(policy.model):
            ended = [one for some in decoder.decode(rows, SAMPLING, lambda: False) for one in some]
        return {one.row.request.group_id: one.log_probs for one in ended}

    assert len(decoded(None)) == len(TEXTS)
    assert decoded(torch.bfloat16) == decoded(None)


def test_statistics_count_what_was_generated(policy: Policy) -> None:
    async def run() -> tuple[list[Rollout], EngineStatistics]:
        with DeviceThread("test") as thread:
            engine = engine_on(policy, thread)
            return [rollout async for rollout in engine.generate(requests(*TEXTS))], engine.statistics()

    rollouts, statistics = asyncio.run(run())
    assert statistics.num_rollouts == 18
    assert statistics.num_response_tokens == sum(len(response_ids(rollout)) for rollout in rollouts)
    assert statistics.num_truncated == sum("truncated" in rollout.extra_info for rollout in rollouts)
    assert statistics.busy_s > 0


def test_nothing_asked_for_is_nothing_given(policy: Policy) -> None:
    assert generate(policy, []) == []


# -- what is refused --


def test_weights_that_have_diverged_are_an_error_and_not_a_rollout(policy: Policy) -> None:
    broken = Policy(copy.deepcopy(policy.model), policy.tokenizer)
    with torch.no_grad():
        broken.model.lm_head.weight.fill_(torch.nan)
    with pytest.raises(InvalidInput, match="logits must be finite"):
        generate(broken, requests("12="))
    assert broken.model.training


def test_more_tokens_than_the_model_has_positions_are_refused(policy: Policy) -> None:
    with pytest.raises(InvalidInput, match="got 64 \\+ 5000 for 4096"):
        generate(policy, requests("12="), max_response_tokens=5000)


def test_an_overlong_prompt_is_refused_when_it_gets_this_far(policy: Policy) -> None:
    with pytest.raises(InvalidInput, match="max_prompt_tokens=4"):
        generate(policy, requests("12345="), max_prompt_tokens=4, overlong_prompts="filter")


def test_a_model_that_keeps_a_buffer_made_while_generating_can_still_be_trained(policy: Policy) -> None:
    model = copy.deepcopy(policy.model)
    model.register_buffer("factor", torch.ones(()))

    def renew(*_: object) -> None:
        if not model.training:
            model.factor = model.factor + 1

    model.register_forward_pre_hook(renew)
    model.register_forward_hook(lambda _, __, output: dataclasses.replace(output, logits=output.logits * model.factor))
    generate(Policy(model, policy.tokenizer), requests(*TEXTS))
    assert model.factor > 1
    model.train()
    model(torch.tensor([[5, 6, 17]])).logits.sum().backward()
    assert all(weight.grad is not None for weight in model.parameters())
