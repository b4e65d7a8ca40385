"""scikit-learn's own checks of estimators. All pass: none contradicts privacy once what they vary is declared.

They are given a budget that leaves little noise, because some of them ask for a good fit to a few hundred rows, and a
seed, because all of them set one. Their classes differ from check to check, so these are disclosed.
"""

import pytest
import torch
from sklearn.utils.estimator_checks import parametrize_with_checks

from adadp.sklearn import PrivateClassifier, PrivateRegressor

pytestmark = pytest.mark.slow

COMMON = {"epsilon": 100, "delta": 1e-5, "columns": (-5, 5), "epochs": 8, "random_state": 0}


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@parametrize_with_checks(
    [
        PrivateClassifier(classes="disclosed", lr=0.2, **COMMON),
        PrivateRegressor(target_range=(-3, 3), lr=0.05, **COMMON),
    ]
)
@pytest.mark.filterwarnings("ignore")
def test_it_is_an_estimator(estimator, check):
    check(estimator)
