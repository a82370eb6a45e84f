"""Keeping freed memory works where there is glibc, and says so where there is none."""

import ctypes
import platform
import sys

import pytest

from headlab.allocator import keep_freed_memory


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_on_glibc() -> None:
    assert keep_freed_memory()


def test_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not keep_freed_memory()
    monkeypatch.setattr(sys, "platform", "linux")

    def missing(_name: str) -> None:
        raise OSError("libc.so.6: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert not keep_freed_memory()
