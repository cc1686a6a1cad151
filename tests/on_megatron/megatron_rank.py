"""What a rank of each layout runs, in a process of its own, and how the processes are started."""

from __future__ import annotations

import asyncio
import socket
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from cpu_shim import CudaIsCpu, pretend_cuda
from layouts import (
    ALGORITHM,
    FAMILIES,
    LAYOUTS,
    NUM_STEPS,
    SAVED_AT,
    Case,
    make_model,
    micro_batches,
    samples_of,
    settings,
    train,
)
from tiny_training import MAX_RESPONSE_TOKENS, TEMPERATURE, batch
from torch import Tensor

from rewardflow.flow.device_thread import DeviceThread


class Rank:
    """One rank of a layout, which makes trainers."""

    def __init__(self, case: Case, layout: Any, thread: DeviceThread) -> None:
        self.case = case
        self.layout = layout
        self.thread = thread

    def do(self, compute: Callable[[], Any]) -> Any:
        return asyncio.run(self.thread.run(compute))

    def trainer(self, family: str, *, seed: int = 0, **fields: Any) -> Any:
        from rewardflow.policy.weights_by_name import weights_of
        from rewardflow.train.megatron.trainer import MegatronTrainer

        model = make_model(family, seed)
        recompute = fields.pop("recompute", False)
        return self.do(
            lambda: MegatronTrainer(
                model.config,
                weights_of(model),
                layout=self.layout,
                trainer=settings(self.case.megatron, **fields),
                algorithm=ALGORITHM,
                uses_old=True,
                temperature=TEMPERATURE,
                max_response_tokens=MAX_RESPONSE_TOKENS,
                total_steps=10,
                thread=self.thread,
                reference=weights_of(make_model(family, seed=1)),
                recompute=recompute,
            )
        )

    def train(self, trainer: Any, steps: range) -> list[Any]:
        return asyncio.run(train(trainer, steps, self.layout.data.rank, self.case.num_replicas))

    def weights(self, trainer: Any) -> dict[str, Tensor]:
        return self.do(lambda: {name: weight.clone() for name, weight in trainer.weights()})

    def save(self, trainer: Any, folder: Path) -> None:
        asyncio.run(trainer.take()).write(folder, group=dist.group.WORLD)

    def put_back(self, trainer: Any, folder: Path) -> None:
        asyncio.run(trainer.put_back(folder))


def train_family(rank: Rank, family: str, directory: Path) -> dict[str, Any]:
    """Five steps; then the last two again, from a checkpoint of its own and from one of the other trainer."""
    trainer = rank.trainer(family)
    found: dict[str, Any] = {"initial": rank.weights(trainer)}
    rollouts = [sample.rollout for part in micro_batches(0, *_share(rank)) for sample in part]
    found["log_probs"] = {of: list(asyncio.run(trainer.log_probs(rollouts, of))) for of in ("policy", "reference")}
    found["reports"] = rank.train(trainer, range(SAVED_AT))
    rank.save(trainer, directory / "state" / family)
    found["reports"] += rank.train(trainer, range(SAVED_AT, NUM_STEPS))
    found["weights"] = rank.weights(trainer)
    found["statistics"] = trainer.statistics()
    for name, folder in (("resumed", directory / "state" / family), ("continued", directory.parent / "one" / family)):
        other = rank.trainer(family, seed=2)
        rank.put_back(other, folder)
        found[name] = {
            "reports": rank.train(other, range(SAVED_AT, NUM_STEPS)),
            "weights": rank.weights(other),
        }
    return found


def norms(rank: Rank) -> dict[str, Any]:
    """The first update's norm, by how it is cut into calls; with activations computed twice; in bfloat16."""
    found = {}
    for name, fields in (
        ("cut", {}),
        ("whole", {}),
        ("recomputed", {"recompute": True}),
        ("offload", {"offload": True}),
    ):
        trainer = rank.trainer("qwen2", **fields)
        found[name] = asyncio.run(_first_update(trainer, rank, is_cut=name != "whole"))
    trainer = rank.trainer("qwen2", autocast="bfloat16")
    found["bfloat16"] = asyncio.run(_first_update(trainer, rank, is_cut=True))
    taken = asyncio.run(trainer.take())
    found["dtypes"] = {tensor.dtype for tensor in taken.state.values()}
    return found


async def _first_update(trainer: Any, rank: Rank, *, is_cut: bool) -> float:
    parts = micro_batches(0, *_share(rank), is_cut=is_cut)
    async with trainer.step(0):
        for number, part in enumerate(parts):
            await trainer.forward_backward(batch(part, is_last=number == len(parts) - 1))
        return (await trainer.optim_step()).grad_norm


