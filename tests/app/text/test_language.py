"""Texts as rows of bytes, language models of bytes, and what is measured of them."""

from __future__ import annotations

import json
import math

import pytest
import safetensors.numpy
import torch
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from text_cases import texts, tiny_texts  # noqa: F401
from torch import nn

import adadp
from adadp.app.cli import main
from adadp.app.features import extract, parse_features
from adadp.app.language import NextToken, bits_on, next_value_loss, sample
from adadp.app.predict import load_model
from adadp.app.text_rows import row_texts, text_blocks, text_rows
from adadp.app.zoo import WEIGHTS, cached_form, find, load, wordllama_files
from adadp.app.zoo.byte_decoder import VALUES, ByteDecoder
from adadp.app.zoo.models import build_model
from adadp.errors import InputError


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12), min_size=1, max_size=4))
@settings(max_examples=50, deadline=None)
def test_a_text_that_fits_comes_back_as_it_was(words):
    assert row_texts(text_rows(words, 60)) == words


def test_a_long_text_is_cut_between_characters():
    rows = text_rows(["aé", "é\0b", "\ud800x", ""], 2)
    assert rows.dtype == torch.uint8
    assert row_texts(rows) == ["a", "é", "?x", ""]
    assert (rows[3] == 0).all()


def test_blocks_are_the_text_in_order_and_leave_out_its_end():
    assert row_texts(text_blocks("abcdefgh", 3)) == ["abc", "def"]
    assert text_blocks("ab", 3).shape == (0, 3)


class Uniform(NextToken):
    """Knows nothing; the scores of its parameter are all 0."""

    unit, context = "byte", 8

    def __init__(self):
        super().__init__()
        self.scores = nn.Parameter(torch.zeros(VALUES))

    def forward(self, rows):
        return self.scores.expand(*rows.shape, VALUES)


def test_who_knows_nothing_needs_the_logarithm_of_all_bytes():
    rows = text_rows(["abc", "a", "", "abcdefgh"], 8)
    assert next_value_loss(Uniform(), rows).tolist() == pytest.approx([math.log(VALUES), 0, 0, math.log(VALUES)])
    assert bits_on(rows, "byte").measure(Uniform()) == pytest.approx(math.log2(VALUES))
    assert math.isnan(bits_on(rows[1:3], "byte").measure(Uniform())), "nothing is guessed, so nothing is known"


def test_bits_are_the_mean_over_positions_and_not_over_texts():
    model = Uniform()
    with torch.no_grad():
        model.scores[ord("b") - 1] = 3.0
    rows = text_rows(["aaaa", "ab"], 4)
    logs = torch.log_softmax(model.scores, 0)
    a, b = -float(logs[ord("a") - 1]), -float(logs[ord("b") - 1])
    assert bits_on(rows, "byte").measure(model) == pytest.approx((3 * a + b) / 4 / math.log(2), rel=1e-5)
    assert next_value_loss(model, rows).tolist() == pytest.approx([a, b], rel=1e-5)


def decoder():
    model = build_model("byte-decoder:32,2", input_shape=(12,), classes=2, seed=0)
    for value in model.head.parameters():
        nn.init.normal_(value, std=0.1)
    return model.eval()


def test_a_position_sees_nothing_that_comes_after_it():
    model, rows = decoder(), torch.randint(1, 256, (3, 12))
    changed = rows.clone()
    changed[:, 7:] = torch.randint(1, 256, (3, 5))
    with torch.no_grad():
        before, after = model(rows), model(changed)
    torch.testing.assert_close(before[:, :7], after[:, :7], atol=1e-6, rtol=1e-5)
    assert not torch.allclose(before[:, 7:], after[:, 7:], atol=1e-3)


def test_padding_changes_no_loss():
    model, rows = decoder(), text_rows(["hello you"], 12).long()
    torch.testing.assert_close(next_value_loss(model, rows), next_value_loss(model, rows[:, :9]))


@pytest.mark.slow
def test_the_decoder_is_computed_by_closed_forms(recwarn):
    model = decoder()
    rows = torch.randint(0, 256, (60, 12))
    adadp.fit(model, (rows,), loss=next_value_loss, epsilon=8, delta=1e-3, steps=1, batch_size=20, seed=0)
    assert not [each for each in recwarn if "slower" in str(each.message)]


def test_sizes_and_records_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match="heads"):
        ByteDecoder(8, width=20)
    with pytest.raises(InputError, match="needs 2 sizes"):
        build_model("byte-decoder:32", input_shape=(8,), classes=2, seed=0)
    with pytest.raises(InputError, match="cannot read records of shape"):
        build_model("byte-decoder", input_shape=(1, 8, 8), classes=2, seed=0)
    with pytest.raises(InputError, match="rows of bytes"):
        parse_features("bytes")[0].output_shape((1, 28, 28))
    with pytest.raises(InputError, match="length of at most 16"):
        parse_features("bytes:length=32")[0].output_shape((16,))


