"""Real runs of verl 0.9 on CPU, each in its own process, through the launcher."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path

import pytest
import verl_job
from verl_job import Materials, Outcome, ended_well, judged_by
from verl_recipe_lines import ALL_SETTINGS, CONFIG_PATH, DOCUMENTED_FSDP2

from rewardflow.mock_judge import MockJudge, MockJudgeSettings
from rewardflow.observe.run_directory import read_steps


@pytest.fixture(scope="module")
def recipe_run(materials: Materials, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """The recipe's command line for FSDP2, through the launcher."""
    own = verl_job.small(materials)
    words = [f"--config-path={CONFIG_PATH}", *own, *DOCUMENTED_FSDP2, *ALL_SETTINGS, *verl_job.RECIPES_JUDGE]
    return ended_well(tmp_path_factory.mktemp("recipe"), words)


def test_the_recipes_line_for_fsdp2_trains_two_steps(recipe_run: Outcome) -> None:
    assert len(recipe_run.metrics) == 2
    assert recipe_run.column("rewardflow/verdicts/scored") == [16, 16]
    assert recipe_run.column("rewardflow/staleness/max") == [0, 1]  # the second was generated before the first update
    assert all(norm > 0 for norm in recipe_run.column("actor/grad_norm"))
    assert all(0 < weight < 2 for weight in recipe_run.column("rewardflow/behaviour_weight/mean"))


def test_the_report_of_the_recipes_run_has_the_sections_of_any_other(recipe_run: Outcome, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    verl_job.rewardflow("report", str(recipe_run.run_dir), "--out", str(page), "--trace", str(tmp_path / "trace.json"))
    html = page.read_text()
    for section in ("time", "timelines", "learning", "calls", "rollouts"):
        assert f'id="{section}"' in html, section
    figures = json.loads(verl_job.rewardflow("report", str(recipe_run.run_dir), "--json"))
    assert (figures["num_trained"], figures["scored"], figures["failed"]) == (2, 32, {})
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]


def test_calls_that_go_wrong_are_named_and_never_a_zero(materials: Materials, tmp_path: Path) -> None:
    settings = [
        *verl_job.small(materials),
        *judged_by("TroubledJudge"),
        "rewardflow.timeout_s=5",
        "rewardflow.max_attempts=1",
    ]
    outcome = ended_well(tmp_path, settings)
    assert "dtype mismatch" not in outcome.output  # TransferQueue only logs it, and then loses track of the rows
    first, second = outcome.metrics
    assert first["rewardflow/verdicts/failed/user_error"] == 4
    assert first["rewardflow/verdicts/failed/timeout"] == 4
    assert first["rewardflow/verdicts/failed/unparsable"] == 4
    assert first["rewardflow/groups/dropped/too_few_verdicts"] == 3
    assert first["critic/score/min"] >= 0.5  # the judge gives no less, and nothing else was trained
    assert second["rewardflow/verdicts/scored"] == 16
    totals = read_steps(outcome.run_dir)[1]["reward"]
    assert (totals["scored"], totals["failed"]) == (4, {"user_error": 4, "timeout": 4, "unparsable": 4})
    assert totals["score"]["min"] >= 0.5


def troubled(materials: Materials, *mode: str) -> list[str]:
    """One call raises, one hangs, one answers with another type; three of the last group's four raise."""
    return [
        *verl_job.small(materials),
        # verl fills a batch up to whole mini-batches, of 8 here, and cuts it by these
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8",
        *judged_by("TroubledSamples"),
        "rewardflow.timeout_s=5",
        "rewardflow.max_attempts=1",
        *mode,
    ]


def test_in_verls_sync_mode_a_sample_without_verdict_is_left_out_and_a_lone_verdict_is_not_trained(
    materials: Materials, tmp_path: Path
) -> None:
    dump = f"trainer.rollout_data_dir={tmp_path / 'rollouts'}"
    outcome = ended_well(tmp_path, troubled(materials, "trainer.v1.trainer_mode=sync", dump))
    first, second = outcome.metrics
    assert first["rewardflow/verdicts/scored"] == 10
    assert first["rewardflow/verdicts/failed/user_error"] == 4
    assert first["rewardflow/verdicts/failed/timeout"] == first["rewardflow/verdicts/failed/unparsable"] == 1
    assert first["rewardflow/groups/trained"] == 3
    assert first["rewardflow/groups/dropped/too_few_verdicts"] == 1
    assert first["critic/score/min"] >= 0.5  # the judge gives no less
    assert first["rewardflow/exposed_s"] > 0  # everything was generated long before the call that hung was given up
    assert first["rewardflow/latency_s/max"] >= 5
    rows = [json.loads(line) for line in (tmp_path / "rollouts" / "1.jsonl").read_text().splitlines()]
    trained = Counter(row["uid"].rsplit("_", 2)[0] for row in rows if not row["uid"].startswith("pad"))
    assert sorted(trained.values()) == [3, 3, 3]
    assert (second["rewardflow/verdicts/scored"], second["rewardflow/groups/trained"]) == (16, 4)
    totals = read_steps(outcome.run_dir)[1]["reward"]
    assert (totals["scored"], totals["failed"]) == (10, {"user_error": 4, "timeout": 1, "unparsable": 1})


