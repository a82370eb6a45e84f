"""Keep freed memory in the process: most of what a training step allocates, the next one wants."""

import ctypes
import logging
import sys

logger = logging.getLogger("headlab")

# From glibc's malloc.h; mallopt(3).
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
TRIM_BYTES = 2**31 - 1  # free memory at the top of the heap that is kept
MMAP_BYTES = 32 * 2**20  # larger blocks come from the kernel; the most that glibc accepts


def keep_freed_memory() -> bool:
    """Raise glibc's thresholds for giving memory back to the kernel.

    By default large blocks are unmapped when freed, and the next step's tensors pay a page fault
    for every 4 kB. Linux with glibc only; says in the log what it did.

    Returns:
        Whether the thresholds were set.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):  # another C library
        return False
    done = all(
        mallopt(option, size) == 1
        for option, size in ((M_TRIM_THRESHOLD, TRIM_BYTES), (M_MMAP_THRESHOLD, MMAP_BYTES))
    )
    if done:
        logger.debug("memory: freed blocks are kept")
    return done
