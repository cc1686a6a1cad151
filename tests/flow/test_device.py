"""One holder at a time, the most important first."""

import asyncio

import pytest

from rewardflow import clock
from rewardflow.flow.device import Device
from rewardflow.flow.device_usage import Work
from rewardflow.observe.events import DeviceIdled, DeviceWorked, EventList


async def use(device: Device, work: Work, done: list[str], duration_s: float = 1.0) -> None:
    async with device.lease(work, 0):
        await asyncio.sleep(duration_s)
        done.append(work)


def test_those_who_wait_are_served_by_importance_and_then_in_turn() -> None:
    async def main() -> None:
        device, done = Device("d"), []
        async with asyncio.TaskGroup() as tasks:
            for work in ("update", "update", "log_probs", "generate"):
                tasks.create_task(use(device, work, done))
        assert done == ["update", "generate", "log_probs", "update"]
        assert asyncio.get_running_loop().time() == 4.0

    clock.run(main())


def test_announced_work_goes_first_even_if_it_asks_later() -> None:
    async def main() -> None:
        device, done = Device("d"), []
        device.announce("generate")

        async def late() -> None:
            await asyncio.sleep(5)
            device.retract("generate")
            await use(device, "generate", done)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(use(device, "update", done))
            tasks.create_task(late())
        assert sorted(done) == ["generate", "update"]
        assert asyncio.get_running_loop().time() == 7.0

    clock.run(main())


def test_nothing_is_generated_between_the_first_update_and_publishing() -> None:
    async def main() -> None:
        device, done = Device("d"), []
        async with asyncio.TaskGroup() as tasks:
            with device.updating():
                tasks.create_task(use(device, "generate", done))
                await use(device, "update", done)
                await use(device, "publish", done)
        assert done == ["update", "publish", "generate"]

    clock.run(main())


@pytest.mark.parametrize("cancel_after_s", [0.5, 1.0, 1.5])
def test_a_cancelled_owner_leaves_the_lease_to_the_next(cancel_after_s: float) -> None:
    async def main() -> None:
        device, done = Device("d"), []
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(use(device, "update", done))
            unlucky = tasks.create_task(use(device, "generate", done))
            tasks.create_task(use(device, "log_probs", done))
            await asyncio.sleep(cancel_after_s)
            unlucky.cancel()
        assert done == ["update", "log_probs"]

    clock.run(main())


def test_every_lease_is_told_as_an_event() -> None:
    async def main() -> None:
        events = EventList()
        device = Device("gpu", sink=events)
        await use(device, "update", [], 2.0)
        assert events.of(DeviceWorked) == [DeviceWorked(at_s=2.0, device="gpu", work="update", step=0, started_s=0.0)]

    clock.run(main())


def test_a_device_tells_why_it_did_nothing() -> None:
    async def main() -> None:
        events = EventList()
        device = Device("gpu", sink=events)
        with device.usage.waiting_for("reward"):
            await asyncio.sleep(3)
        async with device.lease("update", 0):
            await asyncio.sleep(2)
        assert events.of(DeviceIdled) == [DeviceIdled(at_s=3.0, device="gpu", cause="reward", started_s=0.0)]

    clock.run(main())
