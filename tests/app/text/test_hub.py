"""Public models of others: read from a folder, pinned by their digest, refused when they change or could run code."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file
from text_cases import bert, gpt, texts, tiny_texts, tokenizer  # noqa: F401

import adadp
from adadp.app.cli import main
from adadp.app.features import extract, features_text, parse_features
from adadp.app.hub import PublicModel, digest_of, folder_of, from_rows, token_rows
from adadp.app.hub_models import HubModel, classifier, language_model
from adadp.app.language import NextToken, bits_on, next_value_loss
from adadp.app.predict import load_model
from adadp.app.text_rows import text_rows
from adadp.app.zoo.models import build_model
from adadp.errors import InputError


def run(*arguments):
    result = CliRunner().invoke(main, [str(each) for each in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.slow
def test_the_text_of_a_stage_holds_the_digest_and_makes_it_again(bert):
    (stage,) = parse_features(f"hf:{bert},pooling=cls")
    assert stage.sha256 == digest_of(bert)
    assert parse_features(features_text((stage,))) == (stage,)
    assert str(bert) in stage.public[0]
    assert stage.sha256 in stage.public[0]


def test_a_pinned_stage_is_read_back_without_its_files():
    """A certificate is verified where the model is not."""
    text = f"hf:no/such-model,sha256={'0' * 64},length=8"
    assert features_text(parse_features(text)) == text


@pytest.mark.parametrize("changed", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_folder_that_has_changed_is_refused(bert, tmp_path, changed):
    folder = shutil.copytree(bert, tmp_path / "copy")
    (stage,) = parse_features(f"hf:{folder}")
    content = bytearray((folder / changed).read_bytes())
    (folder / changed).write_bytes(content + b" ")
    with pytest.raises(InputError, match="are not those the run was begun with"):
        stage.module((48,))


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("adapter_config.json", '{"base_model_name_or_path": "elsewhere"}'),
        ("model.safetensors.index.json", '{"weight_map": {"a": "parts/model.safetensors"}}'),
        ("model.safetensors.index.json", '{"weight_map": {"a": "../model.safetensors"}}'),
        ("model.safetensors.index.json", '{"weight_map": {"a": "/model.safetensors"}}'),
        ("model.safetensors.index.json", '{"weight_map": 5}'),
        ("model.safetensors.index.json", "["),
    ],
)
def test_weights_that_the_digest_would_not_cover_are_refused(bert, tmp_path, file, content):
    folder = shutil.copytree(bert, tmp_path / "copy")
    (folder / file).write_text(content)
    with pytest.raises(InputError, match="lie elsewhere"):
        parse_features(f"hf:{folder}")


def test_sharded_weights_beside_their_index_are_taken(bert, tmp_path):
    folder = shutil.copytree(bert, tmp_path / "copy")
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model.safetensors"}}')
    (stage,) = parse_features(f"hf:{folder}")
    assert stage.sha256 != digest_of(bert)


def test_weights_as_a_pickle_are_refused(bert, tmp_path):
    folder = shutil.copytree(bert, tmp_path / "copy")
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match="safetensors"):
        folder_of(str(folder))


def test_code_in_a_folder_is_not_run(bert, tmp_path):
    """A model of a kind that transformers knows is built by its own code, whatever a folder brings along."""
    folder = shutil.copytree(bert, tmp_path / "copy")
    ran = tmp_path / "ran"
    (folder / "evil.py").write_text(f"open({str(ran)!r}, 'w')\n", encoding="utf-8")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    for kind in ("unheard-of", "bert"):
        config |= {"model_type": kind, "auto_map": {"AutoConfig": "evil.Evil", "AutoModel": "evil.Evil"}}
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        try:
            (stage,) = parse_features(f"hf:{folder}")
            stage.module((48,))
        except InputError:
            assert kind == "unheard-of"
        assert not ran.exists()


def test_a_name_that_cannot_be_had_says_what_to_do(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    hub = pytest.importorskip("huggingface_hub")
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match="cannot be had") as caught:
        parse_features("hf:nobody/no-such-model")
    assert "name the folder" in caught.value.fix


def test_features_are_those_of_transformers_on_each_text_alone(bert, tokenizer):
    from transformers import AutoModel

    words, _ = texts(5, 3)
    words[2] = ""
    model = AutoModel.from_pretrained(bert).eval()
    for pooling in ("mean", "cls"):
        stages = parse_features(f"hf:{bert},length=16,pooling={pooling}")
        found = extract(stages, text_rows(words, 48), part="train")
        for text, features in zip(words, found, strict=True):
            with torch.no_grad():
                last = model(**tokenizer(text, return_tensors="pt", return_token_type_ids=False)).last_hidden_state[0]
            expected = last.mean(0) if pooling == "mean" else last[0]
            torch.testing.assert_close(features, expected / expected.norm(), atol=1e-5, rtol=1e-4)


def test_a_row_of_tokens_keeps_every_token_and_its_end(tokenizer):
    rows = token_rows(tokenizer, ["good bad", "", "good " * 20], 6)
    assert rows.tolist() == [[3, 5, 8, 4, 0, 0], [3, 4, 0, 0, 0, 0], [3, 5, 5, 5, 5, 4]]
    given = from_rows(rows, padding=9)
    assert given["input_ids"][0].tolist() == [2, 4, 7, 3, 9, 9]
    assert given["attention_mask"][0].tolist() == [1, 1, 1, 1, 0, 0]
    assert from_rows(torch.zeros(1, 3, dtype=torch.long), None)["attention_mask"].tolist() == [[1, 0, 0]]


@pytest.mark.parametrize(
    "text", ["hf:", "hf:a,task=sing", "hf:a,lora=0", "hf:a,lora=x", "hf:a,b", "hf:a,lora=1,lora=2"]
)
def test_a_model_that_cannot_be_read_is_refused(text):
    with pytest.raises(InputError, match=r"names no public model|cannot be read"):
        HubModel.of(text)


def test_the_text_of_a_model_makes_it_again(bert):
    model = HubModel.of(f"hf:{bert},lora=4,task=lm").pinned()
    assert HubModel.of(str(model)) == model
    assert model.model == PublicModel(str(bert), digest_of(bert))


def test_the_network_has_no_dropout_and_starts_from_the_public_weights(bert):
    network = build_model(f"hf:{bert}", input_shape=(16,), classes=3, seed=0).train()
    rows = torch.randint(0, 10, (4, 16))
    assert torch.equal(network(rows), network(rows))
    assert network(rows).shape == (4, 3)
    public = load_file(bert / "model.safetensors")
    assert torch.equal(
        network.state_dict()["model.bert.embeddings.word_embeddings.weight"],
        public["embeddings.word_embeddings.weight"],
    )
    with pytest.raises(InputError, match="reads at most 32 tokens"):
        build_model(f"hf:{bert}", input_shape=(64,), classes=3, seed=0)


def test_adapters_leave_the_public_weights_as_they_are(bert):
    pytest.importorskip("peft")
    network = build_model(f"hf:{bert},lora=2", input_shape=(16,), classes=2, seed=0)
    trained = {name for name, value in network.named_parameters() if value.requires_grad}
    assert trained
    assert all("lora" in name or "classifier" in name for name in trained)


@pytest.mark.slow
def test_a_classifier_of_a_folder_from_the_command_line_to_verify(bert, tiny_texts, tmp_path):
    out = tmp_path / "run"
    said = run(
        *(
            "train",
            "--data",
            tiny_texts,
            "--model",
            f"hf:{bert},lora=2",
            "--epsilon",
            8,
            "--delta",
            1e-4,
            "--epochs",
            2,
        ),
        *("--features", f"hf-tokens:{bert},length=8", "--batch-size", 60, "--lr", 0.01, "--optimizer", "adam"),
        *("--method", "dpsgd", "--out", out),
    )
    assert "test records:" in said
    assert digest_of(bert) in said
    assert "REHEARSAL" not in run("verify", out)
    trained = load_model(out)
    words, _ = texts(3, 9)
    assert trained.predict(text_rows(words, 48)).shape == (3,)


@pytest.mark.slow
def test_features_of_a_folder_from_the_command_line(bert, tiny_texts, tmp_path):
    out = tmp_path / "run"
    line = (
        "train",
        "--data",
        tiny_texts,
        "--features",
        f"hf:{bert},length=8",
        "--epsilon",
        8,
        "--delta",
        1e-4,
        "--out",
        out,
    )
    accuracy = json.loads(run(*line, "--seed", 0, "--epochs", 10, "--json").splitlines()[-1])["test_accuracy"]
    assert accuracy > 0.9, "the words tell the class, and random features tell the words apart"
    run("verify", out)


@pytest.mark.slow
def test_a_language_model_of_a_folder_learns_and_is_measured_in_bits(gpt, tiny_texts, tmp_path):
    out = tmp_path / "run"
    said = run(
        *("train", "--data", tiny_texts, "--model", f"hf:{gpt},task=lm", "--epsilon", 8, "--delta", 1e-4),
        *("--features", f"hf-tokens:{gpt},length=8", "--epochs", 3, "--batch-size", 60, "--lr", 0.01),
        *("--optimizer", "adam", "--method", "dpsgd", "--json", "--seed", 0, "--out", out),
    )
    found = json.loads(said.splitlines()[-1])
    assert found["test_accuracy"] is None
    assert found["evaluation"]["name"] == "bits per token"
    assert 0 < found["evaluation"]["value"] < 3.3, "below the 3.3 bits of ten tokens that are all alike"
    run("verify", out)


@pytest.mark.slow
def test_fit_takes_a_model_of_a_folder(bert, gpt):
    words, labels = texts(200, 4)
    rows = text_rows(words, 48)
    settings = {"epsilon": 8, "delta": 1e-4, "steps": 2, "batch_size": 20, "method": "dpsgd", "seed": 0}
    result = adadp.fit(
        classifier(str(bert), 2), (rows, torch.from_numpy(labels)), features=f"hf-tokens:{bert},length=8", **settings
    )
    assert result.model(rows[:3]).shape == (3, 2)
    model = language_model(str(gpt))
    assert isinstance(model, NextToken)
    (stage,) = parse_features(f"hf-tokens:{gpt},length=8")
    tokens = extract((stage,), rows, part="train")
    done = adadp.fit(model, (tokens,), loss=next_value_loss, evaluate=bits_on(tokens[:50], "token"), **settings)
    assert done.evaluation.name == "bits per token"


def test_a_folder_of_timm_gives_its_features(tmp_path):
    """Where torchvision was built for another torch, timm still works without its kernels."""
    pytest.importorskip("timm", exc_type=(ImportError, RuntimeError))
    import timm

    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = timm.create_model("test_resnet", pretrained=False).eval()
    timm.models.save_for_hf(model, tmp_path, safe_serialization=True)
    (stage,) = parse_features(f"timm:{tmp_path}")
    (width,) = stage.output_shape((3, 20, 24))
    images = torch.rand(3, 3, 20, 24)
    found = extract((stage,), images, part="train")
    assert found.shape == (3, width)
    config = model.pretrained_cfg
    mean, std = (torch.tensor(config[name]).reshape(3, 1, 1) for name in ("mean", "std"))
    scaled = torch.nn.functional.interpolate(images, config["input_size"][1:], mode="bilinear", antialias=True)
    with torch.no_grad():
        expected = model.forward_head(model.forward_features((scaled - mean) / std), pre_logits=True)
    torch.testing.assert_close(found, expected / expected.norm(dim=1, keepdim=True), atol=1e-5, rtol=1e-4)
    assert stage.output_shape((1, 20, 24)) == (width,)
    with pytest.raises(InputError, match="cannot read records"):
        stage.output_shape((2, 20, 24))
