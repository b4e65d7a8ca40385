"""Private steps of models that are split over processes, against the same in one process."""

import pytest
import sharded_cases as cases
import torch
from ranks_cases import Case

pytestmark = pytest.mark.slow

CASE = Case(steps=3, records=60, batch_size=12)


@pytest.mark.parametrize("kind", ["mlp", "single", "encoder", "gpt2", "llama"])
@pytest.mark.parametrize("size", [2, 4])
def test_a_seeded_run_is_that_of_one_process(kind, size, request, tmp_path):
    (tmp_path / "one").mkdir()
    one = cases.trained(cases.network(kind), kind, CASE, str(tmp_path / "one"))
    found = request.getfixturevalue({2: "two", 4: "four"}[size]).run(cases.trained_together, kind, CASE, str(tmp_path))
    for each in found:
        torch.testing.assert_close(torch.tensor(each.gradients), torch.tensor(one.gradients), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(torch.tensor(each.parameters), torch.tensor(one.parameters), rtol=1e-4, atol=1e-5)
        assert each.charges == one.charges == CASE.steps
