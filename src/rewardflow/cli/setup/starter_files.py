"""The files that `rewardflow init` writes, for each kind of reward.

Always true: the files of a case work together as they are: `rewardflow train run.yaml --check` accepts them, with the
mock judge where a judge is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

Case = Literal["function", "judge", "rule-and-judge"]

CASES: Final[Mapping[Case, str]] = {
    "function": "a function of your own",
    "judge": "an LLM judge",
    "rule-and-judge": "a rule first, and a judge for what it leaves open",
}

_REWARD = '''"""The reward of this run: a function that scores one response."""

from __future__ import annotations


async def compute_score(response: str, ground_truth: str) -> float:
    """Returns the share of characters that are in their places. Await your own service here."""
    right = sum(ours == theirs for ours, theirs in zip(response, ground_truth, strict=False))
    return right / max(len(response), len(ground_truth), 1)
'''

_JUDGE = """\
# An OpenAI-compatible judge. For a real one: its model and address, and the variable that holds your key.
reward: llm_judge
model: {model}
base_urls: [{url}]
{key}prices: {{input_usd_per_million: 0.4, output_usd_per_million: 1.6}}
"""

_CASCADE = """\
# The rule scores the right answers; only the others cost a call to the judge.
reward: cascade
first: {{reward: regex, answer: '[0-9]+'}}
then:
  reward: llm_judge
  model: {model}
  base_urls: [{url}]
  {key}prices: {{input_usd_per_million: 0.4, output_usd_per_million: 1.6}}
ask_below: 1.0
"""

_RUN = """\
# What each key means: docs/configuration.md, or `rewardflow train --schema` for your editor.
reward: {reward}
data: {{task: copy_digits}}         # your own prompts: {{path: prompts.jsonl}}
policy: {{model: tiny}}             # your own model: a folder or a name on the Hugging Face hub
schedule: {{groups_per_step: 16, mini_batches: 4, stream: mini_batch, max_staleness: 1}}
generation: {{group_size: 16, max_prompt_tokens: 16, max_response_tokens: 4}}
algorithm: {{entropy_coef: 0.1}}
trainer: {{lr: 1e-3, lr_schedule: cosine}}
limits: {{max_concurrency: 64, max_cost_usd: 10}}
steps: 120
run_dir: runs/first
"""


def starter_files(case: Case, *, model: str, url: str, key_env: str | None) -> dict[str, str]:
    """Returns the contents of each file by its name."""
    key = "" if key_env is None else f"api_key_env: {key_env}\n"
    if case == "function":
        return {"run.yaml": _run("reward.py:compute_score", is_paid=False), "reward.py": _REWARD}
    if case == "judge":
        return {"run.yaml": _run("judge.yaml"), "judge.yaml": _JUDGE.format(model=model, url=url, key=key)}
    judge = _CASCADE.format(model=model, url=url, key=key and f"{key}  ")
    return {"run.yaml": _run("judge.yaml"), "judge.yaml": judge}


def _run(reward: str, *, is_paid: bool = True) -> str:
    text = _RUN.format(reward=reward)
    return text if is_paid else text.replace(", max_cost_usd: 10", "")
