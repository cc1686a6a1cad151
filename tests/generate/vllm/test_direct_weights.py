"""What a rank that sends by NCCL asks of engines elsewhere. The sending itself needs GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rewardflow.generate.vllm.direct_weights import RemoteEngineClient


def test_every_worker_of_every_engine_has_a_place_of_its_own_after_the_one_that_sends() -> None:
    asked: list[tuple[str, Sequence[dict[str, Any]]]] = []
    client = RemoteEngineClient(lambda call, infos: asked.append((call, infos)), num_engines=3, workers_each=2)
    client.init_weight_transfer_engine({"rank_offset": 1, "world_size": client.world_size})
    ((call, infos),) = asked
    assert call == "meet"
    places = [place for info in infos for place in range(info["rank_offset"], info["rank_offset"] + 2)]
    assert places == list(range(1, client.world_size))


def test_an_update_is_started_and_sent_to_all_and_ended_by_whoever_publishes() -> None:
    asked: list[tuple[str, Sequence[dict[str, Any]]]] = []
    client = RemoteEngineClient(lambda call, infos: asked.append((call, infos)), num_engines=2, workers_each=1)
    client.start_weight_update()
    client.update_weights({"names": ["a"]})
    client.finish_weight_update()
    assert asked == [("start", [{}, {}]), ("update", [{"names": ["a"]}] * 2)]
