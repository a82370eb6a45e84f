"""The profile of a part of the benchmark."""

import torch

from headlab.benchmark.profiling import Profile
from headlab.workers import Workers


def test_the_operators_of_all_threads_are_counted() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        profile = Profile(torch.device("cpu"))
        matrix = torch.ones(50, 50)
        Workers(2).map(lambda _: matrix @ matrix, range(6))
        with torch.profiler.record_function("a mark"):
            matrix @ matrix
        rows = {row["operator"]: row for row in profile.stop()}
    finally:
        torch.set_num_threads(before)
    assert "a mark" not in rows
    assert rows["aten::mm"]["calls"] == 7
    assert abs(sum(row["share"] for row in rows.values()) - 1) < 1e-6
