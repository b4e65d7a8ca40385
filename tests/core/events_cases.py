"""What the tests of events share."""

import json
import math

from adadp.app.accounting.best_of import BestOf
from adadp.app.accounting.repetitions import TruncatedNegativeBinomial
from adadp.events import (
    AdaptivelyChosen,
    Composed,
    FixedSizeSampled,
    GaussianRelease,
    Neighbours,
    PoissonSampled,
    Repeated,
    ReshuffledEpoch,
    Selection,
    ZcdpCost,
    from_json,
    to_json,
)

ADD, REPLACE, ZERO = Neighbours.ADD_REMOVE, Neighbours.REPLACE_ONE, Neighbours.ZERO_OUT


G = GaussianRelease(4.0)


G_REPLACE = GaussianRelease(4.0, REPLACE)


EXAMPLES = {
    "gaussian": G,
    "zcdp": ZcdpCost(0.5),
    "selection": Selection(0.1),
    "poisson-sampled": PoissonSampled(0.01, G),
    "fixed-size-sampled": FixedSizeSampled(0.01, G_REPLACE),
    "reshuffled-epoch": ReshuffledEpoch((G, ZcdpCost(0.5)), independent_assignment=True),
    "adaptively-chosen": AdaptivelyChosen(G),
    "composed": Composed((G, Selection(0.1))),
    "repeated": Repeated(G, 3),
    "best-of": BestOf((PoissonSampled(0.01, G), G), TruncatedNegativeBinomial(0.0, 0.1)),
}


BAD_NUMBERS = [math.nan, math.inf, -math.inf, -0.5, True, "0.5", None]


def through_text(event):
    return from_json(json.loads(json.dumps(to_json(event), allow_nan=False)))


WRAPPERS = [
    lambda event: event,
    lambda event: Repeated(event, 2),
    lambda event: Composed((event,)),
    AdaptivelyChosen,
    lambda event: AdaptivelyChosen(Composed((Repeated(event, 2),))),
    lambda event: Repeated(AdaptivelyChosen(AdaptivelyChosen(event)), 2),
]
