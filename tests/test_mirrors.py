"""Every module has a test file that mirrors it, or this file names the one that covers it, or says why none does."""

from __future__ import annotations

from collections.abc import Mapping, Set
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "rewardflow"
TESTS = ROOT / "tests"

# Modules that are tested by the file of another: through what uses them, or where a package lives that they need.
COVERED_BY: Mapping[str, str] = {
    "__main__": "cli/test_main.py",
    "adapters.trl.async_rollouts": "on_trl/test_async_rollouts.py",
    "adapters.trl.deferred_reward": "on_trl/test_trainer.py",
    "adapters.trl.failed_rows": "on_trl/test_trainer.py",
    "adapters.trl.generation_in_flight": "on_trl/test_trainer.py",
    "adapters.trl.trainer": "on_trl/test_trainer.py",
    "adapters.verl.accounting.board_actor": "in_verl/test_board_actor.py",
    "adapters.verl.accounting.run_files": "in_verl/test_runs.py",
    "adapters.verl.job_agent": "in_verl/test_lasting_cluster.py",
    "adapters.verl.launch.composition": "in_verl/test_composition.py",
    "adapters.verl.launch.main": "in_verl/test_runs.py",
    "adapters.verl.own_modes.sampler": "in_verl/test_runs.py",
    "adapters.verl.plugin": "in_verl/test_runs.py",
    "adapters.verl.reward_manager": "in_verl/test_runs.py",
    "adapters.verl.stored_rows": "in_verl/test_runs.py",
    "adapters.verl.training.agent_loop": "in_verl/test_runs.py",
    "adapters.verl.training.decoupled_loss": "in_verl/test_loss.py",
    "adapters.verl.training.replay_buffer": "in_verl/test_runs.py",
    "adapters.verl.training.trainer": "in_verl/test_runs.py",
    "adapters.verl.training.training_worker": "in_verl/test_runs.py",
    "answers.answer_row": "answers/test_reading.py",
    "answers.grouping": "answers/test_reading.py",
    "answers.plain_json": "answers/test_row_files.py",
    "bench.benchmark_row": "cli/test_bench.py",
    "bench.chaos.body_faults": "bench/chaos/test_hostile_server.py",
    "bench.chaos.exchange": "bench/chaos/test_hostile_server.py",
    "bench.chaos.judge_setup": "bench/chaos/test_mixed_answers.py",
    "bench.chaos.key_echoes": "bench/chaos/test_hostile_server.py",
    "bench.chaos.scenario": "bench/chaos/test_campaign.py",
    "bench.chaos.scoring_process": "bench/chaos/test_killed_scoring.py",
    "bench.chaos.status_faults": "bench/chaos/test_hostile_server.py",
    "bench.chaos.verdict_faults": "bench/chaos/test_hostile_server.py",
    "bench.chaos.wire_faults": "bench/chaos/test_hostile_server.py",
    "bench.contender": "bench/test_trainer.py",
    "bench.contenders.judged_workload": "bench/test_trl_ways.py",
    "bench.contenders.ours": "bench/test_trainer.py",
    "bench.contenders.trl_judged": "on_trl/test_ways.py",
    "bench.contenders.turns": "bench/test_trainer.py",
    "bench.contenders.workload": "bench/test_trainer.py",
    "bench.delayed_reward": "bench/test_schedules.py",
    "bench.learning.engine_dtype": "bench/learning/test_copying_runs.py",
    "bench.judging.prompt_reuse": "local_judge/test_prompt_reuse.py",
    "bench.observed_run": "bench/test_critical_path.py",
    "bench.schedule_figures": "bench/test_schedules.py",
    "bench.serving": "serve_outside/test_load.py",
    "bench.trainer_workload": "bench/test_trainer.py",
    "checkpoint.export_source": "cli/test_export.py",
    "checkpoint.exported_model": "cli/test_export.py",
    "checkpoint.manifest": "checkpoint/test_store.py",
    "checkpoint.random_state": "checkpoint/test_snapshot.py",
    "cli.command_table": "cli/test_main.py",
    "cli.demo.closing_report": "cli/demo/test_command.py",
    "cli.judge.paid_costs": "cli/judge/test_command.py",
    "cli.judge.shared_cap": "cli/judge/test_command.py",
    "cli.score.closing_report": "cli/score/test_command.py",
    "cli.setup.starter_files": "cli/setup/test_init.py",
    "cli.score.scoring": "cli/score/test_command.py",
    "cli.train.closing_report": "cli/train/test_command.py",
    "cli.train.totals": "cli/train/test_live_view.py",
    "cli.train.validation_text": "cli/train/test_live_view.py",
    "flow.protocols": "flow/test_fakes.py",
    "generate.hf.decoding": "generate/hf/test_engine.py",
    "generate.hf.factory": "generate/test_engines.py",
    "generate.responses": "generate/hf/test_engine.py",
    "generate.vllm.engine": "on_vllm/test_engine.py",
    "generate.vllm.factory": "generate/test_engines.py",
    "generate.vllm.worker": "on_vllm/test_engine.py",
    "mock_judge.batch_orders": "mock_judge/test_batch_endpoints.py",
    "mock_judge.response_bodies": "mock_judge/test_server.py",
    "plan.advice": "plan/test_planner.py",
    "plan.floors": "plan/test_simulate.py",
    "plan.formatting": "plan/test_plan_page.py",
    "plan.named_schedules": "plan/test_simulate.py",
    "plan.settings": "plan/test_simulate.py",
    "plan.simulated_figures": "plan/test_simulate.py",
    "plan.simulated_parts": "plan/test_simulate.py",
    "report.curve_catalogue": "report/test_run_page.py",
    "report.judges.rejudged_section": "cli/judge/test_rejudge.py",
    "report.page_frame": "report/test_run_page.py",
    "report.page_parts": "report/test_run_page.py",
    "report.sections": "report/test_run_page.py",
    "reward.agent_statistics": "reward/test_agent.py",
    "reward.background_agent": "reward/test_blocking.py",
    "reward.calls.account_parts": "reward/calls/test_dispatcher.py",
    "reward.calls.admission": "reward/calls/test_dispatcher.py",
    "reward.calls.attempt": "reward/calls/test_deadlines.py",
    "reward.calls.attempt_life": "reward/calls/test_dispatcher.py",
    "reward.calls.call_records": "reward/calls/test_dispatcher.py",
    "reward.calls.failed_calls": "reward/calls/test_dispatcher_retries.py",
    "reward.calls.giving_up": "reward/calls/test_dispatcher_outages.py",
    "reward.calls.hedging": "reward/calls/test_dispatcher.py",
    "reward.forwarding_ticket": "shared_agent/test_host.py",
    "reward.group_names": "reward/test_batch_function.py",
    "reward.groups.job": "reward/test_nothing_is_lost.py",
    "reward.ticket_agent": "reward/test_agent.py",
    "reward.trainer_ranks": "on_trl/test_ranks.py",
    "reward.journal.journal_requests": "reward/journal/test_verdict_journal.py",
    "reward.journal.journal_writer": "reward/journal/test_verdict_journal.py",
    "reward.open_rewards": "reward/test_agent_contract.py",
    "services.http.charged_tokens": "services/http/test_chat.py",
    "services.http.chat_answer": "services/http/test_chat.py",
    "services.http.connecting": "runtime/test_reward_probe.py",
    "runtime.memory_estimate": "runtime/test_preflight.py",
    "runtime.on_ray.cluster": "ray_cluster/test_cli.py",
    "runtime.on_ray.actor_group": "ray_cluster/test_cluster.py",
    "runtime.on_ray.engine_actor": "ray_cluster/test_cluster.py",
    "runtime.on_ray.generating_actor": "ray_cluster/test_cluster.py",
    "runtime.on_ray.rank_actor": "ray_cluster/test_cluster.py",
    "runtime.on_ray.ray_runtime": "ray_cluster/test_cluster.py",
    "runtime.open_run": "runtime/test_local.py",
    "runtime.peak_memory": "runtime/test_local.py",
    "runtime.records.step_checks": "runtime/test_local.py",
    "runtime.records.validation_records": "runtime/records/test_run_records.py",
    "runtime.run_agent": "runtime/test_local.py",
    "runtime.run_state": "runtime/test_resume.py",
    "services.batches.anthropic_batches": "services/batches/test_batch_client.py",
    "services.batches.batch_api": "services/batches/test_batch_sender.py",
    "services.batches.openai_batches": "services/batches/test_batch_client.py",
    "services.batches.settings": "services/batches/test_batch_client.py",
    "settings.cross_checks": "settings/test_run_settings.py",
    "settings.reward_kinds": "services/test_reward_file.py",
    "settings.sections.algorithm": "settings/test_run_settings.py",
    "settings.sections.audit": "runtime/test_audit.py",
    "settings.sections.data": "settings/test_run_settings.py",
    "settings.sections.generation": "generate/test_engines.py",
    "settings.sections.outputs": "settings/test_run_settings.py",
    "settings.sections.policy": "settings/test_run_settings.py",
    "settings.sections.runtime": "settings/test_run_settings.py",
    "settings.sections.training": "train/test_backends.py",
    "settings.sections.validation": "settings/test_run_settings.py",
    "shared_agent.messages": "shared_agent/test_host.py",
    "train.fsdp2.sharded_trainer": "train/fsdp2/test_sharded_loading.py",
    "train.megatron.attention": "on_megatron/test_ranks.py",
    "train.megatron.building": "on_megatron/test_ranks.py",
    "train.megatron.context": "on_megatron/test_ranks.py",
    "train.megatron.gradients": "on_megatron/test_ranks.py",
    "train.megatron.layout": "on_megatron/test_ranks.py",
    "train.megatron.pipeline": "on_megatron/test_ranks.py",
    "train.megatron.saved_state": "on_megatron/test_ranks.py",
    "train.megatron.trainer": "on_megatron/test_ranks.py",
    "train.megatron.vocabulary": "on_megatron/test_ranks.py",
    "train.megatron.weight_conversion": "on_megatron/test_ranks.py",
    "train.megatron.weight_files": "on_megatron/test_ranks.py",
    "train.memory_phase": "runtime/test_memory_plan.py",
}

