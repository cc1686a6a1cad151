"""What overlapping would buy, before a run starts: the project's own loop and agent, on a clock that jumps.

    from rewardflow.plan import DeviceSettings, PlanSettings, make_plan

    plan = make_plan(PlanSettings(prompts=128, device=DeviceSettings(generation_s=60, update_s=90)))
    plan.recommendation

Always true: nothing here models the loop or the agent a second time; only the generator, the trainer and the reward
service are stand-ins that take time.
"""

from rewardflow.plan.plan_file import load_plan
from rewardflow.plan.planner import Plan, make_plan
from rewardflow.plan.settings import DeviceSettings, PlanSettings, PublishedRun, ServiceSettings

__all__ = ["DeviceSettings", "Plan", "PlanSettings", "PublishedRun", "ServiceSettings", "load_plan", "make_plan"]
