"""The tests' names must be the same in every process that collects them.

pytest-xdist runs nothing when its processes disagree on them, and a name made of a value that holds
the time (as a gzip header does), a random number or the order of a set differs only now and then.
"""

import os
import subprocess
import sys
import time

import pytest


def test_names_are_the_same_in_another_process(request: pytest.FixtureRequest) -> None:
    here = [item.nodeid for item in request.session.items]
    config = request.config
    time.sleep(1.1)  # a name that holds the time in seconds is another one by now
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "", *config.args]
    collected = subprocess.run(
        command,
        cwd=config.invocation_params.dir,
        env={k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
        | {"PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
    )
    assert collected.returncode == 0, collected.stdout + collected.stderr
    known = set(here)
    assert [line for line in collected.stdout.splitlines() if line in known] == here