def test_in_verls_sync_mode_a_group_without_enough_verdicts_is_replaced_where_verl_replaces_failed_groups(
    materials: Materials, tmp_path: Path
) -> None:
    mode = ("trainer.v1.trainer_mode=sync", "trainer.v1.sampler.sync_refill_failed_groups=True")
    outcome = ended_well(tmp_path, troubled(materials, *mode))
    first = outcome.metrics[0]
    assert first["training/rollout_failure/evicted_samples"] == 1
    assert first["rewardflow/groups/trained"] == 4
    assert first["rewardflow/groups/dropped/evicted_by_verl"] == 1
    assert first["rewardflow/verdicts/scored"] == 14


def test_in_verls_asynchronous_mode_every_group_with_a_failure_is_replaced(
    materials: Materials, tmp_path: Path
) -> None:
    settings = troubled(materials, "trainer.v1.trainer_mode=colocate_async")
    outcome = ended_well(tmp_path, settings)
    replaced = sum(outcome.column("rewardflow/groups/dropped/evicted_by_verl"))
    assert replaced == sum(outcome.column("training/rollout_failure/evicted_samples"))
    assert replaced in (3, 4)  # the run may be over before the call that hangs is given up
    assert outcome.column("rewardflow/groups/trained") == [4, 4]
    assert sum(outcome.column("rewardflow/verdicts/failed")) == replaced + 2
    assert min(outcome.column("critic/score/min")) >= 0.5


def test_in_verls_own_modes_a_run_ends_with_the_agents_reason_when_it_gives_up(
    materials: Materials, tmp_path: Path
) -> None:
    settings = [
        *verl_job.small(materials),
        *judged_by("paid"),
        "rewardflow.max_cost_usd=5",
        "trainer.v1.trainer_mode=colocate_async",
    ]
    outcome = verl_job.run(tmp_path, settings, timeout_s=1500)
    assert outcome.code != 0
    assert "the reward agent gave up: BudgetExhausted" in outcome.output


