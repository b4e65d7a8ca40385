"""Methods as text, both ways."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adadp.app.methods.adadp import AdaDp
from adadp.app.texts.methods import METHODS, parse_method
from adadp.errors import InputError
from adadp.lab.methods.agd import Agd
from adadp.lab.methods.dpopt import DpOpt
from adadp.lab.methods.momentum import DpSgdMomentum
from adadp.lab.methods.published import AdadpPublished, Adal, Adan
from adadp.methods import DpSgd

POSITIVE = st.floats(1e-300, 1e300)
ADADP = st.builds(
    AdaDp,
    power=st.floats(0, 1) | st.integers(0, 1),
    memory=st.floats(0, 1, exclude_max=True),
    start=st.integers(1, 10**20),
    lowest=st.floats(1e-3, 1, exclude_max=True),
    highest=st.floats(1, 1e3, exclude_min=True),
)
PUBLISHED = st.builds(
    AdadpPublished,
    clip=st.sampled_from(["example", "batch"]),
    square=st.sampled_from(["mean-of-squares", "square-of-mean"]),
    size=st.sampled_from(["model", "layer"]),
    gate=st.sampled_from(["sqrt", "moment"]),
    beta=POSITIVE,
    threshold=st.floats(0, 1e300),
    keep=st.floats(0, 1, exclude_max=True),
)
MOMENTUM = st.builds(
    DpSgdMomentum,
    variant=st.sampled_from(["both", "momentum", "clip", "neither"]),
    c=st.floats(0, 1, exclude_max=True),
)
AGD = st.builds(
    Agd,
    score=st.sampled_from(["gain", "loss"]),
    c_obj=POSITIVE,
    share=POSITIVE,
    start=POSITIVE,
    gamma=POSITIVE,
    grid=st.integers(1, 10**9),
    longest=POSITIVE,
    tau=st.integers(1, 10**9),
    eta=st.floats(0, 1e300),
)
DPOPT = st.builds(
    DpOpt,
    source=st.sampled_from(["released", "raw"]),
    solver=st.sampled_from(["closed", "projected"]),
    steps=st.integers(1, 10**9),
    memory=st.floats(0, 1, exclude_max=True),
    start=st.integers(1, 10**20),
    lowest=st.floats(1e-3, 1, exclude_max=True),
    highest=st.floats(1, 1e3, exclude_min=True),
)
ADAN = st.builds(Adan, st.sampled_from(["raw", "released"]))
ANY = st.one_of(ADADP, PUBLISHED, MOMENTUM, AGD, DPOPT, ADAN, st.just(Adal()))


@given(ANY | st.just(DpSgd()))
def test_every_method_reads_back_as_itself(method):
    read = parse_method(str(method))
    assert read == method
    assert type(read) is type(method)
    assert str(read) == str(method)


@given(ADADP, st.permutations(["power", "memory", "start", "lowest", "highest"]), st.sampled_from(["", " ", "  "]))
def test_order_and_blanks_do_not_matter(method, order, blank):
    options = [f"{name}{blank}={blank}{getattr(method, name)!r}" for name in order]
    assert parse_method(f"{blank}adadp{blank}:{blank}" + f"{blank},{blank}".join(options) + blank) == method


@pytest.mark.parametrize(
    ("text", "method"),
    [
        ("adadp", AdaDp()),
        ("adadp:start=50", AdaDp(start=50)),
        ("adadp:power=0.4,start=50", AdaDp(power=0.4, start=50)),
        ("adadp:power=0.0", AdaDp(power=0.0)),
        ("adadp:memory=0.5,lowest=0.25,highest=4.0", AdaDp(memory=0.5, lowest=0.25, highest=4.0)),
        ("dpsgd", DpSgd()),
    ],
)
def test_known_texts(text, method):
    assert parse_method(text) == method
    assert str(method) == text


def test_only_what_differs_from_the_default_is_written():
    default = AdaDp()
    assert str(AdaDp(power=default.power, start=default.start)) == "adadp"
    assert str(parse_method(f"adadp:start={default.start},power=0.125,highest=1e1")) == "adadp:power=0.125"


def test_names_are_those_of_the_methods_and_the_first_is_the_default():
    assert next(iter(METHODS)) == "adadp"
    assert all(str(parse_method(name)) == name == kind.name for name, kind in METHODS.items())
    private = [name for name in METHODS if parse_method(name).not_private is None]
    assert private == ["adadp", "dpsgd", "adal", "agd", "dpopt", "dpsgd-momentum"]


def test_a_method_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        parse_method("adadp").power = 1.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Unknown method ''.*Use one of: adadp, dpsgd, adadp-published, adal, adan, agd, dpopt, dpsgd-momentum"),
        ("sgd", "Unknown method 'sgd'"),
        ("AdaDP", "Unknown method 'AdaDP'"),
        ("adadp power=1", "Unknown method 'adadp power=1'"),
        (":power=1", "Unknown method ''"),
        (
            "adadp:",
            "The method adadp has no option ''.*Its options are: power=.*, memory=.*, start=.*, lowest=.*, highest=",
        ),
        ("adadp:power=1,", "no option ''"),
        ("adadp:=1", "no option ''"),
        ("adadp:Power=1", "no option 'Power'"),
        ("adadp:beta=1", "no option 'beta'"),
        ("adadp:name=dpsgd", "no option 'name'"),
        ("adadp:defaults=1", "no option 'defaults'"),
        ("dpsgd:power=1", "The method dpsgd has no option 'power'. It has no options."),
        ("dpsgd:", "It has no options"),
        ("adadp:power", "power= of adadp cannot be read.*Its options are"),
        ("adadp:power=", "power= of adadp cannot be read"),
        ("adadp:power=half", "power=half of adadp cannot be read"),
        ("adadp:power=1=2", "power=1=2 of adadp cannot be read"),
        ("adadp:start=2.5", "start=2.5 of adadp cannot be read"),
        ("adadp:start=1e3", "start=1e3 of adadp cannot be read"),
        ("adadp:start=0", "start must be at least 1"),
        ("adadp:power=nan", "power must be finite"),
        ("adadp:power=-1", "power must not be negative"),
        ("adadp:memory=1", "memory must be below 1"),
        ("adadp:lowest=2", "both sides of 1"),
        ("adadp:highest=inf", "highest must be finite"),
        ("adadp:power=7", "lie too far apart"),
        ("adadp:power=0.4,power=0.4", "'adadp:power=0.4,power=0.4' gives power twice"),
        ("adadp:start=3, start =4", "gives start twice"),
        ("adan:source=raw,source=released", "gives source twice"),
    ],
)
def test_what_cannot_be_read_is_refused(text, message):
    with pytest.raises(InputError, match=message):
        parse_method(text)
