"""The reward, as verl's `custom_reward_function` takes it: verl calls it with these four arguments."""

from typing import Any


async def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: dict[str, Any]) -> float:
    """A real one would ask a service: `await` a request here, and the agent makes hundreds of them at once."""
    return float(solution_str.strip().endswith(ground_truth))
