"""Plans a run before it starts: simulates the real loop and agent under each schedule, on a virtual clock.

    from rewardflow.plan import DeviceSettings, PlanSettings, make_plan

    plan = make_plan(PlanSettings(prompts=128, device=DeviceSettings(generation_s=60, update_s=90)))
    plan.recommendation

Always true: a plan runs the real loop and the real agent; only the generator, the trainer and the reward service are
simulated, and take time without doing work.
"""

from rewardflow.plan.plan_file import load_plan
from rewardflow.plan.planner import Plan, make_plan
from rewardflow.plan.settings import DeviceSettings, PlanSettings, PublishedRun, ServiceSettings

__all__ = ["DeviceSettings", "Plan", "PlanSettings", "PublishedRun", "ServiceSettings", "load_plan", "make_plan"]
