"""Threads that work side by side: order, shares of the threads, modes, errors."""

import copy
import threading
from collections.abc import Iterator

import pytest
import torch

from headlab.workers import Workers


@pytest.fixture(autouse=True)
def four_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


def test_two_at_the_same_time_and_results_in_order() -> None:
    meeting = threading.Barrier(2)

    def work(item: int) -> int:
        meeting.wait(30)  # nobody passes alone
        return item * item

    assert Workers(2).map(work, range(6)) == [0, 1, 4, 9, 16, 25]


def test_threads_are_shared_out_and_the_callers_stay() -> None:
    workers = Workers(2)
    for _ in range(2):
        assert workers.map(lambda _: torch.get_num_threads(), range(4)) == [2] * 4
        assert torch.get_num_threads() == 4
    torch.set_num_threads(2)
    assert workers.map(lambda _: torch.get_num_threads(), range(4)) == [1] * 4
    # What is only started later takes the caller's number, not a worker's.
    found: list[int] = []
    late = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    late.start()
    late.join()
    assert found == [2]


def test_one_thread_or_one_item_is_the_callers_own_work() -> None:
    names = Workers(3).map(lambda _: threading.current_thread().name, ["one"])
    torch.set_num_threads(1)
    names += Workers(3).map(lambda _: threading.current_thread().name, range(3))
    names += Workers(1).map(lambda _: threading.current_thread().name, range(3))
    assert set(names) == {threading.current_thread().name}
    assert Workers(2).map(int, []) == []


def test_modes_are_the_callers() -> None:
    def modes(_: int) -> tuple[bool, bool, bool, torch.dtype]:
        return (
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.is_autocast_enabled("cpu"),
            torch.get_autocast_dtype("cpu"),
        )

    workers = Workers(2)
    for context in (
        torch.enable_grad(),
        torch.no_grad(),
        torch.inference_mode(),
        torch.autocast("cpu", torch.bfloat16),
        torch.autocast("cpu", torch.float16),
    ):
        with context:
            assert workers.map(modes, range(4)) == [modes(0)] * 4


def test_the_caller_hears_of_every_item() -> None:
    heard: list[tuple[int, str]] = []
    for workers in (Workers(2), Workers(1)):
        heard.clear()
        workers.map(
            int, range(5), lambda place: heard.append((place, threading.current_thread().name))
        )
        assert sorted(place for place, _ in heard) == list(range(5))
        assert {name for _, name in heard} == {threading.current_thread().name}


def test_an_error_is_the_callers_and_ends_the_rest() -> None:
    begun: list[int] = []
    workers = Workers(2)

    def work(item: int) -> int:
        begun.append(item)
        if item == 1:
            raise ValueError("item 1")
        return item

    with pytest.raises(ValueError, match="item 1"):
        workers.map(work, range(1000))
    assert len(begun) < 1000
    assert workers.map(abs, [-1, -2]) == [1, 2]


def test_a_copy_works_with_the_same_threads() -> None:
    workers = Workers(2)
    workers.map(abs, [1, 2])
    assert copy.deepcopy(workers) is workers


def test_a_gpu_is_given_one_batch_at_a_time() -> None:
    assert Workers(3).parts(torch.device("cpu")) == 3
    assert Workers(8).parts(torch.device("cpu")) == 4
    assert Workers(3).parts(torch.device("cuda")) == 1


def test_one_map_inside_another_and_several_callers() -> None:
    workers = Workers(2)

    def outer(item: int) -> list[int]:
        return workers.map(lambda n: n * item, range(3))

    found: list[list[list[int]]] = []
    callers = [
        threading.Thread(target=lambda: found.append(workers.map(outer, range(4))))
        for _ in range(4)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(30)
    assert found == [[[0, 0, 0], [0, 1, 2], [0, 2, 4], [0, 3, 6]]] * 4
