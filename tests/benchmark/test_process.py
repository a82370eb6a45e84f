"""Contestants in processes of their own: what they say, and how they end."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headlab.benchmark import contest
from headlab.benchmark.contest import Contest, Entry, Spread, ratios
from headlab.benchmark.process import ContestantFailed, Worker

ECHO = """
import json, sys, time
json.loads(sys.stdin.readline())
print(json.dumps({"ready": True, "peak_memory_bytes": 5}), flush=True)
for line in sys.stdin:
    command = json.loads(line)
    if command.get("do") == "die":
        sys.exit("MemoryError: no room for it")
    if command.get("do") == "crash":
        import os, signal
        os.kill(os.getpid(), signal.SIGKILL)
    if command.get("do") == "hang":
        time.sleep(1000)
    print(json.dumps(command | {"seconds": 1.0, "peak_memory_bytes": 6}), flush=True)
"""


def start(folder: Path, patience: float = 60.0) -> Worker:
    """A contestant that answers at once."""
    program = (sys.executable, "-c", ECHO)
    return Worker("a contestant", {"threads": 1}, folder, patience, program)


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    with start(tmp_path) as one:
        one.ready()
        yield one


def test_it_answers_every_command(worker: Worker) -> None:
    assert worker.turn(every=2)["every"] == 2
    assert worker.peak_memory == 6
    worker.close()
    assert worker.process.returncode is not None
    worker.close()  # a second time does no harm


@pytest.mark.parametrize(
    ("do", "reason"),
    [("die", "MemoryError: no room for it"), ("crash", r"ended by signal 9 \(out of memory\?\)")],
)
def test_one_that_dies_is_named_with_its_last_words(worker: Worker, do: str, reason: str) -> None:
    with pytest.raises(ContestantFailed, match=f"^benchmark: a contestant: {reason}$"):
        worker.turn(do=do)
    with pytest.raises(ContestantFailed):  # and again, as long as one asks
        worker.turn(do="work")


def test_one_that_hangs_is_ended(worker: Worker) -> None:
    worker.patience = 0.2
    with pytest.raises(ContestantFailed, match=r"no answer in 0 s, so it was ended; ask for less"):
        worker.turn(do="hang")
    assert worker.process.returncode == -signal.SIGKILL


def test_a_program_that_cannot_start_says_why(tmp_path: Path) -> None:
    program = (sys.executable, "-c", "import no_such_package")
    with (
        Worker("another", {"threads": 1}, tmp_path, 60.0, program) as worker,
        pytest.raises(ContestantFailed, match="No module named 'no_such_package'"),
    ):
        worker.ready()


def test_nothing_is_left_running_when_the_benchmark_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Worker] = []

    def make(name: str, spec: dict, folder: Path, patience: float) -> Worker:
        started.append(start(folder, patience))
        return started[-1]

    monkeypatch.setattr(contest, "Worker", make)

    def interrupt(line: str) -> None:
        if "turn 2" in line:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)

    def take_turns() -> None:
        settings = {"threads": 1, "device": "cpu", "turns": 3, "seconds": 1.0}
        with Contest(tmp_path, progress=interrupt, **settings) as one:
            (ours,) = one.ready([one.start(contest.OURS, kind="headlab")])
            one.rounds([Entry(contest.OURS, ours, {})], "training")

    monkeypatch.setattr(Contest, "measure_peak", lambda self: None)
    with pytest.raises(KeyboardInterrupt):
        take_turns()
    assert len(started) == 2
    assert all(worker.process.poll() is not None for worker in started)


def test_another_that_fails_is_left_out_and_ours_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(name: str, spec: dict, folder: Path, patience: float) -> Worker:
        made = start(folder, patience)
        made.name = name
        return made

    monkeypatch.setattr(contest, "Worker", make)
    monkeypatch.setattr(Contest, "measure_peak", lambda self: self.peaks.append(1.0))
    settings = {"threads": 1, "device": "cpu", "turns": 3, "seconds": 1.0}
    with Contest(tmp_path, progress=lambda line: None, **settings) as one:
        ours, theirs = one.ready([one.start(contest.OURS), one.start("theirs")])
        entries = [Entry(contest.OURS, ours, {}), Entry("theirs", theirs, {"do": "die"})]
        left = one.rounds(entries, "training")
        assert [entry.name for entry in left] == [contest.OURS]
        assert len(left[0].turns) == 3
        assert one.not_run == {"theirs": "failed: MemoryError: no room for it"}
        with pytest.raises(ContestantFailed, match=f"benchmark: {contest.OURS}: MemoryError"):
            one.attempt(ours, ours.turn, do="die")


def test_a_limit_leaves_out_rounds_but_the_first_and_every_turn_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contest, "Worker", lambda name, spec, folder, patience: start(folder))
    monkeypatch.setattr(Contest, "measure_peak", lambda self: None)
    settings = {"threads": 1, "device": "cpu", "turns": 5, "seconds": 1.0}
    kept = []
    with Contest(tmp_path, progress=lambda line: None, end=time.monotonic(), **settings) as one:
        entries = [
            Entry(name, worker, {})
            for name, worker in zip("ab", one.ready([one.start("a"), one.start("b")]), strict=True)
        ]
        one.rounds(entries, "part", lambda: kept.append([len(e.turns) for e in entries]))
        assert kept == [[1, 0], [1, 1]]
        assert one.left_out == ["part: 4 of 5 turns of each"]
        one.end = time.monotonic() + 60
        one.rounds(entries, "part")
        assert [len(entry.turns) for entry in entries] == [6, 6]
        assert len(one.left_out) == 1


ORPHAN = """
import subprocess, sys, time
child = "import os, sys; from headlab.benchmark.worker import end_with; print(os.getpid(), "
child += "flush=True); end_with(int(sys.argv[1]))"
import os
subprocess.Popen([sys.executable, "-c", child, str(os.getpid())])
time.sleep(600)
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux's /proc")
def test_a_contestant_ends_with_a_benchmark_that_was_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", ORPHAN], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = Path("/proc") / str(int(parent.stdout.readline()))
        assert child.exists()
        parent.kill()
    deadline = time.monotonic() + 20
    while child.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not child.exists()


def test_a_package_that_is_not_there_is_named_with_the_remedy(tmp_path: Path) -> None:
    one = object.__new__(Contest)
    one.not_run = {}
    assert not one.installed("no_such_package", "theirs")
    expected = "no_such_package is not installed: pip install 'headlab[benchmark]'"
    assert one.not_run == {"theirs": expected}


def test_ratios_are_taken_turn_by_turn(worker: Worker) -> None:
    ours = Entry(contest.OURS, worker, {}, turns=[{"seconds": s} for s in (1.0, 2.0, 4.0)])
    theirs = Entry("theirs", worker, {}, turns=[{"seconds": s} for s in (3.0, 2.0, 8.0)])
    assert ratios([ours, theirs]) == {"theirs": Spread(2.0, 1.0, 3.0)}
    assert ours.per_second(8.0) == Spread(4.0, 2.0, 8.0)
    late = Entry("late", worker, {}, turns=[{"seconds": 2.0}])  # stopped in the second round
    unborn = Entry("unborn", worker, {}, versus="nobody", turns=[{"seconds": 2.0}])
    assert ratios([ours, late, unborn]) == {"late": Spread(2.0, 2.0, 2.0)}
