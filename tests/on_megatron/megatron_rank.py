"""What a rank of each layout runs, in a process of its own, and how the processes are started."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from cpu_shim import CudaIsCpu, pretend_cuda
from gloo_ranks import gloo_rank, spawn_ranks
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
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

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
    """Log-probs, entropy and gradients of a head whose words the ranks of the tensor axis share."""
    from rewardflow.algo.head_softmax import head_softmax
    from rewardflow.train.megatron.vocabulary import own_words

    hidden_ND, weight_VD, token_ids_N = head_and_tokens()
    axis, num_words = rank.layout.tensor, len(weight_VD)
    width = -(-num_words // axis.size)
    padded_VD = torch.nn.functional.pad(weight_VD, (0, 0, 0, width * axis.size - num_words), value=9.0)
    part_WD = padded_VD[axis.rank * width :][:width].clone().requires_grad_()
    own = own_words(num_words, axis)
    found = {}
    for name, kept_logits in (("blocks", 2 * len(hidden_ND)), ("at_once", 1 << 20)):
        hidden_ND, part_WD = (one.detach().clone().requires_grad_() for one in (hidden_ND, part_WD))
        log_probs_N, entropy_N = head_softmax(
            hidden_ND, part_WD, None, token_ids_N, temperature=0.7, entropy="trained", kept_logits=kept_logits, own=own
        )
        head_loss(log_probs_N, entropy_N).backward()
        count = num_words if own is None else own.count
        assert part_WD.grad is not None
        assert not part_WD.grad[count:].any()
        found[name] = {"log_probs": log_probs_N, "entropy": entropy_N, "weight": part_WD.grad[:count]}
        found[name]["hidden"] = hidden_ND.grad
    return found


def head_and_tokens() -> tuple[Tensor, Tensor, Tensor]:
    dice = torch.Generator().manual_seed(3)
    hidden_ND, weight_VD = torch.randn(7, 5, generator=dice), torch.randn(17, 5, generator=dice) * 2
    return hidden_ND, weight_VD, torch.randint(17, (7,), generator=dice)


def head_loss(log_probs_N: Tensor, entropy_N: Tensor | None) -> Tensor:
    assert entropy_N is not None
    return (log_probs_N * torch.arange(7) + entropy_N * 0.3).sum()


def few_logits(rank: Rank) -> dict[str, Any]:
    """Scores and gradients of a pass with all logits at a time and with few; and what had an entry for each logit."""
    from rewardflow.train.packing import TokenRow, pack

    packed = pack([TokenRow.of(sample.rollout) for sample in samples_of(0)], torch.device("cpu"))
    found = {}
    for dtype in ("float32", "bfloat16"):
        trainer = rank.trainer("qwen2", autocast=dtype)
        for name, kept_logits in (("all", 1 << 20), ("few", 3 * len(packed.token_ids_N))):
            one_pass = partial(_one_pass, rank, trainer, packed, kept_logits)
            found[dtype, name] = rank.do(one_pass)
    return found


def _one_pass(rank: Rank, trainer: Any, packed: Any, kept_logits: int) -> dict[str, Any]:
    from rewardflow.train.megatron.vocabulary import own_words

    scores: list[Tensor] = []

    def lose(_number: int, found: Any) -> Tensor:
        scores.extend([found.log_probs_N.detach(), found.entropy_N.detach()])
        return (found.log_probs_N + 0.1 * found.entropy_N).sum()

    pipeline = replace(trainer._pipeline, kept_logits=kept_logits)
    with Shapes() as watch:
        pipeline.run([packed], lose, entropy="trained", backward=True)
    gradients = {name: weight.main_grad.clone() for name, weight in trainer.part.gpt.named_parameters()}
    trainer._clear_gradients()
    num_tokens = len(pipeline._places(packed).index_N)
    own = own_words(trainer.part.shape.vocabulary, rank.layout.tensor)
    num_words = trainer.part.shape.vocabulary if own is None else own.count
    whole = [shape for shape in watch.shapes if num_tokens in shape and num_words in shape]
    return {"scores": scores, "gradients": gradients, "whole": whole, "is_last": rank.layout.pipeline.is_last}


class Shapes(TorchDispatchMode):
    """Collects the shapes of all tensors that are made, also in backward passes."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: set[tuple[int, ...]] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        self.shapes.update(tuple(one.shape) for one in tree_iter(made) if isinstance(one, Tensor))
        return made


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
            "few_logits": few_logits(one),
            "read": exported(one, folder),
            "place": (one.layout.tensor.rank, one.layout.pipeline.rank, one.layout.context.rank, one.layout.data.rank),
        }
        torch.save(found, folder / f"{rank}.pt")


@contextmanager
def _entered(rank: int, port: int, case: Case) -> Iterator[Rank]:
    warnings.filterwarnings("ignore", message="Transformer Engine and Apex")
    pretend_cuda()
    from rewardflow.train.megatron.layout import entered_layout

    with gloo_rank(rank, port, case.num_ranks), DeviceThread("trainer") as thread:
        asyncio.run(thread.run(CudaIsCpu().__enter__))  # until the thread ends
        layout = entered_layout(case.megatron, torch.device("cpu"))
        entered = asyncio.run(thread.run(layout.__enter__))
        yield Rank(case, entered, thread)
        asyncio.run(thread.run(lambda: layout.__exit__(None, None, None)))


def spawn(name: str, directory: Path) -> list[dict[str, Any]]:
    num_ranks = LAYOUTS[name].num_ranks
    spawn_ranks(run_rank, num_ranks, name, str(directory))
    return [torch.load(directory / f"{rank}.pt", weights_only=False) for rank in range(num_ranks)]
