"""Accuracy at equal budget: every file in experiments/, at each of its epsilons, over seeds, each run verified.

`make results` runs it. It writes benchmarks/results/accuracy.json and the table in docs/results.md, and prints that of
the README. Every run is kept as soon as it is done: stopped, it goes on where it was. A file is a configuration of
`adadp train` plus

    epsilons    the budgets it is run at; without it, ``methods``: its methods, at a given ``noise_multiplier``
    published   an accuracy in percent to compare with for each of them, 0 where there is none; ``source``: whose it is
    beside      another experiment, to compare with seed by seed
    seeds       how many seeds, 3 without it; ``secure``: how many runs without a seed beside them, of which the last
                leaves its certificate in benchmarks/results/certificates
    public      the public images its features were made of, as the public leaderboard says it
    readme      true: its rows are in the table of the README
    at          settings of their own for some of the epsilons

Nothing here is tuned on test data: the files say in a comment how their numbers were chosen. What has been measured
stays while the command that trains is the same; ``--again`` runs it anew.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from adadp.app import resolve
from adadp.app.config import TrainConfig
from adadp.lab.compare.measuring import measured_run

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "accuracy.json"
PAGE = ROOT / "docs" / "results.md"
CERTIFICATES = RESULTS.parent / "certificates"
SEEDS = 3
BEGIN, END = "<!-- results -->", "<!-- end of results -->"

Result = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="Some of the experiments, by file name; all without.")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--again", action="store_true", help="Also what has been measured.")
    parser.add_argument("--results", type=Path, default=RESULTS, help="The JSON file to read and write.")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for path in sorted((ROOT / "experiments").glob("*.toml")):
        if options.names and path.stem not in options.names:
            continue
        for name, config, facts in budgets(path):
            known = measured_so_far(options.results).get(name, {})
            runs = [] if options.again or known.get("command") != config.as_command() else known["runs"]
            for seed in missing(runs, facts):
                runs = [*runs, one_run(config.replace(seed=seed), CERTIFICATES / f"{name}.json")]
                save(options.results, name, summary(config, runs) | facts)
            if runs:
                save(options.results, name, summary(config, runs) | facts)
    done = measured_so_far(options.results)
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{table(done)}\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    print(table(done, readme=True))


def measured_so_far(path: Path) -> dict[str, Result]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def save(path: Path, name: str, result: Result) -> None:
    """``result`` in the file, beside what another process may have written meanwhile."""
    done = measured_so_far(path) | {name: result}
    path.write_text(json.dumps(done, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def missing(runs: list[Result], facts: dict[str, Any]) -> list[int | None]:
    """The seeds of the runs that are still to be made, None for a secure one."""
    made = [run["seed"] for run in runs]
    secure: list[int | None] = [None] * (facts["secure"] - made.count(None))
    return [seed for seed in range(facts["seeds"]) if seed not in made] + secure


def budgets(path: Path) -> list[tuple[str, TrainConfig, dict[str, Any]]]:
    """The configurations in an experiment file, one per epsilon, under their names, and what is compared with."""
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    variants = [{"epsilon": epsilon} for epsilon in content.pop("epsilons", [])]
    variants += [{"method": method} for method in content.pop("methods", [])]
    published = content.pop("published", [0] * len(variants))
    facts = {"experiment": path.stem, "source": content.pop("source", ""), "readme": content.pop("readme", False)}
    facts |= {"beside": content.pop("beside", ""), "public": content.pop("public", "")}
    facts |= {"seeds": content.pop("seeds", SEEDS), "secure": content.pop("secure", 0)}
    own: dict[str, dict[str, Any]] = content.pop("at", {})
    found = []
    for variant, other in zip(variants, published, strict=True):
        name = " ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in variant.values())
        settings = content | own.get(name, {}) | variant
        found.append((f"{path.stem}@{name}", TrainConfig.from_dict(settings), facts | {"published": other}))
    return found


def summary(config: TrainConfig, runs: list[Result]) -> Result:
    accuracies = [float(run["test_accuracy"]) for run in runs]
    whole = resolve.resolve(config).config
    return {
        "data": whole.data,
        "method": whole.method,
        "private": runs[0]["epsilon"] is not None,
        "features": whole.features,
        "model": whole.model,
        "optimizer": whole.optimizer,
        "command": config.as_command(),
        "epsilon": whole.epsilon,
        "delta": whole.delta,
        "neighbours": runs[0]["neighbours"],
        "sampling": whole.sampling,
        "searched": whole.searched,
        "mean": statistics.mean(accuracies),
        "spread": statistics.stdev(accuracies) if len(accuracies) > 1 else 0.0,
        "seconds": statistics.median(float(run["seconds"]) for run in runs),
        "runs": runs,
    }


def one_run(config: TrainConfig, certificate: Path) -> Result:
    """What one run came to, in a folder that is removed; a secure one leaves its ``certificate``."""
    with tempfile.TemporaryDirectory() as place:
        run = measured_run(config, Path(place) / "run")
        if config.seed is None:
            certificate.parent.mkdir(exist_ok=True)
            shutil.copy(Path(place) / "run" / "certificate.json", certificate)
    if run["rehearsal"]:  # as every run with a seed is: the table has the epsilon of the same run without one
        run |= {"private": True, "epsilon": run["epsilon_if_unseeded"]}
    print(f"{config.as_command()}: {run['test_accuracy']:.4f} in {run['seconds']:.0f} s", flush=True)
    return {name: value for name, value in run.items() if name != "curve"}


def table(results: dict[str, Result], *, readme: bool = False) -> str:
    """One row per experiment and variant: mean and standard deviation over the runs, and seconds of training."""
    lines = [
        "| data | method | features | network | epsilon | delta | test accuracy | runs | gain | seconds | published |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    rows = [result for result in results.values() if result["readme"] or not readme]
    for result in sorted(rows, key=lambda each: (each["data"], each["experiment"], each["epsilon"] or 0)):
        accuracy = f"{100 * float(result['mean']):.2f} ± {100 * float(result['spread']):.2f} %"
        other = f"{result['published']:g} % ({result['source']})" if result["published"] else ""
        cells = (
            result["data"],
            result["method"],
            features_of(result),
            result["model"],
            epsilon_of(result),
            f"{result['delta']:g}",
        )
        seconds = f"{result['seconds']:.0f}"
        last = (accuracy, runs_of(result), paired(result, results), seconds, other)
        lines.append("| " + " | ".join((*cells, *last)) + " |")
    return "\n".join(lines)


def features_of(result: Result) -> str:
    """The features without the noise of what they release, which follows from epsilon."""
    return re.sub(r"[,:]noise_multiplier=[\d.]+", "", str(result["features"] or "none"))


def runs_of(result: Result) -> str:
    """How many runs there are, and how many of them without a seed."""
    secure = sum(run["seed"] is None for run in result["runs"])
    return f"{len(result['runs'])} ({secure} secure)" if secure else str(len(result["runs"]))


def epsilon_of(result: Result) -> str:
    """What is certified; for a method that is not private, that nothing is, and what its paper would claim."""
    if result["private"]:
        return f"{result['epsilon'] or result['runs'][0]['epsilon']:.4g}"
    claimed = result["runs"][0]["claimed"]
    return "none" if claimed is None else f"none ({claimed:.2g} claimed)"


def paired(result: Result, results: dict[str, Result]) -> str:
    """How much better than the experiment it stands beside, seed by seed, in points."""
    other = results.get(f"{result['beside']}@{result['epsilon']:g}") if result["beside"] else None
    if other is None:
        return ""
    theirs = {run["seed"]: run["test_accuracy"] for run in other["runs"]}
    gains = [
        100 * (run["test_accuracy"] - theirs[run["seed"]])
        for run in result["runs"]
        if run["seed"] is not None and run["seed"] in theirs
    ]
    return f"{statistics.mean(gains):+.2f} ± {statistics.stdev(gains):.2f}"


if __name__ == "__main__":
    main()
