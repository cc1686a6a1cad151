from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from scoring import call_pool

from rewardflow import clock
from rewardflow.errors import AgentClosed, InvalidInput, RateLimited, RewardLoadError, ServiceError
from rewardflow.reward.code.current_call import Call
from rewardflow.reward.code.processes.plain_data import MAX_FRAME_BYTES, MAX_VALUES, encode
from rewardflow.reward.code.processes.process_messages import HEADER, frame
from rewardflow.reward.code.processes.process_pool import MAX_FAILED_STARTS, ProcessPool
from rewardflow.types import Rollout

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

SAMPLES = '''
import atexit, contextvars, os, re, signal, subprocess, sys, threading, time
from dataclasses import dataclass
from pathlib import Path

from rewardflow.errors import RateLimited
from rewardflow.reward.code.current_call import current_call, report_headers, report_usage, request_of_unknown_cost

tenant = contextvars.ContextVar("tenant", default="nobody")


@dataclass
class Named:
    """The smallest source: the name of a function in this module."""

    name: str

    def build(self):
        return globals()[self.name]


class Failing:
    def __init__(self, why="no module named judge_sdk"):
        self.why = why

    def build(self):
        raise ImportError(self.why)


class Dying:
    def build(self):
        os._exit(9)


class LeavingWord:
    def __init__(self, path):
        self.path = path

    def build(self):
        atexit.register(lambda: Path(self.path).write_text("left"))
        return pid


class HttpError(Exception):
    """As HTTP clients write them: pickles, but cannot be unpickled."""

    def __init__(self, message, *, response):
        super().__init__(message)
        self.response = response
        self.status_code = response["status"]


def count_primes(limit):
    return sum(all(number % divisor for divisor in range(2, int(number**0.5) + 1)) for number in range(2, limit))


def pid():
    return os.getpid()


def length(text):
    return len(text), text


def repeat(count):
    return "x" * count


def echo(value):
    return value


def hang(path):
    """Says who it is, then never returns."""
    Path(path).write_text(str(os.getpid()))
    threading.Event().wait()


def hang_in_c(path):
    """As `hang`, in a regular expression that never lets another thread run."""
    Path(path).write_text(str(os.getpid()))
    re.match(r"(a+)+$", "a" * 64 + "b")


def hang_in_grandchild(path):
    subprocess.run(["sh", "-c", f"echo $$ > {path}; exec sleep 3600"])


def hang_or_wait(entered, opened=None):
    Path(entered).write_text(str(os.getpid()))
    if opened is None:
        threading.Event().wait()
    return Path(opened).read_text()


def die(code):
    os._exit(code)


def leave():
    sys.exit(3)


def fail(message):
    raise KeyError(message)


def fail_as_http():
    raise HttpError("slow down", response={"status": 429})


def fail_as_local_class():
    class Throttled(RateLimited):
        pass

    raise Throttled("later", retry_after_s=7.0)


def fail_as_local_exception():
    class Odd(Exception):
        pass

    raise Odd("strange")


def give_lock():
    return threading.Lock()


def spend_and_fail():
    report_usage(cost_usd=0.25, tokens=12)
    report_headers({"X-RateLimit-Remaining": "3"})
    raise ValueError("unreadable answer")


def break_off():
    report_usage(cost_usd=0.25)
    with request_of_unknown_cost(lambda error: False):
        raise ConnectionError("broken")


def report_free():
    report_usage(cost_usd=0.0)
    return 1.0


class Trap:
    """An object whose pickle writes a file when it is read."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


class TrapError(Exception):
    def __reduce__(self):
        return os.system, (f"touch {self.args[0]}",)


def return_trap(path):
    return Trap(path)


def raise_trap(path):
    error = TrapError(path)
    error.trap = Trap(path)
    raise error


def write_to_parent(data):
    """Writes bytes of its own into the connection, past the module that should write there."""
    import gc, socket

    (connection,) = [one for one in gc.get_objects() if isinstance(one, socket.socket)]
    connection.sendall(data)
    threading.Event().wait()


def read_tenant():
    return tenant.get()


def read_call():
    return current_call().rollouts[0].extra_info["id"], current_call().endpoint


def is_main_thread():
    return threading.current_thread() is threading.main_thread()
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("rewards")
    (folder / "process_samples.py").write_text(SAMPLES)
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))


@pytest.fixture(scope="module")
def samples(folder: Path) -> Any:
    import process_samples  # type: ignore[import-not-found]

    return process_samples


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    """A pipe through which a reward sends its process id when it starts."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    return path


@contextlib.asynccontextmanager
async def running(source: Any, *, processes: int = 1, threads: int = 1) -> AsyncIterator[ProcessPool]:
    workers = ProcessPool(source, processes=processes, threads_per_process=threads)
    workers.start(asyncio.get_running_loop())
    try:
        yield workers
    finally:
        await workers.aclose(20.0)


async def read(fifo: Path) -> int:
    return int(await asyncio.to_thread(fifo.read_text))


async def get_stuck(workers: ProcessPool, fifo: Path, **kwargs: Any) -> int:
    """Makes a call, waits until it hangs, and cancels it; returns the process id that the reward sent."""
    task = asyncio.ensure_future(call_pool(workers, **kwargs))
    pid = await read(fifo)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    return pid


def exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def run_script(folder: Path, body: str) -> subprocess.CompletedProcess[str]:
    """Runs a script without a `__main__` guard, and waits until every process that holds its output has ended."""
    script = folder / "script.py"
    script.write_text(f"import sys\nsys.path[:] = {sys.path!r}\n{body}")
    return subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=False)


# Results, exceptions, usage.


def test_a_cpu_bound_reward_gives_the_right_results_from_several_processes(samples: Any) -> None:
    async def main() -> None:
        async with running(samples.Named("count_primes"), processes=2) as workers:
            limits = [10, 100, 1000, 5000] * 5
            counts = await asyncio.gather(*(call_pool(workers, limit=limit) for limit in limits))
            assert counts == [4, 25, 168, 669] * 5

    asyncio.run(main())


def test_every_process_takes_calls(samples: Any) -> None:
    async def main() -> None:
        async with running(samples.Named("pid"), processes=2) as workers:
            all_usable = asyncio.Event()
            workers.on_usable = lambda: all_usable.set() if workers.num_usable == 2 else None
            if workers.num_usable < 2:
                await all_usable.wait()
            assert len(set(await asyncio.gather(*(call_pool(workers) for _ in range(10))))) == 2

    asyncio.run(main())


def test_processes_that_are_still_loading_are_not_usable(samples: Any) -> None:
    async def main() -> None:
        async with running(samples.Named("pid"), threads=3) as workers:
            assert workers.num_usable == 0
            await call_pool(workers)
            assert workers.num_usable == 3

    asyncio.run(main())


def test_the_main_thread_of_a_process_runs_the_calls(samples: Any) -> None:
    async def main() -> None:
        async with running(samples.Named("is_main_thread")) as workers:
            assert await call_pool(workers) is True

    asyncio.run(main())


def test_arguments_and_results_larger_than_a_pipe_go_through(samples: Any) -> None:
    async def main() -> None:
        async with running(samples.Named("length"), threads=2) as workers:
            texts = [str(number) * 3_000_000 for number in range(4)]
            replies = await asyncio.gather(*(call_pool(workers, text=text) for text in texts))
            assert replies == [(3_000_000, text) for text in texts]

    asyncio.run(main())


def test_an_exception_comes_back_as_itself_with_where_it_was_raised(samples: Any) -> None:
    async def main() -> None:
        async with running(samples.Named("fail")) as workers:
            with pytest.raises(KeyError, match="lost") as caught:
                await call_pool(workers, message="lost")
            assert "in fail" in caught.value.__notes__[0]

    asyncio.run(main())


def test_an_http_error_that_cannot_be_unpickled_keeps_its_status(samples: Any) -> None:
    async def main() -> None:
        async with running(samples.Named("fail_as_http")) as workers:
            with pytest.raises(Exception, match="slow down") as caught:
                await call_pool(workers)
            assert (type(caught.value).__name__, caught.value.status_code) == ("HttpError", 429)

    asyncio.run(main())


def test_an_exception_of_an_unknown_class_comes_back_as_its_nearest_base_class(samples: Any) -> None:
    async def main() -> None:
        async with running(samples.Named("fail_as_local_class")) as workers:
            with pytest.raises(RateLimited, match="later") as caught:
                await call_pool(workers)
            assert caught.value.retry_after_s == 7.0

        async with running(samples.Named("fail_as_local_exception")) as workers:
            with pytest.raises(RuntimeError, match="Odd: strange"):
                await call_pool(workers)

    asyncio.run(main())


def test_a_result_that_is_not_plain_data_is_an_error_that_names_its_type(samples: Any) -> None:
    async def main() -> None:
        async with running(samples.Named("give_lock")) as workers:
            with pytest.raises(TypeError, match=r"must be plain data, got a _thread\.lock"):
                await call_pool(workers)

    asyncio.run(main())


def test_arguments_that_cannot_be_pickled_are_refused(samples: Any) -> None:
    async def main() -> None:
        async with running(samples.Named("echo")) as workers:
            with pytest.raises(InvalidInput, match="must be picklable"):
                await call_pool(workers, value=threading.Lock())
            assert await call_pool(workers, value=1) == 1

    asyncio.run(main())


def test_system_exit_in_a_reward_is_an_error_of_that_call_alone(samples: Any) -> None:
    async def main() -> None:
        async with running(samples.Named("leave")) as workers:
            for _ in range(2):
                with pytest.raises(RuntimeError, match="SystemExit: 3"):
                    await call_pool(workers)
            assert workers.statistics().started == 1

    asyncio.run(main())


def test_usage_reported_before_an_exception_is_kept(samples: Any) -> None:
    async def main() -> None:
        call = Call(())
        async with running(samples.Named("spend_and_fail")) as workers:
            with pytest.raises(ValueError, match="unreadable answer"):
                await call_pool(workers, call)
        assert (call.cost_usd, call.tokens, call.headers) == (0.25, 12, {"x-ratelimit-remaining": "3"})

    asyncio.run(main())


def test_a_request_of_unknown_cost_is_counted_in_a_process_too(samples: Any) -> None:
    async def main() -> None:
        call = Call(())
        async with running(samples.Named("break_off")) as workers:
            with pytest.raises(ConnectionError, match="broken"):
                await call_pool(workers, call)
        assert (call.cost_usd, call.num_unpriced) == (0.25, 1)

    asyncio.run(main())


def test_a_call_reported_as_free_is_free_in_a_process_too(samples: Any) -> None:
    async def main() -> None:
        free, silent = Call(()), Call(())
        async with running(samples.Named("report_free")) as workers:
            await call_pool(workers, free)
        async with running(samples.Named("pid")) as workers:
            await call_pool(workers, silent)
        assert (free.cost_usd, free.is_cost_known) == (0.0, True)
        assert not silent.is_cost_known

    asyncio.run(main())


def test_context_variables_and_the_call_travel_into_the_process(samples: Any) -> None:
    async def main() -> None:
        async with running(samples.Named("read_tenant"), threads=2) as workers:
            samples.tenant.set("acme")
            assert await asyncio.gather(*(call_pool(workers) for _ in range(4))) == ["acme"] * 4

        async with running(samples.Named("read_call")) as workers:
            call = Call((Rollout(group_id="q", response="r", extra_info={"id": 17}),), endpoint="east")
            assert await call_pool(workers, call) == (17, "east")

    asyncio.run(main())


# What a process sends is plain data.


def test_an_object_that_a_reward_returns_or_raises_runs_no_code_in_the_parent(samples: Any, tmp_path: Path) -> None:
    path = tmp_path / "trapped"

    async def main() -> None:
        async with running(samples.Named("return_trap")) as workers:
            with pytest.raises(TypeError, match=r"must be plain data, got a process_samples\.Trap"):
                await call_pool(workers, path=str(path))
        async with running(samples.Named("raise_trap")) as workers:
            with pytest.raises(RuntimeError) as caught:
                await call_pool(workers, path=str(path))
            assert type(caught.value).__name__ == "TrapError"
            assert not hasattr(caught.value, "trap")

    asyncio.run(main())
    assert not path.exists()


@pytest.mark.parametrize("kind", ["pickle", "many values", "oversized", "number", "second handshake"])
def test_a_bad_frame_ends_the_process_and_fails_its_calls_with_the_reason(
    samples: Any, tmp_path: Path, kind: str
) -> None:
    trap = pickle.dumps(samples.Trap(str(tmp_path / "trapped")))
    data, reason = {
        "pickle": (frame(1, trap), "it is not plain data"),
        "many values": (frame(1, b"[" + b"{}," * MAX_VALUES + b"{}]"), f"at most {MAX_VALUES} values"),
        "oversized": (HEADER.pack(MAX_FRAME_BYTES + 1, 1), "is too large"),
        "number": (frame(77, encode([1.0, None, 0.0, 0, False, None, 0, 0, 0.0])), "it answers no call"),
        "second handshake": (frame(0, b"null"), "it is no reply"),
    }[kind]

    async def main() -> None:
        async with running(samples.Named("write_to_parent")) as workers:
            with pytest.raises(ServiceError, match=f"reward process was killed because .*{reason}"):
                async with asyncio.timeout(30):
                    await call_pool(workers, data=data)
            assert (workers.statistics().replaced, workers.statistics().killed) == (1, 1)

    asyncio.run(main())
    assert not (tmp_path / "trapped").exists()


def test_a_result_above_the_limit_fails_its_call_alone(samples: Any) -> None:
    async def main() -> None:
        async with running(samples.Named("repeat")) as workers:
            with pytest.raises(TypeError, match=f"at most {MAX_FRAME_BYTES} bytes"):
                await call_pool(workers, count=MAX_FRAME_BYTES)
            assert await call_pool(workers, count=3) == "xxx"
            assert workers.statistics().started == 1

    asyncio.run(main())


# Calls that hang.


@pytest.mark.parametrize("name", ["hang", "hang_in_c"])
def test_a_cancelled_call_is_killed_with_its_process_and_another_takes_over(
    samples: Any, fifo: Path, name: str
) -> None:
    async def main() -> None:
        async with running(samples.Named(name)) as workers:
            pid = await get_stuck(workers, fifo, path=str(fifo))
            next_pid = await get_stuck(workers, fifo, path=str(fifo))
            statistics = workers.statistics()
        assert next_pid != pid
        assert (statistics.replaced, statistics.killed, statistics.busy, statistics.abandoned) == (2, 2, 0, 0)
        assert not exists(pid)
        assert not exists(next_pid)

    asyncio.run(main())


def test_what_a_killed_call_had_started_is_killed_too(samples: Any, tmp_path: Path, fifo: Path) -> None:
    async def main() -> None:
        async with running(samples.Named("hang_in_grandchild")) as workers:
            task = asyncio.ensure_future(call_pool(workers, path=str(fifo)))
            grandchild = await read(fifo)
            descriptor = os.pidfd_open(grandchild)
            gone = asyncio.Event()
            asyncio.get_running_loop().add_reader(descriptor, gone.set)
            assert not gone.is_set()
            task.cancel()
            await gone.wait()
            asyncio.get_running_loop().remove_reader(descriptor)
            os.close(descriptor)

    if not hasattr(os, "pidfd_open"):
        pytest.skip("needs pidfd_open to watch a process that is not our child")
    asyncio.run(main())


def test_other_calls_of_a_process_end_before_it_is_killed(samples: Any, tmp_path: Path) -> None:
    entered, opened, stuck = (tmp_path / name for name in ("entered", "opened", "stuck"))
    for path in (entered, opened, stuck):
        os.mkfifo(path)

    async def main() -> None:
        async with running(samples.Named("hang_or_wait"), threads=2) as workers:
            waiting = asyncio.ensure_future(call_pool(workers, entered=str(entered), opened=str(opened)))
            pid = await read(entered)
            assert await get_stuck(workers, stuck, entered=str(stuck)) == pid
            assert exists(pid)
            assert workers.statistics().abandoned == 1

            next_pid = await get_stuck(workers, stuck, entered=str(stuck))
            assert next_pid != pid

            await asyncio.to_thread(opened.write_text, "open")
            assert await waiting == "open"
        assert not exists(pid)

    asyncio.run(main())


def test_a_call_cancelled_while_it_waits_for_a_process_just_leaves_the_queue(samples: Any) -> None:
    async def main() -> None:
        async with running(samples.Named("pid")) as workers:
            queued = asyncio.ensure_future(call_pool(workers))
            await asyncio.sleep(0)
            queued.cancel()
            with pytest.raises(asyncio.CancelledError):
                await queued
            await call_pool(workers)
            statistics = workers.statistics()
            assert (statistics.started, statistics.replaced, statistics.killed) == (1, 0, 0)

    asyncio.run(main())


def test_closing_with_stuck_calls_returns_and_fails_them(samples: Any, fifo: Path) -> None:
    async def main() -> None:
        workers = ProcessPool(samples.Named("hang"), processes=1, threads_per_process=1)
        workers.start(asyncio.get_running_loop())
        stuck = asyncio.ensure_future(call_pool(workers, path=str(fifo)))
        pid = await read(fifo)

        await workers.aclose(20.0)

        assert not exists(pid)
        with pytest.raises(AgentClosed):
            await stuck
        with pytest.raises(AgentClosed):
            await call_pool(workers, path=str(fifo))

    asyncio.run(main())


def test_closing_before_the_processes_are_up_leaves_none_behind(samples: Any) -> None:
    async def main() -> None:
        workers = ProcessPool(samples.Named("pid"), processes=4, threads_per_process=1)
        workers.start(asyncio.get_running_loop())
        await workers.aclose(20.0)
        assert workers.num_usable == 0

    asyncio.run(main())


def test_an_idle_process_leaves_by_itself(samples: Any, tmp_path: Path) -> None:
    async def main() -> None:
        async with running(samples.LeavingWord(str(tmp_path / "word"))) as workers:
            pid = await call_pool(workers)
        assert (tmp_path / "word").read_text() == "left"
        assert not exists(pid)
        assert workers.statistics().killed == 0

    asyncio.run(main())


# Processes that die, and rewards that cannot be loaded.


def test_a_process_that_dies_fails_its_call_as_retryable_and_is_replaced(samples: Any) -> None:
    async def main() -> None:
        async with running(samples.Named("die")) as workers:
            for code in (7, 8):
                with pytest.raises(ServiceError, match=f"reward process died with exit code {code}") as caught:
                    await call_pool(workers, code=code)
                assert caught.value.retryable
            assert workers.statistics().replaced == 2

    asyncio.run(main())


def test_a_reward_that_cannot_be_built_answers_every_call_with_the_reason(samples: Any) -> None:
    async def main() -> None:
        async with running(samples.Failing(), processes=2) as workers:
            is_usable = asyncio.Event()
            workers.on_usable = is_usable.set
            for _ in range(5):
                with pytest.raises(RewardLoadError, match="ImportError: no module named judge_sdk"):
                    await call_pool(workers)
            assert is_usable.is_set()
            assert workers.num_usable == 2
            assert workers.statistics().started <= 2

    asyncio.run(main())


def test_no_key_is_in_the_log_of_a_reward_that_cannot_be_built(samples: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with running(samples.Failing("no access with sk-abcdefgh12345678")) as workers:
            with pytest.raises(RewardLoadError):
                await call_pool(workers)

    asyncio.run(main())
    assert "no access with [redacted]" in caplog.text
    assert "sk-abcdefgh12345678" not in caplog.text


def test_a_reward_that_kills_its_process_while_loading_is_not_tried_for_ever(samples: Any) -> None:
    async def main() -> None:
        async with running(samples.Dying()) as workers:
            with pytest.raises(RewardLoadError, match="died with exit code 9 while loading"):
                await call_pool(workers)
            assert workers.statistics().started == MAX_FAILED_STARTS

    asyncio.run(main())


def test_a_source_that_cannot_be_pickled_is_refused_by_name() -> None:
    class Local:
        def build(self) -> Any:
            return print

    with pytest.raises(InvalidInput, match=r"reward judge cannot be sent to a process: .*; name it as 'file.py:name'"):
        ProcessPool(Local(), processes=1, threads_per_process=1, name="judge")


def test_a_script_without_a_main_guard_works_and_what_it_defines_itself_is_refused(samples: Any, folder: Path) -> None:
    done = run_script(
        folder,
        """
import asyncio, contextvars
from process_samples import Named
from rewardflow.reward.code.current_call import Call
from rewardflow.reward.code.processes.process_pool import ProcessPool
class Own:
    def build(self):
        return print
async def main():
    workers = ProcessPool(Named("count_primes"), processes=1, threads_per_process=1)
    workers.start(asyncio.get_running_loop())
    print(await workers.call({"limit": 100}, Call(()), contextvars.copy_context()))
    await workers.aclose(20)
    ProcessPool(Own(), processes=1, threads_per_process=1)
asyncio.run(main())
""",
    )

    assert done.stdout == "25\n"
    assert "cannot be sent to a process: Own is defined in __main__; name it as 'file.py:name'" in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills a child that holds the interpreter lock")
def test_a_process_dies_with_its_parent_even_when_both_cannot_react(samples: Any, folder: Path) -> None:
    done = run_script(
        folder,
        """
import asyncio, contextvars, os, signal, tempfile
from process_samples import Named
from rewardflow.reward.code.current_call import Call
from rewardflow.reward.code.processes.process_pool import ProcessPool
path = os.path.join(tempfile.mkdtemp(), "fifo")
os.mkfifo(path)
async def main():
    workers = ProcessPool(Named("hang_in_c"), processes=1, threads_per_process=1)
    workers.start(asyncio.get_running_loop())
    call = asyncio.ensure_future(workers.call({"path": path}, Call(()), contextvars.copy_context()))
    await asyncio.to_thread(lambda: open(path).read())
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
""",
    )

    assert done.returncode == -9


def test_a_jumping_clock_stands_still_while_processes_start_and_work(samples: Any) -> None:
    async def main() -> float:
        async with running(samples.Named("count_primes")) as workers, asyncio.timeout(0.001):
            is_usable = asyncio.Event()
            workers.on_usable = is_usable.set
            await is_usable.wait()
            assert await call_pool(workers, limit=20_000) == 2262
        return asyncio.get_running_loop().time()

    assert clock.run(main()) == 0.0


def test_sizes_that_make_no_sense_are_refused(samples: Any) -> None:
    with pytest.raises(InvalidInput, match="processes=0"):
        ProcessPool(samples.Named("pid"), processes=0, threads_per_process=1)
