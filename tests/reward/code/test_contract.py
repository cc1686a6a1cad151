"""Every form of reward that users write, and every form that cannot work."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import math
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from rewardflow.errors import InvalidInput, RewardLoadError
from rewardflow.reward.code.contract import LoadedReward, is_coroutine_function, load_reward, with_own_values
from rewardflow.reward.code.reward_forms import RewardLike
from rewardflow.reward.code.source import RewardSource
from rewardflow.types import Reward, Rollout

GROUP = tuple(
    Rollout(
        group_id="q17",
        index=index,
        group_size=2,
        prompt="2+2?",
        messages=[{"role": "user", "content": "2+2?"}],
        response=response,
        ground_truth="4",
        data_source="gsm8k",
        extra_info={"split": "train"},
    )
    for index, response in enumerate(("4", "five"))
)
ONE = GROUP[:1]
INFO = {"split": "train", "group_uid": "q17", "group_size": 2}
FOUR = {"data_source": "gsm8k", "solution_str": "4", "ground_truth": "4", "extra_info": INFO}
FOUR_OF_ALL = {
    "data_sources": ["gsm8k"] * 2,
    "solution_strs": ["4", "five"],
    "ground_truths": ["4"] * 2,
    "extra_infos": [INFO] * 2,
}


def load(reward: RewardLike, **reward_kwargs: Any) -> LoadedReward:
    return load_reward(RewardSource.of(reward, reward_kwargs))


def call(loaded: LoadedReward, rollouts: Sequence[Rollout] = GROUP) -> list[float | None]:
    """As the agent does it."""
    calls = [rollouts] if loaded.unit == "group" else [[rollout] for rollout in rollouts]
    rewards: list[Reward] = []
    for subject in calls:
        result = loaded.function(**loaded.arguments(subject))
        if loaded.is_async:
            result = asyncio.run(result)
        rewards += loaded.parse(result, len(subject))
    return [reward.value for reward in rewards]


def error_of(reward: Any, **reward_kwargs: Any) -> str:
    with pytest.raises(RewardLoadError) as raised:
        load(reward, **reward_kwargs)
    return str(raised.value)


# -- functions --


def verl(data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any] | None = None) -> float:
    return float(solution_str == ground_truth)


async def verl_async(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any] | None = None
) -> float:
    return float(solution_str == ground_truth)


def verl_batch(
    data_sources: list[str], solution_strs: list[str], ground_truths: list[Any], extra_infos: list[dict[str, Any]]
) -> list[float]:
    return [float(solution == truth) for solution, truth in zip(solution_strs, ground_truths, strict=True)]


async def verl_batch_async(solution_strs: list[str], ground_truths: list[Any], **_: Any) -> list[float]:
    return [float(solution == truth) for solution, truth in zip(solution_strs, ground_truths, strict=True)]


def whole_rollout(rollout: Rollout) -> float:
    return float(rollout.response == rollout.ground_truth)


def whole_group(rollouts: Sequence[Rollout]) -> list[float]:
    return [whole_rollout(rollout) for rollout in rollouts]


def everything(**kwargs: Any) -> float:
    return float(kwargs["solution_str"] == kwargs["ground_truth"])


def by_position(source: str, answer: str, truth: Any, /) -> float:
    return float(answer == truth)


def by_position_and_name(source: str, answer: str, /, ground_truth: Any, *, bonus: float = 0.0) -> float:
    return float(answer == ground_truth) + bonus


def own_names(prompt: str, messages: Sequence[dict[str, str]], response: str) -> float:
    return float(prompt == messages[0]["content"] and response == "4")


@pytest.mark.parametrize(
    ("function", "unit", "is_async"),
    [
        (verl, "rollout", False),
        (verl_async, "rollout", True),
        (verl_batch, "group", False),
        (verl_batch_async, "group", True),
        (whole_rollout, "rollout", False),
        (whole_group, "group", False),
        (everything, "rollout", False),
        (by_position, "rollout", False),
        (by_position_and_name, "rollout", False),
        (own_names, "rollout", False),
        (lambda solution_str, ground_truth: solution_str == ground_truth, "rollout", False),
    ],
)
def test_every_form_of_function_is_called_with_what_it_asks_for(
    function: Callable[..., Any], unit: str, is_async: bool
) -> None:
    loaded = load(function)
    assert (loaded.unit, loaded.is_async) == (unit, is_async)
    assert call(loaded) == [1.0, 0.0]


def test_the_four_arguments_of_verl_are_passed_by_name() -> None:
    assert load(verl).arguments(ONE) == FOUR
    assert load(everything).arguments(ONE) == FOUR
    assert load(verl_batch).arguments(GROUP) == FOUR_OF_ALL
    assert load(verl_batch_async).arguments(GROUP) == FOUR_OF_ALL


def test_extra_info_is_a_fresh_copy_in_every_call() -> None:
    loaded = load(verl)
    loaded.arguments(ONE)["extra_info"]["split"] = "spoilt"
    assert loaded.arguments(ONE)["extra_info"] == INFO
    assert ONE[0].extra_info == {"split": "train"}


def test_extra_info_carries_the_group_even_when_the_rollout_has_none() -> None:
    info = load(verl).arguments([Rollout(group_id="q", response="")])["extra_info"]
    assert info == {"group_uid": "q", "group_size": 1}


def test_reward_kwargs_reach_a_function_with_every_call() -> None:
    assert call(load(by_position_and_name, bonus=0.5)) == [1.5, 0.5]
    assert load(everything, model="small").arguments(ONE) == {**FOUR, "model": "small"}
    assert load(verl_batch_async, model="small").arguments(GROUP) == {**FOUR_OF_ALL, "model": "small"}


def test_a_partial_is_a_function_with_fewer_parameters() -> None:
    assert call(load(functools.partial(by_position_and_name, bonus=1.0))) == [2.0, 1.0]
    assert load(functools.partial(verl, "fixed")).arguments(ONE).keys() == FOUR.keys() - {"data_source"}


def test_a_template_of_the_users_own_is_not_replaced_by_our_prompt() -> None:
    def judge(solution_str: str, prompt: str = "Rate: {}", messages: Any = None, response: str = "") -> float:
        return 1.0

    assert load(judge).arguments(ONE).keys() == {"solution_str", "messages", "response"}
    assert load(judge, prompt="Judge: {}").arguments(ONE)["prompt"] == "Judge: {}"


# -- classes and objects --


class RewardAgent:
    """As in the recipe that this project grew from."""

    def __init__(self) -> None:
        self.logged: list[Any] = []

    def compute_score(
        self, data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any] | None = None
    ) -> tuple[float, str, str]:
        return float(solution_str == ground_truth), f"Is {solution_str} right?", "compared"

    def post_process_scores(self, scores: list[float]) -> list[float]:
        return [-1.0 if math.isnan(score) else score for score in scores]

    def log(self, timestamps: Any, queries: Any, results: Any, latencies: Any, group_uids: Any) -> None:
        self.logged.append((timestamps, queries, results, latencies, group_uids))


class Relative:
    def __init__(self, model: str = "small") -> None:
        self.model = model
        self.log = logging.getLogger("judge")  # not the hook: a logger cannot be called

    async def score_group(self, candidates: Sequence[Rollout], /) -> list[float]:
        best = min(len(rollout.response) for rollout in candidates)
        return [float(len(rollout.response) == best) for rollout in candidates]

    def compute_score(self, solution_str: str) -> float:
        raise AssertionError("score_group wins")

    def estimate_tokens(self, rollout: Rollout) -> int:
        return len(rollout.response)

    def close(self) -> None:
        raise AssertionError("aclose is preferred")

    async def aclose(self) -> None: ...


class CallableJudge:
    async def __call__(self, solution_str: str, ground_truth: str) -> dict[str, Any]:
        return {"score": solution_str == ground_truth}


def test_the_original_recipes_class_works_unchanged() -> None:
    loaded = load(RewardAgent)
    assert call(loaded) == [1.0, 0.0]
    (reward,) = loaded.parse(loaded.function(**loaded.arguments(ONE)), 1)
    assert (reward.query, reward.explanation) == ("Is 4 right?", "compared")
    assert loaded.post_process is not None
    assert loaded.post_process([math.nan, 1.0]) == [-1.0, 1.0]
    assert loaded.log is not None
    assert loaded.close is None


def test_score_group_wins_and_sees_all_rollouts_under_any_name() -> None:
    loaded = load(Relative, model="large")
    assert (loaded.unit, loaded.is_async) == ("group", True)
    assert call(loaded) == [1.0, 0.0]
    assert loaded.log is None
    assert loaded.close is not None
    assert inspect.iscoroutinefunction(loaded.close)
    assert loaded.estimate_tokens is not None
    assert loaded.estimate_tokens(GROUP[1]) == 4


def test_an_object_that_can_be_called_is_a_reward() -> None:
    loaded = load(CallableJudge())
    assert loaded.is_async
    assert call(loaded) == [1.0, 0.0]


def test_a_method_may_have_the_batch_form() -> None:
    class Batch:
        def compute_score(self, solution_strs: list[str]) -> list[float]:
            return [float(text == "4") for text in solution_strs]

    assert call(load(Batch)) == [1.0, 0.0]


def test_a_scoring_method_may_be_made_in_init() -> None:
    class Late:
        def __init__(self) -> None:
            self.compute_score = verl

    assert call(load(Late)) == [1.0, 0.0]


def test_an_instance_takes_reward_kwargs_with_its_calls() -> None:
    class Tuned:
        def compute_score(self, solution_str: str, scale: float = 1.0) -> float:
            return scale * len(solution_str)

    assert call(load(Tuned(), scale=2.0)) == [2.0, 8.0]


@pytest.mark.parametrize("name", ["compute_score", "Judge", "judge"])
def test_a_file_written_for_verl_works_unchanged(tmp_path: Path, name: str) -> None:
    path = tmp_path / "reward_function.py"
    path.write_text(
        textwrap.dedent(
            """
            def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
                return {"score": float(solution_str == ground_truth), "acc": solution_str == ground_truth}

            class Judge:
                def __call__(self, data_source, solution_str, ground_truth, extra_info):
                    return compute_score(data_source, solution_str, ground_truth, extra_info)

            judge = Judge()
            """
        )
    )
    assert call(load(f"{path}:{name}")) == [1.0, 0.0]


# -- async or not --


def passes_on(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def makes_async(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


@pytest.mark.parametrize(
    "function",
    [
        verl_async,
        functools.partial(verl_async, extra_info=None),
        functools.partial(functools.partial(verl_async)),
        passes_on(verl_async),
        passes_on(passes_on(verl_async)),
        makes_async(verl),
        CallableJudge(),
        CallableJudge().__call__,
        functools.partial(CallableJudge()),
        functools.partial(passes_on(verl_async)),
    ],
)
def test_async_is_seen_through_partials_methods_objects_and_decorators(function: Callable[..., Any]) -> None:
    assert is_coroutine_function(function)
    assert call(load(function)) == [1.0, 0.0]


@pytest.mark.parametrize(
    "function",
    [verl, functools.partial(verl), passes_on(verl), RewardAgent().compute_score, len, int, functools.lru_cache(verl)],
)
def test_plain_is_plain(function: Callable[..., Any]) -> None:
    assert not is_coroutine_function(function)


def test_a_decorator_that_answers_from_a_cache_still_gives_a_coroutine() -> None:
    @functools.wraps(verl_async)
    def cached(**arguments: Any) -> Any:
        return 1.0 if arguments["solution_str"] == "4" else verl_async(**arguments)

    loaded = load(cached)
    assert loaded.is_async
    assert call(loaded) == [1.0, 0.0]


def test_a_lambda_round_an_async_function_fails_with_advice() -> None:
    loaded = load(lambda solution_str: verl_async("", solution_str, ""))
    assert not loaded.is_async
    (reward,) = loaded.parse(loaded.function(**loaded.arguments(ONE)), 1)
    assert "declare it with async def" in (reward.error or "")


# -- what cannot work --


def test_parameters_that_nothing_fills_are_named_with_what_is_supplied() -> None:
    message = error_of(lambda solution_str, truth, tokenizer: 1.0)
    assert "nothing fills truth, tokenizer" in message
    assert "data_source, solution_str, ground_truth, extra_info, rollout" in message


def test_forms_for_one_and_for_many_cannot_be_mixed() -> None:
    assert "nothing fills ground_truth" in error_of(lambda solution_strs, ground_truth: [])


@pytest.mark.parametrize("function", [lambda: 1.0, lambda text="": 1.0, lambda *args: 1.0])
def test_a_function_that_asks_for_nothing_we_supply_is_refused(function: Callable[..., Any]) -> None:
    assert "asks for none of them" in error_of(function)


def test_positional_only_parameters_out_of_order_are_refused() -> None:
    def swapped(solution_str: str, truth: Any, /) -> float:
        return 1.0

    def five(a: Any, b: Any, c: Any, d: Any, e: Any, /) -> float:
        return 1.0

    assert "must be in the order data_source, solution_str" in error_of(swapped)
    assert "nothing fills e" in error_of(five)


def test_reward_kwargs_that_a_function_does_not_take_are_refused() -> None:
    assert error_of(by_position_and_name, bonsu=1).endswith(":by_position_and_name (ground_truth, bonus), got bonsu")


def test_reward_kwargs_cannot_replace_what_every_call_supplies() -> None:
    assert "must not set what is supplied with every call: extra_info" in error_of(verl, extra_info={})


def test_generators_are_refused() -> None:
    async def stream(solution_str: str) -> Any:
        yield 1.0

    def lazy(solution_strs: list[str]) -> Any:
        yield 1.0

    class Streaming:
        async def __call__(self, solution_str: str) -> Any:
            yield 1.0

    assert "is a generator" in error_of(Streaming)
    assert "is a generator" in error_of(stream)
    assert "is a generator" in error_of(lazy)


def test_a_class_without_a_scoring_method_is_refused() -> None:
    class Empty:
        def rate(self) -> float:
            return 1.0

    assert "must have score_group, compute_score or __call__" in error_of(Empty)


def test_parameters_that_cannot_be_read_are_refused() -> None:
    assert "wrap it in a function" in error_of(min)


@pytest.mark.parametrize(
    ("hook", "takes"),
    [
        ("log", "timestamps, queries, results, latencies, group_uids"),
        ("post_process_scores", "scores"),
        ("decide_locally", "rollout"),
        ("close", ""),
    ],
)
def test_a_hook_that_cannot_be_called_is_refused_before_anything_is_paid(hook: str, takes: str) -> None:
    def unfit(self: Any, one: Any, two: Any) -> None: ...

    judge = type("Judge", (RewardAgent,), {hook: unfit})
    assert f"{hook} of" in error_of(judge)
    assert f"must take ({takes})" in error_of(judge)


def test_a_local_decision_must_be_plain_and_about_one_rollout() -> None:
    class Waits:
        async def decide_locally(self, rollout: Rollout) -> float:
            return 1.0

        def compute_score(self, response: str) -> float:
            return 1.0

    class SeesGroups:
        def decide_locally(self, rollout: Rollout) -> float:
            return 1.0

        def score_group(self, rollouts: Sequence[Rollout]) -> list[float]:
            return []

    assert "decide_locally must be a plain function" in error_of(Waits)
    assert "scores whole groups" in error_of(SeesGroups)


# -- reading results --


def test_a_call_for_one_rollout_gives_one_reward_whatever_it_returned() -> None:
    loaded = load(verl)
    for result in (1.0, None, [1.0, 2.0, 3.0, 4.0], object()):
        assert len(loaded.parse(result, 1)) == 1


def test_a_call_for_a_group_gives_one_reward_for_each_whatever_it_returned() -> None:
    loaded = load(whole_group)
    for result in ([1.0, 2.0], None, [1.0], 3.0):
        assert len(loaded.parse(result, 2)) == 2


def test_a_reward_may_say_itself_what_tells_it_from_others() -> None:
    class Judge:
        def __init__(self, address: str, model: str) -> None:
            self.address = address
            self.model = model

        def identity_settings(self) -> dict[str, str]:
            return {"model": self.model}

        def compute_score(self, solution_str: str) -> float:
            return 1.0

    def identity(**kwargs: str) -> str:
        return load_reward(RewardSource.of(Judge, kwargs)).identity

    assert identity(address="a", model="x") == identity(address="b", model="x")
    assert identity(address="a", model="x") != identity(address="a", model="y")
    assert (
        load_reward(RewardSource.of(Judge("a", "x"))).identity == load_reward(RewardSource.of(Judge("b", "x"))).identity
    )


@pytest.mark.parametrize("depth", [5_000, 100_000])
def test_extra_info_that_cannot_be_copied_is_refused_by_name(depth: int) -> None:
    deep: Any = 1
    for _ in range(depth):
        deep = {"a": deep}
    with pytest.raises(InvalidInput, match="extra_info must be nested"):
        with_own_values(Rollout(group_id="q", response="4", extra_info={"deep": deep}))
