"""The order in which an engine is told of pieces. That it then has the weights is tested on a real one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from small_models import dense

from rewardflow.errors import FlowError
from rewardflow.generate.vllm.saved_form import SavedForm, SavedSize
from rewardflow.generate.vllm.senders import PulledWeights, PushedWeights, Synchronized, packed_buffer_bytes
from rewardflow.generate.vllm.weight_source import ModelWeights
from rewardflow.settings.run_settings import VllmSettings, WeightTransfer

MODEL = dense(is_tied=False)


class Engine:
    """Notes what it is asked for, and the names in the files that it is to read."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.names: list[str] = []
        self.folder = Path()
        self.files_at_once = 0

    def init_weight_transfer_engine(self, _: dict[str, Any]) -> None:
        self.asked.append("init")

    def start_weight_update(self) -> None:
        self.asked.append("start")

    def begin_update(self, info: dict[str, Any]) -> Callable[[], None]:
        self.asked.append("update")
        self.folder = Path(info["path"]).parent
        return lambda: self._read(info["path"])  # as late as it may

    def finish_weight_update(self) -> None:
        self.asked.append("finish")

    def reload_from_files(self, paths: list[str]) -> None:
        self.asked.append("reload")
        for path in paths:
            self._read(path)

    def _read(self, path: str) -> None:
        self.folder = Path(path).parent
        self.files_at_once = max(self.files_at_once, len(list(self.folder.iterdir())))
        self.names += load_file(path)


def pushed(transfer: WeightTransfer, engine: Engine) -> PushedWeights:
    settings = VllmSettings(transfer=transfer)
    return PushedWeights(settings, engine, SavedForm(MODEL, torch.float32))  # type: ignore[arg-type]


def put_all(sender: PushedWeights) -> None:
    for name, weight in MODEL.named_parameters():
        sender.put({name: weight})


NAMES = sorted(dict(MODEL.named_parameters()))


def test_pieces_are_read_one_by_one_between_the_start_and_the_end_of_an_update() -> None:
    engine = Engine()
    sender = pushed("shared_memory", engine)
    for _ in range(2):
        assert not sender.is_under_way
        put_all(sender)
        assert sender.is_under_way
        sender.send_weights()
        assert engine.files_at_once == 2  # the next one was there before the last was read
    once = ["start", *["update"] * len(NAMES), "finish"]
    assert engine.asked == ["init", *once, *once]
    assert sorted(engine.names) == sorted(NAMES * 2)
    assert not engine.folder.exists()


def test_reloading_reads_all_pieces_at_the_end() -> None:
    engine = Engine()
    sender = pushed("reload", engine)
    put_all(sender)
    assert engine.asked == []
    sender.send_weights()
    assert engine.asked == ["reload"]
    assert sorted(engine.names) == NAMES


def test_weights_that_are_not_all_there_are_not_ended_and_leave_nothing() -> None:
    engine = Engine()
    sender = pushed("shared_memory", engine)
    with pytest.raises(FlowError, match="must be given weights before they are a version"):
        sender.send_weights()
    sender.put({"lm_head.weight": MODEL.lm_head.weight})
    with pytest.raises(FlowError, match="must be all of the policy's"):
        sender.send_weights()
    sender.shutdown()
    assert engine.asked == ["init", "start", "update"]
    assert not engine.folder.exists()


def test_a_trainer_in_this_process_sends_all_that_it_has() -> None:
    engine = Engine()
    weights = ModelWeights(MODEL, torch.float32)
    PulledWeights(VllmSettings(), engine, weights).send_weights()  # type: ignore[arg-type]
    assert engine.asked == ["init", "start", "update", "finish"]
    assert sorted(engine.names) == NAMES


def test_a_packed_buffer_holds_the_largest_weight_and_is_never_small() -> None:
    embedding = 152_064 * 3584 * 2  # Qwen2.5-7B's in bfloat16: more than a gibibyte
    assert packed_buffer_bytes(SavedSize(15 * 2**30, embedding)) == embedding > 2**30
    assert packed_buffer_bytes(SavedSize(10, 10)) == 2**30


def test_an_error_of_the_engine_about_one_piece_ends_the_update_and_leaves_nothing() -> None:
    class Refuses(Engine):
        def _read(self, path: str) -> None:
            raise FlowError("no memory")

    engine = Refuses()
    sender = pushed("shared_memory", engine)
    sender.put({"lm_head.weight": MODEL.lm_head.weight})
    with pytest.raises(FlowError, match="no memory"):
        sender.put({"model.norm.weight": MODEL.model.norm.weight})
    sender.shutdown()
    assert "finish" not in engine.asked
    assert not engine.folder.exists()


def test_a_synchronized_sender_passes_everything_on() -> None:
    engine = Engine()
    sender = Synchronized(PulledWeights(VllmSettings(), engine, ModelWeights(MODEL, torch.float32)))  # type: ignore[arg-type]
    sender.send_weights()
    sender.shutdown()
    assert engine.asked[-1] == "finish"
