"""Work side by side on the CPU: a few Python threads, each with its share of PyTorch's threads.

Splitting every single operation between two cores leaves each waiting for the other hundreds of
times a step. Two halves of a batch, each on a core of its own from end to end, wait once. PyTorch
lets go of Python's lock while it computes, so that threads are enough.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from typing import Any, Self, TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")

_here = threading.local()  # has ``working`` in the threads of any Workers


class Workers:
    """Threads that each run the same function on another item.

    They start at the first call of ``map`` that has work for two. One worker, or one item, is
    run by the caller itself, with all of PyTorch's threads; so is a ``map`` inside another. Callers
    in several threads of their own wait for each other.

    Args:
        count: how many items are worked on at the same time; fewer where PyTorch has fewer
            threads, which the workers share out evenly.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool: ThreadPoolExecutor | None = None
        self._threads = 0
        self._lock = threading.Lock()

    def parts(self, device: torch.device) -> int:
        """How many items are worked on at the same time for a model on a device: on a GPU one."""
        return min(self.count, torch.get_num_threads()) if device.type == "cpu" else 1

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Threads are no state: a copy of their owner works with the same."""
        return self

    def map(
        self,
        function: Callable[[Item], Result],
        items: Sequence[Item],
        finished: Callable[[int], object] = int,
    ) -> list[Result]:
        """The function's results, in the items' order.

        Gradient mode and autocast are the caller's. Random numbers are not: what draws some in
        two threads at once must be given generators of its own.

        Args:
            function: an error in it is raised here; items that have not begun are then left.
            items: begun in this order.
            finished: called by the caller's thread with the place of each item that is done.
        """
        threads = torch.get_num_threads()
        if min(self.count, threads, len(items)) <= 1 or hasattr(_here, "working"):
            results = []
            for place, item in enumerate(items):
                results.append(function(item))
                finished(place)
            return results
        modes = (
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.is_autocast_enabled("cpu"),
            torch.get_autocast_dtype("cpu"),
        )

        def work(item: Item) -> Result:
            gradients, inference, autocast, dtype = modes
            with (
                torch.inference_mode(inference),
                torch.set_grad_enabled(gradients),
                torch.autocast("cpu", dtype, enabled=autocast),
            ):
                return function(item)

        with self._lock:
            pool = self._started(threads)
            places = {pool.submit(work, item): place for place, item in enumerate(items)}
            try:
                for future in as_completed(places):
                    future.result()
                    finished(places[future])
            except BaseException:
                for future in places:
                    future.cancel()
                wait(places)
                raise
            return [future.result() for future in places]

    def _started(self, threads: int) -> ThreadPoolExecutor:
        if self._pool is None or self._threads != threads:
            self.close()
            count = min(self.count, threads)
            ready = threading.Barrier(count + 1)

            def start() -> None:
                torch.set_num_threads(threads // count)
                _here.working = True
                torch.get_num_threads()  # a thread's first use of the number settles it
                ready.wait()

            self._pool, self._threads = ThreadPoolExecutor(count, "headlab", start), threads
            for _ in range(count):
                self._pool.submit(int)
            ready.wait()
            # The number is each thread's own; but a new thread begins with the last one set.
            torch.set_num_threads(threads)
        return self._pool

    def close(self) -> None:
        """End the threads; the next ``map`` starts new ones."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None


# For everything that reads a model; more than a few would wait for Python's lock.
READERS = Workers(4)