def test_rewards_sit_on_the_last_token_of_their_own_response(
    materials: Materials, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECORDED_REWARDS", str(tmp_path / "rewards.jsonl"))
    settings = [
        *verl_job.small(materials, steps=2),
        "algorithm.adv_estimator=recorded_rewards",
        *judged_by("length_of_response", median_s=0.5),
        "rewardflow.max_staleness=1",
    ]
    ended_well(tmp_path, settings, modules=("verl_cpu_estimator",))
    rows = [json.loads(line) for line in (tmp_path / "rewards.jsonl").read_text().splitlines()]
    assert len(rows) == 32
    for row in rows:
        (place, score), *others = row["rewards"].items()
        assert not others
        assert int(place) == row["length"] - 1
        assert math.isfinite(score)
        assert score <= 1 + row["length"]  # a byte or a special token each: never another response's length


def test_reward_workers_of_verls_own_mode_share_one_limit(materials: Materials, tmp_path: Path) -> None:
    """60 requests a minute, on a clock that runs ten times as fast. A limit for each worker would let 180 through."""
    reward = tmp_path / "judge.yaml"
    limits = MockJudgeSettings(rpm=60, scale=0.1, burst_s=10.0, latency="constant:1")
    with MockJudge(limits) as judge:
        reward.write_text(f"reward: llm_judge\nmodel: mock\nbase_urls: [{judge.base_url}]\n")
        settings = [
            *verl_job.small(materials, groups=8, rollouts=8),
            "reward.num_workers=3",
            "trainer.v1.trainer_mode=sync",
            f"rewardflow.reward={reward}",
            "rewardflow.rpm=600",
            "rewardflow.max_concurrency=256",
        ]
        ended_well(tmp_path / "run", settings)
        outcomes = judge.statistics().outcomes
    assert outcomes == {"answered": 128}  # two steps of 64, and no request was refused


def test_a_run_goes_on_from_verls_checkpoint_and_trains_every_prompt_once(materials: Materials, tmp_path: Path) -> None:
    """Saved after step 2 with two steps ahead, some of it judged and some not; the second part has one step ahead."""
    settings = [
        *verl_job.small(materials, steps=5),
        "trainer.save_freq=2",
        *judged_by("delayed", median_s=1.0),
    ]
    ended_well(tmp_path / "first", [*settings, "rewardflow.max_staleness=2"])
    resumed = [
        *settings,
        "trainer.resume_mode=resume_path",
        f"trainer.resume_from_path={tmp_path / 'first' / 'checkpoints' / 'global_step_2'}",
        f"trainer.rollout_data_dir={tmp_path / 'rollouts'}",
        "rewardflow.max_staleness=1",
    ]
    second = ended_well(tmp_path / "second", resumed)
    assert "Restored 8 training prompt groups" in second.output
    assert [step["step"] for step in second.metrics] == [3, 4, 5]
    assert second.column("rewardflow/groups/trained") == [4] * 3
    assert max(second.column("rewardflow/staleness/max")) <= 2
    lines = [line for file in (tmp_path / "rollouts").glob("*.jsonl") for line in file.read_text().split("\n") if line]
    sequences = Counter(int(json.loads(line)["gts"]) for line in lines)
    assert sequences == {index + 1: 4 for index in range(8, 20)}  # after two steps of four prompts: each once


def test_an_outage_of_the_judge_ends_the_run_with_its_reason(materials: Materials, tmp_path: Path) -> None:
    reward = tmp_path / "judge.yaml"
    with MockJudge(MockJudgeSettings()) as judge:
        reward.write_text(f"reward: llm_judge\nmodel: mock\nbase_urls: [{judge.base_url}]\n")
    settings = [  # the judge is gone
        *verl_job.small(materials),
        f"rewardflow.reward={reward}",
        "rewardflow.outage_give_up_s=5",
    ]
    outcome = verl_job.run(tmp_path / "run", settings, timeout_s=600)
    assert outcome.code != 0
    assert "AgentHalted: the reward agent gave up: ServiceOutage: " in outcome.output
    assert not outcome.metrics


def test_a_rollout_that_cannot_be_generated_leaves_its_group_out_where_the_reward_needs_all_of_it(
    materials: Materials, tmp_path: Path
) -> None:
    settings = [
        *verl_job.small(materials),
        *agent_loop("BrokenTool", tmp_path),
        *judged_by("Ranking"),
        "rewardflow.max_staleness=1",
    ]
    outcome = ended_well(tmp_path, settings)
    assert outcome.column("rewardflow/rollouts/not_generated") == [1, 0]
    assert outcome.column("rewardflow/groups/trained") == [3, 4]
    assert outcome.column("rewardflow/verdicts/scored") == [12, 16]
    assert outcome.column("rewardflow/verdicts/failed/cancelled") == [3]


def test_a_worker_that_dies_ends_the_run_with_the_reason(materials: Materials, tmp_path: Path) -> None:
    settings = [
        *verl_job.small(materials),
        *agent_loop("DyingProcess", tmp_path),
        *judged_by("delayed"),
    ]
    outcome = verl_job.run(tmp_path, settings, timeout_s=600)
    assert outcome.code != 0
    assert "FlowError: a worker that generates is gone, and its groups with it" in outcome.output
    assert len(outcome.metrics) == 1  # prompt 5 is of the second step


def agent_loop(name: str, folder: Path) -> list[str]:
    """Returns the settings for one of our agent loops."""
    file = folder / "agent_loops.yaml"
    file.write_text(f"- name: ours\n  _target_: verl_cpu_agent_loops.{name}\n")
    agent = "actor_rollout_ref.rollout.agent"
    return [f"{agent}.agent_loop_config_path={file}", f"{agent}.default_agent_loop=ours"]


def test_validation_goes_between_steps(materials: Materials, tmp_path: Path) -> None:
    settings = [
        *verl_job.small(materials),
        "trainer.test_freq=1",
        "data.val_max_samples=4",
        *judged_by("delayed", median_s=0.5),
        "rewardflow.max_staleness=1",
    ]
    outcome = ended_well(tmp_path, settings)
    assert outcome.column("rewardflow/groups/trained") == [4, 4]
    assert outcome.column("rewardflow/staleness/max") == [0, 1]
    assert len(outcome.column("val-core/toy/acc/mean@1")) == 2
    assert outcome.metrics[1]["rewardflow/busy_s/validate"] > 0  # after the first step, before the second


def test_a_sample_without_verdict_is_not_counted_as_wrong_in_validation(materials: Materials, tmp_path: Path) -> None:
    settings = [
        *verl_job.small(materials, steps=1),
        "trainer.test_freq=1",
        "data.val_max_samples=4",
        *judged_by("TroubledJudge"),  # has no verdict on the first three prompts, and at least 0.5 for others
        "rewardflow.timeout_s=5",
        "rewardflow.max_attempts=1",
    ]
    [metrics] = ended_well(tmp_path, settings).metrics
    assert metrics["val-core/toy/acc/mean@1"] == metrics["val-aux/toy/score/mean@1"] >= 0.5
    assert metrics["rewardflow/validation/without_verdict"] == 3