def test_a_text_is_drawn_from_its_seed_and_goes_beyond_the_context():
    model = decoder()
    first = sample(model, "ab", length=20, seed=1)
    assert first.startswith("ab")
    assert first == sample(model, "ab", length=20, seed=1) != sample(model, "ab", length=20, seed=2)
    with pytest.raises(InputError, match="empty"):
        sample(model, "", length=20)
    with pytest.raises(InputError, match="no language model"):
        sample(nn.Linear(2, 2), "a", length=4)


@pytest.mark.slow
def test_a_language_model_from_the_command_line_to_verify(tiny_texts, tmp_path):
    out = tmp_path / "run"
    line = ["train", "--data", tiny_texts, "--model", "byte-decoder:16,1", "--features", "bytes:length=16"]
    line += ["--epsilon", "8", "--delta", "1e-4", "--epochs", "4", "--batch-size", "60", "--out", str(out)]
    line += ["--evaluate-every", "2"]
    result = CliRunner().invoke(main, line)
    assert result.exit_code == 0, result.output
    assert "bits per byte" in result.stdout
    assert "accuracy" not in result.stdout
    assert "bytes:length=16" in result.stdout
    metrics = [json.loads(each) for each in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    bits = [each["evaluation"]["value"] for each in metrics if "evaluation" in each]
    assert len(bits) == 2
    assert bits[-1] < math.log2(VALUES) - 1
    assert "bits per byte" in (out / "report.html").read_text(encoding="utf-8")
    assert CliRunner().invoke(main, ["verify", str(out)]).exit_code == 0
    trained = load_model(out)
    assert sample(trained.model, "good", length=16)[:4] == "good"
    with pytest.raises(InputError, match="language model"):
        trained.predict(text_rows(["good"], 48))


@pytest.mark.slow
def test_a_choice_among_settings_of_a_language_model_is_refused(tiny_texts, tmp_path):
    line = ["tune", "--data", tiny_texts, "--model", "byte-decoder", "--epsilon", "8", "--delta", "1e-4"]
    result = CliRunner().invoke(main, [*line, "--out", str(tmp_path / "out")])
    assert result.exit_code != 0
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def wordllama():
    pytest.importorskip("tokenizers")
    try:
        return wordllama_files()
    except InputError as error:
        pytest.skip(f"the vectors of WordLlama cannot be had: {error.what}")


def test_word_vectors_are_those_of_the_package(wordllama):
    """Up to their length: the package leaves the mean as it is."""
    package = pytest.importorskip("wordllama.inference")
    from tokenizers import Tokenizer

    words = ["A film that I liked.", "Das war nichts.", "x " * 900]
    found = extract(parse_features("wordllama"), text_rows([*words, ""], 4096), part="train")
    weights, tokenizer = wordllama
    inference = package.WordLlamaInference(
        safetensors.numpy.load(weights)["embedding.weight"], Tokenizer.from_str(tokenizer.decode())
    )
    vectors = torch.from_numpy(inference.embed(words, norm=True)).float()
    torch.testing.assert_close(found[:2], vectors[:2], atol=1e-3, rtol=1e-2)
    assert found.norm(dim=1).tolist() == pytest.approx([1, 1, 1, 0], abs=1e-6)
    assert not found.is_inference(), "a network is trained on them"


@pytest.mark.slow
def test_features_of_a_text_do_not_depend_on_the_others(wordllama):
    rows = text_rows([*texts(7, 5)[0], "something else"], 64)
    stages = parse_features("wordllama:length=4")
    whole = extract(stages, rows, part="train")
    for place in range(len(rows)):
        assert torch.equal(extract(stages, rows[place : place + 1], part="train")[0], whole[place])


def test_the_certificate_names_the_vectors(wordllama):
    (said,) = parse_features("wordllama")[0].public
    assert WEIGHTS["wordllama"].title in said


@pytest.mark.slow
def test_reviews_are_classified_above_chance_from_python(wordllama):
    if cached_form(find("imdb")) is None:
        pytest.skip("imdb is not here: run 'adadp data fetch imdb' first")
    data = load("imdb")
    train, test = ((part[0][:3000], part[1][:3000]) for part in (data.train, data.test))
    result = adadp.fit(
        build_model("linear", input_shape=(256,), classes=2, seed=0), train, features="wordllama:length=64",
        epsilon=3, delta=1e-5, batch_size=600, epochs=10, clip_norm=0.1, lr=0.1, optimizer="adam", test=test, seed=0,
    )  # fmt: skip
    assert 0.65 < result.test_accuracy < 0.9
