"""Scores a batch as a reward worker of verl does, with its own loader and manager and our function over the server.

    REWARDFLOW_URL=... python tests/in_verl/http_reward_worker.py FIRST COUNT

Also for other releases: put one in front of PYTHONPATH. Prints the release and the scores as JSON.
"""

from __future__ import annotations

import json
import sys

import numpy
import torch
import verl
from omegaconf import OmegaConf
from verl import DataProto
from verl.trainer.ppo.reward import get_custom_reward_fn
from verl.workers.reward_manager.naive import NaiveRewardManager

from rewardflow.adapters import http_reward

LENGTH = 4


class Digits:
    """A tokenizer whose tokens are the digits."""

    def decode(self, ids: torch.Tensor, skip_special_tokens: bool = True) -> str:
        return "".join(str(int(one)) for one in ids)


def main(first: int, count: int) -> None:
    responses = torch.tensor(
        [[int(digit) for digit in f"{number:0{LENGTH}d}"] for number in range(first, first + count)]
    )
    prompts = torch.ones_like(responses)
    rows = DataProto.from_dict(
        tensors={
            "prompts": prompts,
            "responses": responses,
            "attention_mask": torch.ones((count, 2 * LENGTH), dtype=torch.int64),
        },
        non_tensors={
            "reward_model": numpy.array([{"ground_truth": str(number)} for number in range(count)], dtype=object),
            "data_source": numpy.array(["digits"] * count, dtype=object),
            "extra_info": numpy.array([{"question": "digits?"} for _ in range(count)], dtype=object),
        },
    )
    function = {"path": http_reward.__file__, "name": "compute_score", "reward_kwargs": {}}
    config = OmegaConf.create({"custom_reward_function": function, "reward": {"custom_reward_function": function}})
    manager = NaiveRewardManager(Digits(), 0, compute_score=get_custom_reward_fn(config))
    scores = manager(rows).sum(-1).tolist()
    sys.stdout.write(json.dumps({"verl": verl.__version__, "scores": scores}) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