def left_out(rank: Rank) -> dict[str, Any]:
    """Updates that change nothing: without a verdict, and with a gradient that is not finite."""
    trainer = rank.trainer("qwen2")
    before = rank.weights(trainer)
    failed = [sample for sample in samples_of(0) if not sample.is_scored]
    broken = [replace(sample, advantage=float("nan")) for sample in samples_of(0) if sample.is_scored][:3]

    async def run() -> list[Any]:
        reports = []
        for step, samples in enumerate((failed, broken)):
            async with trainer.step(step):
                await trainer.forward_backward(batch(samples))
                reports.append(await trainer.optim_step())
        return reports

    reports = asyncio.run(run())
    after = rank.weights(trainer)
    return {
        "metrics": [report.metrics for report in reports],
        "same": all(torch.equal(before[name], after[name]) for name in before),
        "statistics": trainer.statistics(),
    }


def exported(rank: Rank, directory: Path) -> dict[str, dict[str, Tensor]]:
    """Written to a folder for each family; and what another model has when it has read them from there."""
    from rewardflow.policy.weights_by_name import weights_in
    from rewardflow.train.megatron.weight_conversion import fill
    from rewardflow.train.megatron.weight_files import write_weights

    found = {}
    for family in FAMILIES:
        folder = directory / "export" / family
        folder.mkdir(parents=True, exist_ok=True)
        part, other = rank.trainer(family).part, rank.trainer(family, seed=2)
        rank.do(lambda part=part, folder=folder: write_weights(part, folder, max_bytes=1 << 14))
        rank.do(lambda other=other, folder=folder: fill(other.part, weights_in(folder)))
        found[family] = rank.weights(other)
    return found


def vocabulary(rank: Rank) -> dict[str, Tensor]:
    """Log-probs, entropy and gradient of logits that the ranks of the tensor axis share."""
    from rewardflow.train.megatron.vocabulary import Words, vocabulary_log_probs

    whole_NV, token_ids_N = logits_and_tokens()
    axis = rank.layout.tensor
    width = -(-whole_NV.shape[1] // axis.size)
    part_NW = torch.nn.functional.pad(whole_NV, (0, width * axis.size - whole_NV.shape[1]), value=9.0)
    part_NW = part_NW[:, axis.rank * width :][:, :width].clone().requires_grad_()
    words = Words.of(whole_NV.shape[1], axis)
    scores = vocabulary_log_probs(
        part_NW, token_ids_N, words, temperature=0.7, entropy="trained", logits_at_a_time=2 * width
    )
    assert scores.entropy_N is not None
    (scores.log_probs_N * torch.arange(7) + scores.entropy_N * 0.3).sum().backward()
    return {"log_probs": scores.log_probs_N, "entropy": scores.entropy_N, "grad": part_NW.grad[:, : words.count]}


def logits_and_tokens() -> tuple[Tensor, Tensor]:
    dice = torch.Generator().manual_seed(3)
    return torch.randn(7, 17, generator=dice) * 4, torch.randint(17, (7,), generator=dice)


def _share(rank: Rank) -> tuple[int, int]:
    return rank.layout.data.rank, rank.case.num_replicas


def run_rank(rank: int, port: int, name: str, directory: str) -> None:
    with _entered(rank, port, LAYOUTS[name]) as one:
        folder = Path(directory)
        found: dict[str, Any] = {family: train_family(one, family, folder) for family in FAMILIES}
        found |= {
            "norms": norms(one),
            "left_out": left_out(one),
            "vocabulary": one.do(lambda: vocabulary(one)),
            "read": exported(one, folder),
            "place": (one.layout.tensor.rank, one.layout.pipeline.rank, one.layout.context.rank, one.layout.data.rank),
        }
        torch.save(found, folder / f"{rank}.pt")


@contextmanager
def _entered(rank: int, port: int, case: Case) -> Iterator[Rank]:
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="Transformer Engine and Apex")
    pretend_cuda()
    from rewardflow.train.megatron.layout import entered_layout

    store = dist.TCPStore("127.0.0.1", port, case.num_ranks, is_master=rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=case.num_ranks)
    try:
        with DeviceThread("trainer") as thread:
            asyncio.run(thread.run(CudaIsCpu().__enter__))  # until the thread ends
            layout = entered_layout(case.megatron, torch.device("cpu"))
            entered = asyncio.run(thread.run(layout.__enter__))
            yield Rank(case, entered, thread)
            asyncio.run(thread.run(lambda: layout.__exit__(None, None, None)))
    finally:
        dist.destroy_process_group()


def spawn(name: str, directory: Path) -> list[dict[str, Any]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    num_ranks = LAYOUTS[name].num_ranks
    torch.multiprocessing.spawn(run_rank, args=(port, name, str(directory)), nprocs=num_ranks)
    return [torch.load(directory / f"{rank}.pt", weights_only=False) for rank in range(num_ranks)]