# Modules that no test runs.
WHY_NOT: Mapping[str, str] = {
    "bench.agent": "measures for minutes; run by `make bench`",
    "bench.contenders.trl_grpo": "runs in an environment with TRL; run by `make bench-trainer`",
    "bench.contenders.verl_cpu": "runs in an environment with verl; run by `make bench-trainer`",
    "bench.contenders.verl_fsdp2": "runs in an environment with verl; run by `make bench-trainer`",
    "bench.scale": "measures Ray clusters for minutes; run by `rewardflow bench scale`",
    "bench.scale_training": "measures Ray clusters for minutes; run by `rewardflow bench scale`",
}


def mirror_of(module: str) -> str:
    """`reward/test_call.py` for `reward.call`."""
    *folders, name = module.split(".")
    return "/".join([*folders, f"test_{name.strip('_')}.py"])


def check_has_tests(
    module: str, test_files: Set[str], covered_by: Mapping[str, str], why_not: Mapping[str, str]
) -> list[str]:
    own, other = mirror_of(module), covered_by.get(module)
    if own in test_files:
        return [f"{module} has its own {own}; remove it from the table"] if other or module in why_not else []
    if other is not None:
        return [] if other in test_files else [f"{module} is said to be covered by {other}, which does not exist"]
    return [] if module in why_not else [f"{module} has no test: neither {own} nor an entry in COVERED_BY"]


