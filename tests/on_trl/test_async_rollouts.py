"""The rollout worker of TRL's asynchronous GRPO with the agent: TRL's own loops, with a server in vLLM's place.

Not run: TRL's trainer of this kind, which needs vLLM and moves weights with NCCL.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import pickle
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any

import datasets
import orjson
import pytest
import transformers
from accelerate.state import PartialState
from trl.experimental.async_grpo.async_rollout_worker import _AsyncRolloutLoop

import rewardflow as rf
from rewardflow.adapters.trl.async_rollouts import AsyncRolloutWorker, JudgingRolloutLoop

GROUP_SIZE = 2
GROUPS_AT_ONCE = 3


class Completions(BaseHTTPRequestHandler):
    """Answers like vLLM's `/v1/completions`: the digit 1, then the end."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        choice = {"token_ids": [3, 1], "logprobs": {"token_logprobs": [-0.5, -0.1]}}
        body = orjson.dumps({"choices": [choice]})
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Completions) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()
        thread.join()


def made(kind: Any, model: str, server: str, reward: Any, **settings: Any) -> Any:
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(model)
    tokenizer.chat_template = files("trl").joinpath("chat_templates/qwen2_5.jinja").read_text()
    context = multiprocessing.get_context("spawn")
    prompts = [[{"role": "user", "content": str(number)}] for number in range(8)]
    return kind(
        model_name="any",
        dataset=datasets.Dataset.from_dict({"prompt": prompts, "ground_truth": ["1"] * len(prompts)}),
        reward_funcs=[reward],
        processing_class=tokenizer,
        eos_token_ids=[1],
        rollout_buffer=context.Queue(),
        model_version_value=context.Value("i", 0),
        heartbeat_value=context.Value("d", 0.0),
        failed_event=context.Event(),
        exception_info_queue=context.Queue(maxsize=1),
        metrics_queue=context.Queue(maxsize=4096),
        num_generations=GROUP_SIZE,
        max_inflight_tasks=8,
        vllm_server_url=server,
        **settings,
    )


def samples_of(loop: Any, count: int) -> list[Any]:
    """The first samples that the loop hands over; then it is stopped as TRL stops it."""
    PartialState()  # as TRL's worker does first in its process
    thread = threading.Thread(target=loop.run)
    thread.start()
    try:
        return [loop.rollout_buffer.get(timeout=300) for _ in range(count)]
    finally:
        if thread.is_alive():
            loop._loop.call_soon_threadsafe(loop._stop_event.set)
        thread.join()
        loop.rollout_buffer.cancel_join_thread()


class Together:
    """A judge that answers when calls about several groups have begun."""

    def __init__(self) -> None:
        self.groups: set[str] = set()
        self.enough = asyncio.Event()

    async def compute_score(self, rollout: rf.Rollout) -> float:
        self.groups.add(rollout.group_id)
        if len(self.groups) >= GROUPS_AT_ONCE:
            self.enough.set()
        await self.enough.wait()
        return float(rollout.index)


def test_several_groups_are_at_the_judge_at_the_same_time(model: str, server: str) -> None:
    reward = rf.RewardAgent(Together).as_batch_function(group_size=GROUP_SIZE)
    loop = made(JudgingRolloutLoop, model, server, reward, max_judged_groups=4)
    samples = samples_of(loop, 4 * GROUP_SIZE)
    reward.close()
    assert len({sample.group_id for sample in samples}) == 4
    assert sorted(sample.metrics["reward"] for sample in samples) == [0.0] * 4 + [1.0] * 4
    assert {round(sample.advantage) for sample in samples} == {-1, 1}


def test_in_trls_own_loop_the_second_group_waits_for_the_first(model: str, server: str) -> None:
    at_once: list[int] = []

    class Counting:
        def __init__(self) -> None:
            self.open: set[str] = set()

        async def compute_score(self, rollout: rf.Rollout) -> float:
            self.open.add(rollout.group_id)
            at_once.append(len(self.open))
            await asyncio.sleep(0.01)
            self.open.discard(rollout.group_id)
            return 1.0

    reward = rf.RewardAgent(Counting).as_batch_function(group_size=GROUP_SIZE)
    samples_of(made(_AsyncRolloutLoop, model, server, reward), 3 * GROUP_SIZE)
    reward.close()
    assert max(at_once) == 1


def test_the_workers_process_gets_the_agent_by_pickle() -> None:
    """TRL checks this before it starts the process."""
    reward = rf.RewardAgent(Together, max_concurrency=64).as_batch_function(group_size=GROUP_SIZE)
    assert pickle.loads(pickle.dumps({"reward_funcs": [reward]}))["reward_funcs"][0].__name__ == reward.__name__
    assert AsyncRolloutWorker._loop_cls is JudgingRolloutLoop
