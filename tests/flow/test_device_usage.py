"""Every second of a device has one label."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from rewardflow import clock
from rewardflow.flow.device_usage import DeviceUsage

ACTS = st.lists(
    st.tuples(st.sampled_from(["work", "wait", "verdicts", "nothing"]), st.floats(0, 100)), min_size=1, max_size=20
)


@given(ACTS)
def test_the_labels_add_up_to_the_time_that_passed(acts: list[tuple[str, float]]) -> None:
    async def main() -> None:
        usage = DeviceUsage()
        for act, duration_s in acts:
            if act == "work":
                with usage.working("update"):
                    await asyncio.sleep(duration_s)
            elif act == "wait":
                with usage.waiting_for("reward"):
                    await asyncio.sleep(duration_s)
            elif act == "verdicts":
                usage.add_verdicts_out(1)
                await asyncio.sleep(duration_s)
            else:
                await asyncio.sleep(duration_s)
        totals = usage.totals()
        passed_s = asyncio.get_running_loop().time()
        assert abs(totals.wall_s - passed_s) <= 1e-9 * max(1.0, passed_s)
        assert totals.exposed_s + totals.hidden_s <= passed_s + 1e-6

    clock.run(main())


def test_waiting_for_verdicts_is_exposed_and_working_beside_them_is_hidden() -> None:
    async def main() -> None:
        usage = DeviceUsage()
        usage.add_verdicts_out(5)
        with usage.waiting_for("reward"):
            await asyncio.sleep(3)
            with usage.working("generate"):
                await asyncio.sleep(4)
            await asyncio.sleep(1)
        before = usage.totals()
        assert (before.exposed_s, before.hidden_s, before.busy_s) == (4.0, 4.0, {"generate": 4.0})
        usage.add_verdicts_out(-5)
        with usage.working("update"):
            await asyncio.sleep(10)
        after = usage.totals().since(before)
        assert (after.exposed_s, after.hidden_s, after.total_busy_s) == (0.0, 0.0, 10.0)

    clock.run(main())


def test_time_without_work_is_told_by_cause_and_pauses_of_microseconds_are_no_cause() -> None:
    async def main() -> list[tuple[str, float, float]]:
        told: list[tuple[str, float, float]] = []
        usage = DeviceUsage(on_idle=lambda cause, started_s, ended_s: told.append((cause, started_s, ended_s)))
        began_s = asyncio.get_running_loop().time()
        for _ in range(3):
            with usage.waiting_for("reward"):
                await asyncio.sleep(2)
            await asyncio.sleep(0.0001)
        with usage.working("update"):
            await asyncio.sleep(5)
        with usage.waiting_for("generation"):
            await asyncio.sleep(1)
        with usage.waiting_for("checkpoint"):
            await asyncio.sleep(1)
        with usage.working("update"):
            await asyncio.sleep(1)
        return [(cause, round(a - began_s, 3), round(b - began_s, 3)) for cause, a, b in told]

    assert clock.run(main()) == [("reward", 0.0, 6.0), ("generation", 11.0, 12.0), ("checkpoint", 12.0, 13.0)]