def test_every_module_has_a_mirrored_test_or_an_entry_that_is_true() -> None:
    test_files = {path.relative_to(TESTS).as_posix() for path in TESTS.rglob("test_*.py")}
    names = (path.relative_to(PACKAGE).with_suffix("") for path in PACKAGE.rglob("*.py") if path.stem != "__init__")
    modules = {".".join(name.parts) for name in names}
    complaints = [
        line for module in sorted(modules) for line in check_has_tests(module, test_files, COVERED_BY, WHY_NOT)
    ]
    complaints += [
        f"the tables name {module}, which does not exist" for module in (*COVERED_BY, *WHY_NOT) if module not in modules
    ]
    assert not complaints, "\n".join(complaints)


def test_a_module_without_tests_is_found() -> None:
    assert check_has_tests("reward.call", {"reward/test_settings.py"}, {}, {}) != []
    assert check_has_tests("reward.call", {"reward/test_call.py"}, {}, {}) == []
    assert check_has_tests("reward.call", set(), {}, {"reward.call": "needs a GPU"}) == []


def test_an_entry_must_be_true_and_needed() -> None:
    entry = {"reward.call": "reward/test_agent.py"}
    assert check_has_tests("reward.call", {"reward/test_agent.py"}, entry, {}) == []
    assert check_has_tests("reward.call", {"reward/test_settings.py"}, entry, {}) != []
    assert check_has_tests("reward.call", {"reward/test_agent.py", "reward/test_call.py"}, entry, {}) != []
    assert check_has_tests("reward.call", {"reward/test_call.py"}, {}, {"reward.call": "needs a GPU"}) != []
