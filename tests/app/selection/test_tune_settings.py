"""Settings: grids, files, and what may not differ."""

from __future__ import annotations

import pytest

from adadp.app.config import TrainConfig
from adadp.app.selection import grid, parse_grid, read_settings
from adadp.app.selection.settings import MAY_DIFFER, checked
from adadp.errors import InputError


def test_a_grid_is_every_combination():
    assert grid({"lr": [0.05, 0.1], "clip_norm": [0.5, 1]}) == (
        {"lr": 0.05, "clip_norm": 0.5},
        {"lr": 0.05, "clip_norm": 1},
        {"lr": 0.1, "clip_norm": 0.5},
        {"lr": 0.1, "clip_norm": 1},
    )


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["lr=0.05,0.1"], [{"lr": 0.05}, {"lr": 0.1}]),
        (["weight-decay=0, 1e-3"], [{"weight_decay": 0.0}, {"weight_decay": 1e-3}]),
        (["batch_size=60,auto"], [{"batch_size": 60}, {"batch_size": "auto"}]),
        (["method=adadp,dpsgd", "steps=4"], [{"method": "adadp", "steps": 4}, {"method": "dpsgd", "steps": 4}]),
        (["noise_schedule=uniform:|exp:k=0.1,start=2"], ["uniform:", "exp:k=0.1,start=2"]),
        (["lr=0.1|0.2"], [{"lr": 0.1}, {"lr": 0.2}]),
        (["model=mlp:10"], [{"model": "mlp:10"}]),
    ],
)
def test_grids_as_text(texts, expected):
    wanted = [each if isinstance(each, dict) else {"noise_schedule": each} for each in expected]
    assert list(parse_grid(texts)) == wanted


@pytest.mark.parametrize(
    ("texts", "match"),
    [
        (["lr"], "is not NAME=VALUES"),
        (["lr="], "is not NAME=VALUES"),
        (["lr=0.1", "lr=0.2"], "gives lr twice"),
        (["model=mlp:10,mlp:20"], "hold commas and colons"),
        (["lr=0.1,0.1"], "there twice"),
        (["learning_rate=0.1"], "Unknown setting"),
    ],
)
def test_grids_that_are_refused(texts, match):
    with pytest.raises(InputError, match=match):
        parse_grid(texts)


@pytest.mark.parametrize("name", sorted(set(TrainConfig.__dataclass_fields__) - set(MAY_DIFFER)))
def test_what_all_runs_share_cannot_differ(name):
    with pytest.raises(InputError, match=f"{name} cannot differ"):
        checked([{name: 1}])


def test_settings_of_a_file(tmp_path):
    path = tmp_path / "settings.toml"
    path.write_text('[[setting]]\nlr = 0.1\n[[setting]]\nmodel = "mlp:10"\nlr = 0.2\n')
    assert read_settings(path) == ({"lr": 0.1}, {"model": "mlp:10", "lr": 0.2})


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("lr = 1", "not a list of settings"),
        ("[[setting", "not TOML"),
        ("setting = 3", "not a list"),
        ("", "not a list"),
    ],
)
def test_files_that_are_refused(tmp_path, text, match):
    path = tmp_path / "settings.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=match):
        read_settings(path)
    with pytest.raises(InputError, match="cannot be read"):
        read_settings(tmp_path / "missing.toml")


@pytest.mark.parametrize("values", [{"lr": []}, {"lr": 0.1}, {"model": "linear"}])
def test_a_grid_needs_lists(values):
    with pytest.raises(InputError, match="no list of values"):
        grid(values)


def test_no_setting_is_no_search():
    with pytest.raises(InputError, match="no setting to choose"):
        checked([])
