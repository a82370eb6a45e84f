import pytest
import torch

from headlab.checkpoint import Loaded
from headlab.decoding import Translator
from headlab.errors import HeadlabError
from headlab.evaluation import corpus_scores, reference_loss
from headlab.head_names import Head
from headlab.heads.gates import gates_without
from headlab.heads.measure import Measurement, Measurer
from headlab.heads.study import Study
from headlab.heads.surgery import cut_heads


def measurer(learnt: Loaded, pairs, **options) -> Measurer:
    return Measurer(learnt, [a for a, _ in pairs], [b for _, b in pairs], **options)


def test_no_gates_is_the_plain_model(learnt: Loaded, learnt_pairs) -> None:
    found = measurer(learnt, learnt_pairs).measure()
    translations = Translator.from_loaded(learnt).translate([a for a, _ in learnt_pairs])
    assert found.hypotheses == [text.replace("\n", " ") for text in translations]
    assert found.scores == corpus_scores(found.hypotheses, [b for _, b in learnt_pairs])
    pairs = learnt.tokenizers.encode_pairs(*zip(*learnt_pairs, strict=True))
    loss = reference_loss(learnt.model, pairs)
    assert loss is not None
    assert found.nll == pytest.approx(loss.nll, rel=1e-12)
    assert sum(found.tokens) == loss.tokens


def test_a_closed_head_and_a_cut_one_measure_the_same(learnt: Loaded, learnt_pairs) -> None:
    one = measurer(learnt, learnt_pairs)
    for head in (Head("encoder", 0, 1), Head("cross", 0, 2), Head("decoder", 0, 3)):
        masked = one.measure(gates_without(learnt.model, [head]))
        cut = one.measure(model=cut_heads(learnt.model, [head]))
        assert masked.hypotheses == cut.hypotheses
        assert masked.losses == pytest.approx(cut.losses, abs=1e-4)
        assert masked.losses != one.measure().losses


def test_the_encoder_runs_once_for_all_gates_of_the_decoder(learnt: Loaded, learnt_pairs) -> None:
    one, calls = measurer(learnt, learnt_pairs), []
    learnt.model.encoder[0].register_forward_hook(lambda *_: calls.append(1))
    one.measure()
    before = len(calls)
    for head in (Head("cross", 0, 0), Head("decoder", 0, 1)):
        one.measure(gates_without(learnt.model, [head]))
    assert len(calls) == before
    shared = one.measure(gates_without(learnt.model, [Head("cross", 0, 0)]))
    fresh = measurer(learnt, learnt_pairs)
    assert fresh.measure(gates_without(learnt.model, [Head("cross", 0, 0)])).losses == shared.losses
    one.measure(gates_without(learnt.model, [Head("encoder", 0, 0)]))
    assert len(calls) > before


def test_beam_search_takes_gates(learnt: Loaded, learnt_pairs) -> None:
    everything = gates_without(learnt.model, learnt.model.head_names)
    plain = measurer(learnt, learnt_pairs, beam=2)
    assert plain.measure().hypotheses != plain.measure(everything).hypotheses
    cut = plain.measure(model=cut_heads(learnt.model, learnt.model.head_names))
    assert plain.measure(everything).hypotheses == cut.hypotheses


def test_only_what_is_asked_for(learnt: Loaded, learnt_pairs) -> None:
    no_text = measurer(learnt, learnt_pairs, translate=False).measure()
    assert no_text.hypotheses is None
    assert no_text.scores is None
    assert no_text.nll is not None
    no_loss = measurer(learnt, learnt_pairs, likelihood=False).measure()
    assert no_loss.losses == []
    assert no_loss.nll is None
    assert no_loss.scores is not None
    sources = [a for a, _ in learnt_pairs]
    alone = Measurer(learnt, sources, None, likelihood=False).measure()
    assert alone.scores is None
    assert len(alone.hypotheses or []) == len(sources)
    with pytest.raises(HeadlabError, match="needs references"):
        Measurer(learnt, sources, None)


def test_blank_and_too_long_sentences_count_nothing(learnt: Loaded) -> None:
    sources, references = ["the light is on", " ", "x" * 200], ["la lumière", "rien", "y"]
    found = Measurer(learnt, sources, references).measure()
    assert found.tokens[1:] == [0, 0]
    assert found.losses[1:] == [0.0, 0.0]
    assert len(found.hypotheses or []) == 3


def test_nothing_but_blanks_cannot_be_measured(learnt: Loaded) -> None:
    with pytest.raises(HeadlabError, match="every sentence is blank; there is nothing to measure"):
        Measurer(learnt, ["", " "], ["a", "b"])


def test_a_measurement_survives_a_study(tmp_path, learnt: Loaded, learnt_pairs) -> None:
    found = measurer(learnt, learnt_pairs).measure()
    checkpoint = tmp_path / "best.ckpt"
    checkpoint.write_bytes(b"weights")
    study = Study(checkpoint, "s", {})
    study.record("baseline", found)
    study.close()
    assert Study(checkpoint, "s", {}).done("baseline", Measurement) == found


def test_gates_without_names_only_the_sites_concerned(learnt: Loaded) -> None:
    gates = gates_without(learnt.model, [Head("cross", 0, 1), Head("cross", 0, 3)])
    assert list(gates) == ["cross"]
    assert torch.equal(gates["cross"], torch.tensor([[1.0, 0.0, 1.0, 0.0]]))
    assert gates_without(learnt.model, []) == {}
