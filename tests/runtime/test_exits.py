"""An interpreter that exits while threads run native code ends cleanly and soon."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread

import pytest

from skipdec import ClosedError
from skipdec.engines.host.process import NativeWork

# Each call of ONNX Runtime is made many times, so that the exit happens during one.
BEGIN = """
import asyncio, os, sys
from threading import Event, Thread
from skipdec import AsyncEngine, Generator, ProcessEngine, SamplingParams
from skipdec.engines.backends import ort

run = ort.OrtBinding.run
ort.OrtBinding.run = lambda binding: [run(binding) for _ in range(300)]
bundle, begun = sys.argv[1], Event()
params = SamplingParams(max_tokens=40, ignore_eos=True)

async def opened(kind):
    context = kind.open(bundle, threads=1, verify="graphs")
    engine = await context.__aenter__()
    streams = [engine.submit([5, 6], params) for _ in range(8)]
    await anext(streams[0])
    return context, engine, streams

def left_open(kind):
    return asyncio.new_event_loop().run_until_complete(opened(kind))
"""
ENDS = {
    "a thread generates": """
generator = Generator.open(bundle, threads=1, verify="graphs")
def work():
    for _ in generator.stream([[5, 6]] * 8, params):
        begun.set()
Thread(target=work, daemon=True).start()
begun.wait()
""",
    "a thread opens generators": """
def work():
    while True:
        Generator.open(bundle, threads=1, verify="graphs").close()
        begun.set()
for _ in range(4):
    Thread(target=work, daemon=True).start()
begun.wait()
""",
    "an AsyncEngine is open": "kept = left_open(AsyncEngine)",
    "a ProcessEngine is open": "kept = left_open(ProcessEngine)",
    "a fork exits by itself": """
kept = left_open(AsyncEngine)
child = os.fork()
if child:
    assert os.waitpid(child, 0) == (child, 0)
else:
    import signal
    signal.alarm(60)
    from skipdec.engines.host.process import NATIVE_WORK
    NATIVE_WORK.end()  # waits for no thread of the parent
    os._exit(0)
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_an_interpreter_exits_cleanly_while(end: str, exported: Callable[..., Path]) -> None:
    bundle = exported("pre_norm", quantize="int8", kernels="auto")
    command = [sys.executable, "-c", BEGIN + end, str(bundle)]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_an_exit_waits_for_running_work_and_refuses_new_work() -> None:
    work, begun, may_end = NativeWork(), Event(), Event()

    def run() -> None:
        with work:
            begun.set()
            may_end.wait()

    def enter_repeatedly() -> None:
        while True:  # until the other thread waits
            with work:
                pass

    worker, exiting = Thread(target=run), Thread(target=work.end)
    worker.start()
    begun.wait()
    exiting.start()
    with pytest.raises(ClosedError, match="interpreter exits"):
        enter_repeatedly()
    assert exiting.is_alive()
    may_end.set()
    exiting.join(30)
    worker.join(30)
    assert not exiting.is_alive()


def test_a_hung_call_does_not_block_the_exit() -> None:
    work = NativeWork(patience=0.01)
    with work:
        thread = Thread(target=work.end)
        thread.start()
        thread.join(30)
        assert not thread.is_alive()


def test_the_exiting_thread_may_still_work() -> None:
    work = NativeWork()
    work.end()
    with work:
        pass
