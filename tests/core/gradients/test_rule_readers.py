"""Rules come from installed packages: with none of them, with a stranger's, and with one that is wrong."""

import dataclasses

import pytest
import torch
from agreement import Made, agrees, cross_entropy
from torch import nn
from torch.overrides import handle_torch_function, has_torch_function

from adadp import registry
from adadp.app.gradient_rules.modules import ModuleRegion, find_modules
from adadp.errors import InputError
from adadp.gradients.readers import Reading, installed_rules
from adadp.gradients.rule import Rule


class Offered:
    """An entry point of a package that is not installed."""

    def __init__(self, mapping, name="stranger"):
        self.name, self.value, self._mapping = name, "stranger:READERS", mapping

    def load(self):
        if isinstance(self._mapping, Exception):
            raise self._mapping
        return self._mapping


@pytest.fixture
def offering(monkeypatch):
    """``offering(*mappings)`` lets these be all that is installed."""

    def offer(*mappings):
        offered = [Offered(each, name) for each, name in zip(mappings, "abc", strict=False)]
        monkeypatch.setattr(registry, "entry_points", lambda group: offered if group == "adadp.gradient_rules" else [])
        installed_rules.cache_clear()

    yield offer
    installed_rules.cache_clear()


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(9, 8, padding_idx=0)
        self.layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, dropout=0.0)
        self.out = nn.Conv1d(8, 9, 5)

    def forward(self, tokens):
        return self.out(self.layer(self.words(tokens)).mT).squeeze(2)


def every_name(model):
    return [name for name, _ in model.named_parameters()]


@pytest.mark.parametrize("model", [nn.Linear(4, 3), nn.Sequential(nn.Conv2d(1, 2, 2), nn.GroupNorm(1, 2))])
def test_without_rules_every_parameter_goes_the_generic_way(offering, model):
    offering()
    batch = (torch.randn(3, 4) if isinstance(model, nn.Linear) else torch.randn(3, 1, 4, 4),)
    agrees(model, batch, generic=every_name(model))


def test_without_rules_attention_and_embeddings_are_right_too(offering):
    offering()
    model, batch = Words(), (torch.randint(0, 9, (6, 5)), torch.randint(0, 9, (6,)))
    agrees(model, batch, loss=cross_entropy, generic=every_name(model), rtol=1e-3)


@pytest.mark.parametrize("setting", ["max_norm", "scale_grad_by_freq"])
def test_without_rules_embeddings_that_look_at_other_records_are_refused(offering, setting):
    offering()
    with pytest.raises(InputError, match=setting):
        agrees(nn.Embedding(5, 4, **{setting: True}), (torch.randint(0, 5, (3, 2)),))


def shifted(x, shift):
    """A torch function of a stranger's own."""
    if has_torch_function((x, shift)):
        return handle_torch_function(shifted, (x, shift), x, shift)
    return x.tanh() + shift.sin()


class ShiftRule(Rule):
    def __init__(self, shift, factor=1.0):
        self._slope = factor * shift.detach().cos()

    def per_example(self, pair):
        return {"weight": pair.output_grad * self._slope}

    def working_size(self, pair):
        return pair.output_grad[0].numel()


def reader(factor=1.0):
    return lambda x, shift: Reading(ShiftRule(shift, factor), None, {"weight": shift}, batch_first_only=True)


def shifting():
    return Made(lambda self, x: shifted(x, self.shift), shift=torch.randn(5))


def test_a_strangers_rule_for_its_own_function_is_used(offering):
    offering({shifted: reader()})
    agrees(shifting(), (torch.randn(3, 5),))


def test_the_same_function_without_its_rule_goes_the_generic_way():
    agrees(shifting(), (torch.randn(3, 5),), generic=["shift"])


@pytest.mark.parametrize("factor", [0.99, -1.0, 0.0])
def test_a_rule_that_is_wrong_is_found_and_not_used(offering, factor):
    offering({shifted: reader(factor)})
    agrees(shifting(), (torch.randn(3, 5),), generic=["shift"])


def test_of_two_readers_the_first_by_name_is_taken(offering):
    offering({shifted: reader()}, {shifted: reader(0.0)})
    agrees(shifting(), (torch.randn(3, 5),))


def test_rules_that_cannot_be_loaded_are_named(offering):
    offering(ImportError("no module named flux"))
    with pytest.raises(InputError, match=r"gradient rule a cannot be loaded: ImportError: no module named flux"):
        agrees(nn.Linear(4, 3), (torch.randn(3, 4),))


def test_rules_that_are_no_mapping_are_named(offering):
    offering([reader()])
    with pytest.raises(InputError, match=r"stranger:READERS is not a gradient rule"):
        agrees(nn.Linear(4, 3), (torch.randn(3, 4),))


@dataclasses.dataclass(frozen=True)
class Scaled(ModuleRegion):
    """A region whose gradients are ``factor`` times the right ones."""

    factor: float = 1.0

    def of_call(self, *args):
        return {name: self.factor * value for name, value in super().of_call(*args).items()}


def finder(factor):
    def find(*args):
        return [Scaled(each.title, each.parameters, each.module, each.layouts, factor) for each in find_modules(*args)]

    return find


@pytest.mark.parametrize(("factor", "title"), [(1.0, "the model (Made)"), (0.99, "the loss"), (0.0, "the loss")])
def test_a_strangers_region_is_used_unless_it_is_wrong(offering, factor, title):
    offering(finder(factor))
    engine = agrees(shifting(), (torch.randn(3, 5),), generic=["shift"])
    assert [region.title for region in engine._blueprint.regions] == [title]


def test_without_regions_the_whole_loss_is_taken(offering):
    offering({})
    engine = agrees(
        nn.Sequential(nn.Linear(4, 5), shifting()), (torch.randn(3, 4),), generic=["0.weight", "0.bias", "1.shift"]
    )
    assert [region.title for region in engine._blueprint.regions] == ["the loss"]
