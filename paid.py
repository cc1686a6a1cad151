import time

import rewardflow as rf


def compute_score(solution_str):
    rf.report_usage(cost_usd=1.0); time.sleep(60)
