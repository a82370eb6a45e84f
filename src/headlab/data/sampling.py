"""Random segmentations of a text, drawn by our own generator.

SentencePiece can draw them too, but its generator gives other numbers in every process, so that
neither a repeated nor a resumed training would see the same pieces.
"""

from typing import Any

import numpy as np

NBEST = 64  # segmentations of a text that unigram sampling chooses among


def sample_unigram(
    processor: Any, text: str, alpha: float, generator: np.random.Generator
) -> list[int]:
    """Draw one of the best segmentations with probability proportional to p ** alpha.

    Subword regularisation (Kudo 2018, section 3.2) over the ``NBEST`` most probable ones.
    """
    found = processor.nbest_encode(text, nbest_size=NBEST, out_type=int)
    # A segmentation's log-probability is the sum of its pieces' scores.
    scores = alpha * np.array([sum(map(processor.get_score, ids)) for ids in found])
    weights = np.exp(scores - scores.max())
    return found[int(generator.choice(len(found), p=weights / weights.sum()))]


def sample_bpe(
    merges: dict[str, tuple[float, int]],
    bytes_of: dict[int, int],
    text: str,
    alpha: float,
    generator: np.random.Generator,
) -> list[int]:
    """Merge characters as byte-pair encoding does, leaving out each possible merge at random.

    BPE-dropout (Provilkov et al. 2020, algorithm 1); with ``alpha`` 0 it is ordinary BPE.

    Args:
        merges: piece -> (score, id) of every ordinary piece; the higher score merges first.
        bytes_of: byte -> id of its piece, for characters that have none.
        text: with spaces written as SentencePiece writes them.
        alpha: probability of passing over a possible merge, at every step.
        generator: draws which.
    """
    symbols = list(text)
    while True:
        pairs = [
            (merges[joined][0], -i)
            for i in range(len(symbols) - 1)
            if (joined := symbols[i] + symbols[i + 1]) in merges
        ]
        if alpha and pairs:
            kept = generator.random(len(pairs)) >= alpha
            pairs = [pair for pair, keep in zip(pairs, kept, strict=True) if keep]
        if not pairs:
            break
        i = -max(pairs)[1]
        symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]
    ids: list[int] = []
    for symbol in symbols:
        if symbol in merges:
            ids.append(merges[symbol][1])
        else:
            ids += [bytes_of[byte] for byte in symbol.encode()]
    return ids
