import itertools
import json
import random
import zipfile

import pytest

from headlab.data.splits import place
from headlab.data.text import sha256_of
from headlab.errors import HeadlabError

SOUNDS = [a + b for a in "bdfgklmnprst" for b in "aeiou"]


def sentence(number):
    """The number-th sentence, made of three words that no other sentence has in that order."""
    one, two = divmod(number, len(SOUNDS))
    return f"the {SOUNDS[one]}{SOUNDS[two]} is {SOUNDS[two]}"


def wheel(path, catalogs, seed=0):
    """A zip with the catalogs {(component, language): tree} in a shuffled order."""
    path.parent.mkdir(parents=True, exist_ok=True)
    entries = sorted(catalogs.items())
    random.Random(seed).shuffle(entries)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("homeassistant/components/demo/manifest.json", "{}")
        archive.writestr("homeassistant/components/demo/deep/translations/en.json", '{"a": "b"}')
        for (component, language), tree in entries:
            name = f"homeassistant/components/{component}/translations/{language}.json"
            archive.writestr(name, json.dumps(tree))


@pytest.fixture
def make(build, tmp_path):
    """Builds the corpus out of a wheel with the given catalogs."""
    counter = itertools.count()

    def corpus(catalogs, seed=0, **options):
        root = tmp_path / f"root{next(counter)}"
        path = root / "home_assistant" / "homeassistant-2026.11.0-py3-none-any.whl"
        wheel(path, catalogs, seed)
        options = {"sha256": sha256_of(path), "root": str(root), **options}
        return build("home_assistant", **options)

    return corpus


def filler(count=400):
    english = {f"k{i}": f"Here {sentence(i)}" for i in range(count)}
    french = {f"k{i}": f"Voici {sentence(i)}" for i in range(count)}
    return {("filler", "en"): english, ("filler", "fr"): french}


def everything(splits):
    return [
        (split, row["source"], row["target"]) for split in splits for row in splits[split].to_list()
    ]


def test_joined_cut_and_cleaned(make):
    catalogs = filler()
    catalogs["demo", "en"] = {
        "title": "Demo",
        "config": {
            "a": "**Press** the button. Wait for the light.",
            "b": "See https://example.com/page for more",
            "c": "Only English has this one",
            "d": "Open the {name} device",
            "e": "Set the value now",
            "number": 7,
        },
    }
    catalogs["demo", "fr"] = {
        "title": "Démo",
        "config": {
            "a": "**Pressez** le bouton. Attendez la lumière.",
            "b": "Voir https://example.com/page pour plus",
            "d": "Ouvrez l'appareil {nom} ici",
            "e": "Fixez la valeur",
            "number": 7,
        },
    }
    catalogs["zebra", "en"] = {"e": "Set the value now"}
    catalogs["zebra", "fr"] = {"e": "Une autre traduction ici"}
    corpus = make(catalogs)
    rows = {source: target for _, source, target in everything(corpus.load())}
    assert rows["Press the button."] == "Pressez le bouton."
    assert rows["Wait for the light."] == "Attendez la lumière."
    assert rows["Set the value now"] == "Fixez la valeur"
    assert len(rows) == 403
    dropped = {}
    for report in corpus.reports.values():
        assert report.read == report.kept + sum(report.dropped.values())
        for reason, count in report.dropped.items():
            dropped[reason] = dropped.get(reason, 0) + count
    assert dropped == {
        "too short": 1,
        "address": 1,
        "placeholders differ": 1,
        "repeated source": 1,
    }


def test_splits_and_order_do_not_depend_on_the_zip(make):
    first = make(filler(3000), seed=1).load()
    second = make(filler(3000), seed=2).load()
    assert everything(first) == everything(second)
    # The first hundred come from all over the catalog, not from its beginning.
    by_key = sorted(range(3000), key=lambda number: f"k{number}")
    beginning = {f"Here {sentence(number)}" for number in by_key[:1000]}
    assert 15 < sum(source in beginning for source in first["train"]["source"][:100]) < 55
    assert 0.9 < len(first["train"]) / 3000 < 0.94
    assert 0.02 < len(first["validation"]) / 3000 < 0.04
    assert 0.04 < len(first["test"]) / 3000 < 0.06


def test_siblings_share_a_split(make):
    catalogs = filler(300)
    for language, word in (("en", "Port"), ("fr", "Prise")):
        catalogs["sib", language] = {
            f"{i}-{form}": form.format(f"{word} {sentence(i)}", i)
            for i in range(300)
            for form in ("{} number {}", "{} NUMBER {}!", "({}) number {{count}} {}")
        }
    splits_of = {}
    for split, source, _ in everything(make(catalogs).load()):
        splits_of.setdefault(place(source), set()).add(split)
    assert all(len(splits) == 1 for splits in splits_of.values())


def test_far_too_long_translation(make):
    catalogs = filler()
    catalogs["x", "en"] = {"a": "Toggle the fan"}
    catalogs["x", "fr"] = {"a": "Bascule le ventilateur, par exemple celui du salon ou du grenier"}
    corpus = make(catalogs)
    corpus.load()
    assert sum(r.dropped.get("length ratio", 0) for r in corpus.reports.values()) == 1


def test_languages_without_spaces(make):
    catalogs = filler(0)
    catalogs["x", "en"] = {f"k{i}": sentence(i) for i in range(400)}
    catalogs["x", "ja"] = {f"k{i}": "温度計" + chr(0x4E00 + i) for i in range(400)}
    forth = make(catalogs, target="ja").load()
    back = make(catalogs, source="ja", target="en").load()
    assert sum(map(len, forth.values())) == sum(map(len, back.values())) == 400


def test_unknown_language_names_near_ones(make):
    catalogs = filler(3)
    for code in ("zh-Hans", "zh-Hant", "pt-BR"):
        catalogs["x", code] = {"a": "b"}
    with pytest.raises(HeadlabError, match=r"no language 'zh'; near it: zh-Hans, zh-Hant; all: en"):
        make(catalogs, target="zh").load()
    with pytest.raises(HeadlabError, match=r"no language 'pt_br'; near it: pt-BR"):
        make(catalogs, source="pt_br").load()
    with pytest.raises(HeadlabError, match=r"no language 'xx'; all: en fr"):
        make(catalogs, target="xx").load()


def test_too_few_pairs_stop(make):
    with pytest.raises(HeadlabError, match=r"home_assistant en-fr: nothing to use in the split"):
        make(filler(2)).load()


def test_wrong_checksum_and_broken_wheel(make, build, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(HeadlabError, match=r"pip could not download"):  # to replace it
        make(filler(3), sha256="0" * 64).load()
    assert any("its sha256 is not data.sha256" in message for message in caplog.messages)
    path = tmp_path / "r" / "home_assistant" / "homeassistant-2026.11.0-py3-none-any.whl"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"PK no zip")
    with pytest.raises(HeadlabError, match=r"broken wheel .*; delete it and run again"):
        build("home_assistant", root=str(tmp_path / "r"), sha256=sha256_of(path)).load()


def test_cached_corpus_needs_no_wheel(make):
    corpus = make(filler())
    corpus.load()
    corpus.wheel.unlink()
    assert len(corpus.load()["train"]) > 300


@pytest.mark.parametrize(
    ("key", "value"),
    [("min_words", 0), ("max_words", 2), ("max_length_ratio", 0.5), ("size", None)],
)
def test_numbers_are_checked(build, key, value):
    with pytest.raises(HeadlabError, match=rf"data\.{key}="):
        build("home_assistant", **{key: value})
