import pytest

from headlab.data.cleaning import (
    LengthRules,
    fault,
    length_fault,
    length_ratio,
    plain_lines,
    segments,
    sentences,
    strip_markdown,
)

RULES = LengthRules(min_words=3, max_words=5, min_characters=3, max_characters=10, max_ratio=2.5)


@pytest.mark.parametrize(
    ("marked", "plain"),
    [
        ("**Warning:** go on", "Warning: go on"),
        ("see [the *manual*]({url}#top) now", "see the manual now"),
        ("![picture](/static/a.png) Press it", "Press it"),
        ("Edit `configuration.yaml`", "Edit configuration.yaml"),
        ("## Heading", "Heading"),
        ("- item one", "item one"),
        ("12. step", "step"),
        ("set {entity_id} and media_id", "set {entity_id} and media_id"),
        ("_so_ it is", "so it is"),
        ("*Events*를 켜기", "Events를 켜기"),
        ("2 * 3 * 4", "2 * 3 * 4"),
        ("a\u00a0: b\u202f!", "a : b !"),
    ],
)
def test_markdown_is_taken_off(marked, plain):
    assert strip_markdown(marked) == plain


def test_lines_and_no_blank_ones():
    assert plain_lines("One\n\n- two\r\n  \n3. three") == ["One", "two", "three"]


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("Go on. Stop here! Why?", ["Go on.", "Stop here!", "Why?"]),
        ("Use e.g. Firefox or so.", ["Use e.g. Firefox or so."]),
        ("Dauert ca. Zehn Minuten.", ["Dauert ca. Zehn Minuten."]),
        ("Wait. then go", ["Wait. then go"]),
        ("On port 80. Then go.", ["On port 80.", "Then go."]),
        ("Version 2.5 is out", ["Version 2.5 is out"]),
        ("終了します。再起動！", ["終了します。", "再起動！"]),
        ('He said "yes." {name} left.', ['He said "yes."', "{name} left."]),
    ],
)
def test_sentences(line, parts):
    assert sentences(line) == parts


def test_cut_where_both_sides_split_alike():
    source = "**Done.** Press the button.\n\n- Use {name} now"
    target = "**Fini.** Pressez le bouton.\n- Utilisez {name} maintenant"
    assert list(segments(source, target)) == [
        ("Done.", "Fini."),
        ("Press the button.", "Pressez le bouton."),
        ("Use {name} now", "Utilisez {name} maintenant"),
    ]


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("Failed, try again", "Échec. Réessayez."),  # one sentence and two
        ("Take {a}. Leave {b}.", "Prenez {b}. Laissez {a}."),  # placeholders change places
        (
            "Stop. The device has a certificate of its own, leave this option off",
            "Stop. Das",
        ),  # a sentence far from as long as the other
    ],
)
def test_kept_whole_where_they_do_not(source, target):
    assert list(segments(source, target)) == [(source, target)]


def test_other_number_of_lines_is_joined():
    assert list(segments("One line\nand more", "Eine Zeile und mehr")) == [
        ("One line and more", "Eine Zeile und mehr")
    ]


@pytest.mark.parametrize(
    ("source", "target", "reason"),
    [
        ("See https://a.b now", "Voir https://a.b ici", "address"),
        ("Write to me@example.com", "Écrire à me@example.com", "address"),
        ("Press <b>OK</b> now", "Pressez <b>OK</b>", "markup"),
        ("Rinse &amp; hold", "Rincer", "markup"),
        ("{n, plural, one {# day} other {# days}}", "{n} jours", "markup"),
        ("{{ states('x') }} is on", "est allumé", "markup"),
        ("[%key:common::state::on%]", "Allumé", "markup"),
        ("Value %(name)s is bad", "Valeur mauvaise", "markup"),
        ("| a | b |", "| c | d |", "markup"),
        ("Open {name}", "Ouvrir", "placeholders differ"),
        ("Open {name}", "Ouvrir {Name}", "placeholders differ"),
        ("Smart Plug", "smart plug", "identical"),
        ("{a} 40%", "{a} 40 %", "no letters"),
        ("Open {name} by 50%", "Ouvrir {name} à 50 %", None),
        ("Power <59 min", "Puissance < 59 min", None),
    ],
)
def test_faults(source, target, reason):
    assert fault(source, target) == reason


@pytest.mark.parametrize(
    ("pair", "languages", "reason"),
    [
        (("two words", "deux mots ici"), ("en", "fr"), "too short"),
        (("three small words", "Einwort"), ("en", "de"), None),
        (("a b c d e", "a b c d e f"), ("en", "fr"), "too long"),
        (("a b c d e f", "a"), ("en", "fr"), "too long"),
        (("{a long name}", "x"), ("en", "fr"), "too short"),
        (("温度", "the temperature"), ("zh-Hans", "en"), "too short"),
        (("温度計", "thermometer"), ("ja", "en"), None),
        (("set the temperature", "温度" * 6), ("en", "zh-Hant"), "too long"),
        (("set the temperature", "温度{a_rather_long_name}"), ("en", "ja"), None),
    ],
)
def test_lengths(pair, languages, reason):
    assert length_fault(pair, *languages, RULES) == reason


def test_length_ratio_counts_a_placeholder_once():
    assert length_ratio("ab {long_name}", "abcdefg {x}") == 9 / 4
