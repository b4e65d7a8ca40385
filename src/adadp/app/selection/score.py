"""What candidates are compared by: how many of some records a model gets right, none of which any candidate trains on.

    the records are                        which                             the score is
    public, declared (``PUBLIC``)          the last of the training records  the accuracy as it is
    public, a file (``FILE``)              all in it                         the same
    private (``PRIVATE``), add-remove      each by a coin of its own         right answers + N(0, sigma^2), over the
    private, other neighbours              as many as asked, at random       public number of records

One record moves the number of right answers by at most 1. A record is kept aside for the whole search, so it is in the
runs or in the scores and never in both (``train/searched``): the noise of the scores takes nothing from the runs. Its
default is the least with which the scores alone meet the target.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from adadp import checks
from adadp.app.accounting.repetitions import Repetitions
from adadp.app.config import TrainConfig
from adadp.app.owndata import is_own
from adadp.app.selection.candidates import noise_of_score, relation_of
from adadp.app.train.search_spec import FILE, PRIVATE, PUBLIC, Scoring
from adadp.app.train.validation_noise import set_aside
from adadp.errors import InputError
from adadp.events import GaussianRelease, Neighbours
from adadp.randomness import RandomSource
from adadp.release import Crossing

_KEPT, _NOISE, _COUNT = "search/validation", "search/score", "right"
_AT_ONCE = 1000


def scoring_for(
    base: TrainConfig,
    *,
    validation: int | None,
    validation_public: bool,
    validation_data: str | None,
    score_noise_multiplier: float | None,
    law: Repetitions,
    delta: float,
) -> Scoring:
    """How the candidates of ``base`` are compared, as asked for; what is missing or contradicts itself is refused."""
    if (validation is None) == (validation_data is None):
        raise InputError(
            "A search needs records to compare its runs on, once.",
            why="On those that a run has trained on, the one that remembers most looks best.",
            fix="Pass `validation`, how many training records to keep aside, or `validation_data`, a public file.",
        )
    if score_noise_multiplier is not None and (validation_public or validation_data is not None):
        raise InputError(
            "The validation records are public, and `score_noise_multiplier` gives noise for private ones.",
            fix="Leave it out.",
        )
    if validation_data is not None:
        if not is_own(base.data):
            raise InputError(
                f"`validation_data` was given, and {base.data} is a data set of the catalogue.",
                fix="Pass `validation`, a number of training records, with `validation_public` if they are public.",
            )
        return Scoring(FILE, file=validation_data)
    size = checks.count("validation", validation, why="So many training records are kept aside for scores.")
    if validation_public:
        return Scoring(PUBLIC, size)
    assert base.epsilon is not None
    relation = relation_of(base)
    refuse_uncounted(base, relation)
    least = noise_of_score(law, base.epsilon, delta, relation)
    if score_noise_multiplier is not None and checks.positive("score_noise_multiplier", score_noise_multiplier) < least:
        raise InputError(
            f"`score_noise_multiplier` is {score_noise_multiplier:g}, and the target needs at least {least:g}.",
            why="The records that are scored are protected by this noise alone.",
            fix="Leave it out, or pass more.",
        )
    return Scoring(PRIVATE, size, least if score_noise_multiplier is None else float(score_noise_multiplier))


def refuse_uncounted(base: TrainConfig, relation: Neighbours) -> None:
    """Refuse what needs the number of records left over, where each record has drawn its place by itself."""
    if base.sampling == "reshuffle" and relation is Neighbours.ADD_REMOVE:
        raise InputError(
            "Records are kept aside of reshuffled batches, for add-remove neighbours.",
            why="Each is kept aside by a draw of its own then, and how many remain to be dealt into batches is secret.",
            fix="Use zero-out neighbours, or Poisson sampling, or public validation records.",
        )


def left_over(public: int, scoring: Scoring) -> int:
    """The public number of records that are trained on, of ``public`` ones."""
    kept = scoring.size or 0
    if not kept < public - 1:
        raise InputError(
            f"{kept} validation records are to be kept aside, and there are {public}.",
            fix="Keep fewer aside: the others are trained on.",
        )
    return public - kept


def kept_aside(total: int, scoring: Scoring, *, public: int, neighbours: Neighbours, source: RandomSource) -> Tensor:
    """Which of ``total`` records no run trains on; ``public`` stands for their number where that is hidden."""
    if scoring.size is None:
        return torch.zeros(total, dtype=torch.bool)
    declared = scoring.records_are == PUBLIC
    return set_aside(
        total, scoring.size, of=public, public=declared, neighbours=neighbours, source=source, purpose=_KEPT
    )


def right_answers(model: nn.Module, values: Tensor, labels: Tensor, device: str) -> int:
    """How many of the records ``model`` puts into the right class."""
    model = model.to(device).eval()
    right = 0
    with torch.inference_mode():
        for some, truth in zip(torch.split(values, _AT_ONCE), torch.split(labels, _AT_ONCE), strict=True):
            right += int((model(some.to(device)).argmax(1).cpu() == truth).sum()) if len(truth) else 0
    return right


def score_of(
    right: int, total: int, scoring: Scoring, *, neighbours: Neighbours, crossing: Crossing, run: int
) -> float:
    """The score of a run: the share of right answers, with noise where the records are private.

    The ledger of the search holds it already: all scores are charged together, before the first run.
    """
    if scoring.noise_multiplier is None:
        return right / total
    assert scoring.size is not None
    # ======================== trust line: above sensitive, below public ========================
    permit = crossing.pay(GaussianRelease(scoring.noise_multiplier, neighbours), None)
    released = permit.gaussian({_COUNT: torch.tensor(float(right), dtype=torch.float64)}, 1.0, step=run, purpose=_NOISE)
    return float(released[_COUNT]) / scoring.size
