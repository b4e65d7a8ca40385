"""Private steps of models that are split over processes, against the same in one process."""

import pytest
import sharded_cases as cases
import torch
from ranks_cases import Case
from test_ranks_step import QUANTILE, check_noise

from adadp.app.clipping.fixed import PerLayer
from adadp.app.methods.adadp import AdaDp
from adadp.app.texts.clip_rules import parse_clip_rule

pytestmark = pytest.mark.slow

CASE = Case(steps=3, records=60, batch_size=12)
FEW = Case(steps=6, records=3, batch_size=1)
"""Most processes have no record in most batches."""
SAME = {
    "mlp": ("mlp", CASE),
    "few records": ("mlp", FEW),
    "one layer": ("single", CASE),
    "encoder": ("encoder", CASE),
    "gpt2": ("gpt2", CASE),
    "llama": ("llama", CASE),
    "adadp": ("encoder", Case(steps=6, records=60, batch_size=12, method=AdaDp(start=2))),
    "adadp, one layer": ("single", Case(steps=6, records=60, batch_size=12, method=AdaDp(start=2))),
    "per layer": ("single", Case(steps=2, records=60, batch_size=12, clip=PerLayer((0.5, 0.4)))),
    "automatic": ("single", Case(steps=2, records=60, batch_size=12, clip=parse_clip_rule("automatic:1"))),
    "quantile": ("single", Case(steps=6, records=60, batch_size=12, clip=QUANTILE)),
    "fixed": ("single", Case(steps=4, records=60, batch_size=12, settings=(("sampling", "fixed"),))),
    "reshuffled": ("single", Case(steps=7, records=60, batch_size=12, settings=(("sampling", "reshuffle"),))),
    "without noise": ("single", Case(steps=3, records=60, batch_size=12, noise=0.0)),
}
ON_FOUR = ("mlp", "few records", "encoder", "gpt2", "adadp", "quantile")


@pytest.mark.parametrize(("name", "size"), [*((name, 2) for name in SAME), *((name, 4) for name in ON_FOUR)])
def test_a_seeded_run_is_that_of_one_process(name, size, request, tmp_path):
    kind, case = SAME[name]
    (tmp_path / "one").mkdir()
    one = cases.trained(cases.network(kind), kind, case, str(tmp_path / "one"))
    found = request.getfixturevalue({2: "two", 4: "four"}[size]).run(cases.trained_together, kind, case, str(tmp_path))
    for each in found:
        torch.testing.assert_close(torch.tensor(each.gradients), torch.tensor(one.gradients), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(torch.tensor(each.parameters), torch.tensor(one.parameters), rtol=1e-4, atol=1e-5)
        assert each.clip_state == pytest.approx(one.clip_state, rel=1e-4)
        assert each.charges == one.charges
        assert each.head == found[0].head
