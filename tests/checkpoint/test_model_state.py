"""Weights and optimizer state, there and back."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from gloo_ranks import spawn_ranks
from state_ranks import Model, adam, model_of, run_rank, step, weights
from torch import nn

from rewardflow.checkpoint.model_state import copied, give_state, read_state, state_of, write_state
from rewardflow.errors import CheckpointError, InvalidInput

torch.set_num_threads(1)


def trained(num_steps: int) -> tuple[Model, torch.optim.Optimizer]:
    model = model_of(seed=0)
    optimizer = adam(model)
    for number in range(num_steps):
        step(model, optimizer, seed=number)
    return model, optimizer


def saved(folder: Path, num_steps: int) -> tuple[Model, torch.optim.Optimizer]:
    model, optimizer = trained(num_steps)
    write_state(state_of(model, optimizer), folder)
    return model, optimizer


def test_what_goes_on_is_bit_for_bit_what_would_have_gone_on(tmp_path: Path) -> None:
    model, optimizer = saved(tmp_path, num_steps=2)
    again = model_of(seed=9)
    other = adam(again)
    again.counter.zero_()
    read_state(tmp_path, again, other)
    assert again.counter == 3
    for number in (2, 3):
        step(model, optimizer, seed=number)
        step(again, other, seed=number)
    assert torch.equal(weights(again), weights(model))


@pytest.mark.parametrize(("counts_there", "place"), [(True, "meta"), (False, "cpu")])
def test_counters_are_put_where_the_update_reads_them(counts_there: bool, place: str) -> None:
    weight = nn.Parameter(torch.zeros(3, device="meta"))  # stands for a GPU, where a fused update counts
    optimizer = torch.optim.AdamW([weight], capturable=counts_there)
    moment = torch.zeros(3, device="meta")
    give_state(optimizer, {weight: {"step": torch.tensor(5.0), "exp_avg": moment, "exp_avg_sq": moment}})
    assert optimizer.state[weight]["step"].device.type == place
    assert optimizer.state[weight]["exp_avg"] is moment


def test_saving_changes_nothing_also_of_an_optimizer_that_has_not_stepped(tmp_path: Path) -> None:
    model, optimizer = saved(tmp_path, num_steps=0)
    assert not optimizer.state
    untouched, other = trained(0)
    again = model_of(seed=9)
    third = adam(again)
    step(again, third, seed=5)  # what it remembers must go
    read_state(tmp_path, again, third)
    assert not third.state
    for one in ((model, optimizer), (untouched, other), (again, third)):
        step(*one, seed=0)
    assert torch.equal(weights(model), weights(untouched))
    assert torch.equal(weights(again), weights(untouched))


def test_a_copy_does_not_change_with_the_original() -> None:
    model, optimizer = trained(1)
    state = copied(state_of(model, optimizer))
    before = {name: tensor.clone() for name, tensor in state.items()}
    step(model, optimizer, seed=1)
    assert all(torch.equal(state[name], before[name]) for name in before)
    assert "optimizer.first.weight.exp_avg" in before


def test_tied_weights_are_saved_once_and_come_back_tied(tmp_path: Path) -> None:
    def tied() -> nn.Module:
        model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
        model[1].weight = model[0].weight
        return model

    model, again = tied(), tied()
    optimizer = adam(model)
    assert set(state_of(model, optimizer)) == {"model.0.weight"}
    write_state(state_of(model, optimizer), tmp_path)
    read_state(tmp_path, again)
    assert torch.equal(again[1].weight, model[0].weight)


def test_another_model_is_refused_with_what_differs(tmp_path: Path) -> None:
    saved(tmp_path, num_steps=1)
    with pytest.raises(InvalidInput, match=r"first.weight was \(7, 5\) and is \(8, 5\)"):
        read_state(tmp_path, Model(width=8))
    with pytest.raises(InvalidInput, match=r"and is None.* others"):
        read_state(tmp_path, nn.Linear(2, 2))


def test_what_cannot_be_read_or_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="could not be read"):
        read_state(tmp_path / "nowhere", model_of(0))
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="could not be written"):
        write_state(state_of(*trained(0)), tmp_path / "file")


def test_only_the_owner_may_enter_the_folder(tmp_path: Path) -> None:
    model = model_of(seed=0)
    write_state(state_of(model, adam(model)), tmp_path / "state")
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700


def test_only_the_owner_may_read_the_files_whatever_the_umask_is(tmp_path: Path) -> None:
    """Also where the folder is copied or opened to others later."""
    model = model_of(seed=0)
    before = os.umask(0)
    try:
        write_state(state_of(model, adam(model)), tmp_path / "state")
    finally:
        os.umask(before)
    assert {file.stat().st_mode & 0o777 for file in (tmp_path / "state").iterdir()} == {0o600}


def test_a_link_in_the_place_of_a_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    for name in ("__0_0.distcp", ".metadata.tmp"):
        (tmp_path / name).write_text("somebody else's")
        (tmp_path / "state" / name).symlink_to(tmp_path / name)
    model = model_of(seed=0)
    with pytest.raises(CheckpointError, match="could not be written"):
        write_state(state_of(model, adam(model)), tmp_path / "state")
    assert {(tmp_path / name).read_text() for name in ("__0_0.distcp", ".metadata.tmp")} == {"somebody else's"}


def test_folders_above_the_state_are_made(tmp_path: Path) -> None:
    model = model_of(seed=0)
    write_state(state_of(model, adam(model)), tmp_path / "run" / "step" / "state")
    read_state(tmp_path / "run" / "step" / "state", model_of(seed=9))


def test_another_number_of_ranks_goes_on_with_the_same_numbers(tmp_path: Path) -> None:
    """One process saves, two go on and save, one goes on."""
    model, optimizer = saved(tmp_path / "one", num_steps=2)
    spawn_ranks(run_rank, 2, str(tmp_path))
    again = model_of(seed=9)
    other = adam(again)
    read_state(tmp_path / "two", again, other)
    step(again, other, seed=3)
    for number in (2, 3):
        step(model, optimizer, seed=number)
    torch.testing.assert_close(weights(again), weights(model), rtol=0, atol=1e-5)
    for rank in range(2):
        torch.testing.assert_close(torch.load(tmp_path / f"{rank}.pt"), weights(model), rtol=0, atol=1e-5)
