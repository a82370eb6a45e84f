"""The process of one contestant: ``python -m headlab.benchmark.worker FOLDER``.

The first line that it reads says which contestant it is, every further line is a command; it
writes a line of JSON when it is ready, and one for each command. A process each, so that the peak
of the memory is the contestant's own, and so are the settings of the C library's memory.
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from headlab.benchmark.channel import Channel, Pipes, private_output


def main() -> None:
    """Serve until there are no more commands."""
    # Ctrl-C in a terminal reaches every process; it is the benchmark that ends its contestants.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = private_output()
    folder = Path(sys.argv[1])
    spec: dict[str, Any] = json.loads(sys.stdin.readline())
    threading.Thread(target=end_with, args=(spec["parent"],), daemon=True).start()
    if spec["keep_memory"]:
        from headlab.allocator import keep_freed_memory

        keep_freed_memory()
    import torch

    torch.set_num_threads(spec["threads"])
    device = torch.device(spec["device"])
    serve(spec, folder, Pipes(sys.stdin, answers, device), device)


def end_with(parent: int) -> None:
    """End this process soon after the benchmark's has gone, however that ended."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def serve(spec: dict[str, Any], folder: Path, channel: Channel, device: Any) -> None:
    """Be the contestant that the first line names."""
    kind = spec["kind"]
    if kind == "peak":
        from headlab.benchmark import peak

        peak.serve(channel, device)
        return
    from headlab.benchmark.material import Material

    material = Material.read(folder)
    if spec["phase"] == "training":
        if kind == "headlab":
            from headlab.benchmark import real_trainer

            real_trainer.serve(channel, material, folder / "run", device)
        else:
            from headlab.benchmark import plain_loop

            plain_loop.serve(channel, material, kind, device)
        return
    from headlab.benchmark import ctranslate, decoding

    if kind == "headlab":
        decode = decoding.ours(Path(spec["checkpoint"]), device)
    elif kind == "marian":
        decode = decoding.marian(material, spec["lengths"], device, spec["every"])
    else:
        decode = decoding.ctranslate(
            folder / ctranslate.FOLDER,
            material.read_tokenizers(),
            max(spec["lengths"]),
            spec["threads"],
            device,
            spec["at_once"],
        )
    decoding.serve(channel, material.sentences, decode, device)


if __name__ == "__main__":
    main()
