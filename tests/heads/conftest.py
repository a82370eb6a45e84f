"""A model whose heads do what was planted in their weights, on a made-up language."""

import random
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from headlab.checkpoint import contents
from headlab.data.tokenizer import EOS, Tokenizers, train_tokenizer
from headlab.transformer import Transformer

LEXICON = {
    "sees": "voit", "big": "grand", "red": "rouge", "cat": "chat", "dog": "chien",
    "soon": "bientôt", "never": "jamais", "here": "ici", "now": "maintenant",
}  # fmt: skip
ADJECTIVES, NOUNS, RARE = ("big", "red"), ("cat", "dog"), ("soon", "never", "here", "now")
SHARP = 60.0  # scores that leave a softmax no doubt


class Planted(NamedTuple):
    """Where things are."""

    checkpoint: Path
    sources: list[str]  # of the test split
    targets: list[str]
    conllu: Path  # parses of the sources
    model: Transformer
    tokenizers: Tokenizers


def sentence(draw: random.Random) -> list[str]:
    """A verb, up to two adjectives and the verb's object; a rarer word before or after."""
    words = ["sees", *draw.sample(ADJECTIVES, draw.randint(0, 2)), draw.choice(NOUNS)]
    words.insert(0 if draw.random() < 0.3 else len(words), draw.choice(RARE))
    return words


def parse(words: list[str]) -> str:
    """The sentence in CoNLL-U: ``obj`` and ``amod``."""
    verb = words.index("sees") + 1
    noun = next(i for i, word in enumerate(words, start=1) if word in NOUNS)
    lines = []
    for i, word in enumerate(words, start=1):
        head, relation = verb, "dep"
        if i == verb:
            head, relation = 0, "root"
        elif i == noun:
            relation = "obj"
        elif word in ADJECTIVES:
            head, relation = noun, "amod"
        lines.append(f"{i}\t{word}\t_\t_\t_\t_\t{head}\t{relation}\t_\t_\n")
    return "".join(lines) + "\n"


def plant(model: Transformer, tokenizers: Tokenizers, counts: Counter[int]) -> None:
    """Give each head its task. Embeddings are a one-hot token beside a one-hot position."""
    vocabulary, table = tokenizers.source.vocab_size, model.max_length
    assert table is not None
    source, target = tokenizers.source.encode, tokenizers.target.encode
    scale = SHARP * vocabulary**0.5  # scores are divided by sqrt(head_dim)
    place = vocabulary + torch.arange(table)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.zero_()
        for embedding in (model.source_embedding, model.target_embedding):
            embedding.weight[:, :vocabulary] = torch.eye(vocabulary) / model.d_model**0.5
        for position in (model.source_position, model.target_position):
            position.table[torch.arange(table), place] = 1.0
        heads = {
            site: model.attentions(site)[0].in_projection.weight.view(3, 4, vocabulary, -1)
            for site in ("encoder", "decoder", "cross")
        }
        rows = torch.arange(table)
        for site in ("encoder", "decoder"):  # head 0: the token before
            queries, keys, _ = heads[site]
            queries[0, rows[:-1], place[1:]] = scale
            keys[0, rows, place] = 1.0
        queries, keys, _ = heads["encoder"]
        queries[1, 0, place] = scale  # head 1: the rarest
        for rank, (token, _) in enumerate(counts.most_common(), start=1):
            keys[1, 0, token] = rank
        queries[2, 0, source("sees")[0]] = scale  # head 2: from the verb to its object
        for noun in NOUNS:
            keys[2, 0, source(noun)[0]] = 1.0
        queries, keys, _ = heads["decoder"]
        queries[1, 0, place] = scale  # head 1: <s>, which is the first
        keys[1, 0, place[0]] = 1.0
        queries[2, rows, place] = scale  # head 2: itself
        keys[2, rows, place] = 1.0
        queries, keys, _ = heads["cross"]
        for one, other in LEXICON.items():  # head 0: the translation of the token just read
            queries[0, source(one)[0], target(other)[0]] = scale
        tokens = torch.arange(vocabulary)
        keys[0, tokens, tokens] = 1.0
        queries[1, rows, place] = scale  # head 1: the same position
        keys[1, rows, place] = 1.0
        queries[2, 0, place] = scale  # head 2: the end of sentence
        keys[2, 0, EOS] = 1.0
        # Head 3 looks everywhere alike. And whatever is translated becomes a word again and again.
        model.output.weight[target("chat")[0], place] = 1.0


@pytest.fixture(scope="session")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Planted:
    """A checkpoint of such a model, with the corpus that it says it was trained on."""
    folder = tmp_path_factory.mktemp("planted")
    draw = random.Random(1)
    splits = {}
    for split, size in {"train": 400, "validation": 20, "test": 90}.items():
        english = [sentence(draw) for _ in range(size)]
        splits[split] = [(words, [LEXICON[word] for word in words]) for words in english]
        lines = (f"{' '.join(words)}\t{' '.join(others)}\n" for words, others in splits[split])
        (folder / f"{split}.tsv").write_text("".join(lines), encoding="utf-8")
    texts = [word for pair in LEXICON.items() for word in pair]
    tokenizer = train_tokenizer(
        texts * 3, vocab_size=360, kind="bpe", character_coverage=1.0, lowercase=False
    )
    tokenizers = Tokenizers(tokenizer, tokenizer)
    assert [len(row) for row in tokenizer.encode_all(texts)] == [1] * len(texts)
    length = 16
    model = Transformer(
        source_vocab_size=tokenizer.vocab_size,
        target_vocab_size=tokenizer.vocab_size,
        d_model=tokenizer.vocab_size + length,
        heads=4,
        encoder_layers=1,
        decoder_layers=1,
        feed_forward=1,
        norm="post",
        dropout=0.0,
        tie_embeddings="none",
        attention={"head_dim": tokenizer.vocab_size},
        position={"kind": "learned", "max_length": length},
    ).eval()
    train = [" ".join(words) for words, _ in splits["train"]]
    counts = Counter(i for row in tokenizer.encode_all(train) for i in row)
    plant(model, tokenizers, counts)
    config = {
        "data": {
            "_target_": "headlab.data.files.Files",
            "source": "src",  # no language that a parser would be looked for
            "target": "tgt",
            "root": str(folder / "data"),
            "limit": None,
            **{split: str(folder / f"{split}.tsv") for split in splits},
            "format": None,
            "source_column": None,
            "target_column": None,
            "validation_share": 0.03,
            "test_share": 0.05,
        },
        "decoding": {"beam": 1, "max_ratio": 1.0, "max_extra": 2},
    }
    path = folder / "best.ckpt"
    weights = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    described = contents(model, tokenizers, config)
    torch.save({"headlab": described, "state_dict": weights, "global_step": 1}, path)
    conllu = folder / "test.conllu"
    conllu.write_text("".join(parse(words) for words, _ in splits["test"]), encoding="utf-8")
    sources, targets = ([" ".join(pair[i]) for pair in splits["test"]] for i in (0, 1))
    return Planted(path, sources, targets, conllu, model, tokenizers)
