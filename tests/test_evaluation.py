import json
import math
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from headlab.checkpoint import Loaded
from headlab.data.tokenizer import BOS, EOS
from headlab.errors import HeadlabError
from headlab.evaluation import bleu_tokenizer, corpus_scores, reference_loss

REFERENCES = [
    "Two dogs are running across the wide green field.",
    "A man plays the guitar on a small stage.",
    "Children laugh, and their mother smiles at them.",
    "Nobody knows what the weather will be like tomorrow.",
    "The train to Berlin leaves at half past nine.",
]
# One perfect, four wrong: scored with the references nested the wrong way this is 100.
HYPOTHESES = [REFERENCES[0], "A woman sings.", "Kids on a lawn .", "It will rain?", "The Train"]


def test_permuting_the_pairs_changes_nothing() -> None:
    scores = corpus_scores(HYPOTHESES, REFERENCES)
    assert 0 < scores.bleu < 50
    pairs = list(zip(HYPOTHESES, REFERENCES, strict=True))
    for seed in range(5):
        random.Random(seed).shuffle(pairs)
        hypotheses, references = zip(*pairs, strict=True)
        assert corpus_scores(hypotheses, references) == scores


@pytest.mark.parametrize("lowercase", [False, True])
def test_equals_the_command_line_tool(tmp_path: Path, lowercase: bool) -> None:
    for name, texts in (("hyp", HYPOTHESES), ("ref", REFERENCES)):
        (tmp_path / name).write_text("".join(text + "\n" for text in texts), encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "sacrebleu",
        "ref",
        "-i",
        "hyp",
        "-m",
        "bleu",
        "chrf",
        "-w",
        "9",
    ]
    options = ["-lc", "--chrf-lowercase"] if lowercase else []
    output = subprocess.run(
        command + options, cwd=tmp_path, capture_output=True, check=True, text=True
    ).stdout
    bleu, chrf = json.loads(output)
    scores = corpus_scores(HYPOTHESES, REFERENCES, lowercase)
    assert scores.bleu == pytest.approx(bleu["score"], abs=1e-7)
    assert scores.chrf == pytest.approx(chrf["score"], abs=1e-7)
    assert scores.bleu_signature == bleu["signature"]
    assert scores.chrf_signature == chrf["signature"]


def test_the_signature_tells_the_case() -> None:
    cased = corpus_scores(["The Train"], ["the train"])
    lowered = corpus_scores(["The Train"], ["the train"], lowercase=True)
    assert "case:mixed" in cased.bleu_signature
    assert "case:lc" in lowered.bleu_signature
    assert cased.chrf < lowered.chrf == 100


def test_perfect_is_100() -> None:
    scores = corpus_scores(REFERENCES, REFERENCES)
    assert scores.bleu == pytest.approx(100)
    assert scores.chrf == pytest.approx(100)
    assert (scores.brevity_penalty, scores.length_ratio, scores.sentences) == (1.0, 1.0, 5)


@pytest.mark.parametrize(
    ("hypotheses", "references"),
    [
        (["", "", ""], ["a b c", "d", "e f"]),
        (["", ""], ["", ""]),
        (["a b", "c"], ["", ""]),
        (["\u3000"], ["a"]),
    ],
)
def test_all_blank_on_a_side_is_zero(hypotheses: list[str], references: list[str]) -> None:
    scores = corpus_scores(hypotheses, references)
    assert (scores.bleu, scores.chrf) == (0, 0)


def test_single_blanks_are_counted() -> None:
    whole = corpus_scores(REFERENCES, REFERENCES)
    lost = corpus_scores(["", *REFERENCES[1:]], REFERENCES)
    added = corpus_scores(REFERENCES, ["", *REFERENCES[1:]])
    assert 0 < lost.bleu < whole.bleu
    assert 0 < added.bleu < whole.bleu


def test_nothing_is_done_to_the_text_before_sacrebleu(caplog: pytest.LogCaptureFixture) -> None:
    """Text that is tokenised already is scored as it is, without a complaint either."""
    tokenised = [text.replace(".", " .") for text in REFERENCES] * 30
    assert corpus_scores(tokenised, REFERENCES * 30).bleu == pytest.approx(100)
    assert not caplog.records


@pytest.mark.parametrize(
    ("hypotheses", "references", "message"),
    [
        ([], [], "no sentence"),
        (["a"], ["a", "b"], "1 hypotheses and 2 references"),
        (["a", "b"], [["a", "b"]], "flat list"),
        ([["a"]], ["a"], "flat list"),
        ("a", ["a"], "flat list"),
        (["a"], [None], "flat list"),
    ],
)
def test_what_cannot_be_scored_is_refused(
    hypotheses: list[str], references: list[str], message: str
) -> None:
    with pytest.raises(HeadlabError, match=message):
        corpus_scores(hypotheses, references)


def test_unknown_tokenizer_is_refused() -> None:
    with pytest.raises(HeadlabError, match="13b"):
        corpus_scores(["a"], ["a"], tokenize="13b")


def test_languages_without_spaces_have_a_tokenizer_of_their_own() -> None:
    codes = ("en", "de", "zh-Hans", "zh_CN", "ja", "th", "src", "")
    expected = ("13a", "13a", "zh", "zh", "char", "char", "13a", "13a")
    assert tuple(bleu_tokenizer(code) for code in codes) == expected
    near = (["今日は天気がいいです"], ["今日は天気が悪いです"])
    assert corpus_scores(*near, tokenize=bleu_tokenizer("ja")).bleu > 30
    assert corpus_scores(*near).bleu == 0


def test_reference_loss_is_the_mean_over_tokens(
    learnt: Loaded, learnt_pairs: tuple[tuple[str, str], ...]
) -> None:
    tokenizers = learnt.tokenizers
    pairs = [(tokenizers.source.encode(s), tokenizers.target.encode(t)) for s, t in learnt_pairs]
    pairs += [(pairs[0][0], pairs[1][1])]  # one that surprises
    total, tokens = 0.0, 0
    with torch.inference_mode():
        for source, target in pairs:
            logits = learnt.model(torch.tensor([[*source, EOS]]), torch.tensor([[BOS, *target]]))
            log_p = logits[0].log_softmax(dim=-1)
            total -= float(log_p[range(len(target) + 1), [*target, EOS]].sum())
            tokens += len(target) + 1
    for batch_tokens in (1, 60, 10_000):
        loss = reference_loss(learnt.model, pairs, batch_tokens)
        assert loss is not None
        assert (loss.tokens, loss.left_out) == (tokens, 0)
        assert loss.nll == pytest.approx(total / tokens, rel=1e-4)
        assert loss.perplexity == pytest.approx(math.exp(loss.nll))


def test_reference_loss_leaves_out_what_is_too_long(learnt: Loaded) -> None:
    loss = reference_loss(learnt.model, [([4] * 63, [5] * 63), ([4] * 64, [5]), ([4], [5] * 64)])
    assert loss is not None
    assert (loss.tokens, loss.left_out) == (64, 2)
    assert reference_loss(learnt.model, [([4] * 64, [5])]) is None
    assert reference_loss(learnt.model, []) is None
