"""What a measurement depends on, beside the programs: to be written down with it."""

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

import torch

import headlab

PACKAGES = ("torch", "lightning", "transformers", "ctranslate2", "sentencepiece", "numpy")


def surroundings(device: torch.device, threads: int) -> dict[str, Any]:
    """Machine, versions and threads, as plain types."""
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    return {
        "headlab": headlab.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "packages": {name: _version(name) for name in PACKAGES},
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "gpu": gpu,
        "device": str(device),
        "threads": threads,
    }


def cpu_name() -> str:
    """The processor's name, as the system gives it."""
    path = Path("/proc/cpuinfo")
    if path.exists():
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
