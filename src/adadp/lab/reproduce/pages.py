"""The pages: what each paper printed, what came out here, the gap, and why; and the inventory of all items.

A page that exists keeps its own text: only what is between its marks is replaced. Nothing on it depends on the clock,
so the pages can be compared with the results they were made from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from adadp.app.runs.atomic import write_atomic
from adadp.errors import InputError
from adadp.lab.reproduce.items import SMALLEST, TRAIN, Item, Paper
from adadp.lab.reproduce.judging import Findings, Row, State, Verdict, judged, with_spread
from adadp.lab.reproduce.pictures import draw
from adadp.lab.reproduce.storing import Store

BEGIN, END = "<!-- results -->", "<!-- end of results -->"
INVENTORY = "inventory.md"
_SAYS = {Verdict.MET: "holds", Verdict.MISSED: "**does not hold**", Verdict.NOT_SHOWN: "not shown"}


def write_paper(paper: Paper, out: Path, *, quick: bool) -> Path:
    """Write the page of ``paper`` from its results, and the pictures of its runs."""
    stores = [Store(item, out, quick) for item in paper.items]
    for store in stores:
        if store.item.picture and store.runs():
            draw(store.pictures[0], store)
    page = out / (f"{paper.name}-quick.md" if quick else page_name(paper, out))
    write_between_marks(page, paper_text(stores, page.parent), title=paper.title)
    return page


def page_name(paper: Paper, out: Path) -> str:
    """The page of a paper from the folder ``out``: the one it names where there is such a page, else one inside."""
    return paper.page if (out / paper.page).exists() else f"{paper.name}-reproduced.md"


def paper_text(stores: Sequence[Store], place: Path) -> str:
    """The sections of all items of which something was measured; ``place`` is the folder links start from."""
    sections = [section(store, place) for store in stores]
    return "\n\n".join(each for each in sections if each)


def section(store: Store, place: Path) -> str:
    """One item: its table, its claims, why it differs, its pictures."""
    item, found = store.item, judged(store)
    if found.state is State.NOT_RUN:
        return ""
    where = f"{item.where[0].upper()}{item.where[1:]}. " if item.where else ""
    lines = [f"## {item.title}", "", f"{where}State: {state_text(found)}.", ""]
    lines += [f"    adadp reproduce {item.path}{' --quick' if store.quick else ''}", ""]
    if found.rows:
        lines += [*_table(item, found), ""]
    if item.kind == SMALLEST:
        lines += _grids(store)
    lines += [f"- {each.claim.says}: {_SAYS[each.verdict]}, {each.found}." for each in found.claims]
    lines += [""] if found.claims else []
    lines += [item.why, ""] if item.why else []
    for picture in store.current_pictures():
        lines += [f"![{item.title}]({_link(picture, place)})", ""]
    return "\n".join(lines).rstrip()


def state_text(found: Findings) -> str:
    """The state, and of how many printed figures and claims it was met."""
    return found.state.value + (f", {found.met} of {found.printed} as printed" if found.printed else "")


def inventory_text(stores: Mapping[str, Sequence[Store]], pages: Mapping[str, str]) -> str:
    """A row for every item of every paper."""
    rows = []
    for paper, mine in stores.items():
        for store in mine:
            found = judged(store)
            seeds = sorted({row.seeds for row in found.rows if row.seeds})
            counted = "" if not seeds else f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
            state = found.state.value if found.state is not State.DIFFERS else f"**{found.state.value}**"
            met = f"{found.met} of {found.printed}" if found.printed else ""
            rows.append((f"[{store.item.path}]({pages[paper]})", store.item.title, state, met, counted))
    return "\n".join(table(("item", "what", "state", "as printed", "seeds"), rows))


def write_inventory(papers: Mapping[str, Paper], out: Path) -> Path:
    """The page that lists every item with its state."""
    stores = {name: [Store(item, out) for item in paper.items] for name, paper in papers.items()}
    page = out / INVENTORY
    text = inventory_text(stores, {name: page_name(paper, out) for name, paper in papers.items()})
    write_between_marks(page, text, title="Every table and figure, and its state")
    return page


def write_between_marks(page: Path, text: str, *, title: str) -> None:
    """Replace what is between the marks of ``page``; a page that does not exist is begun."""
    if page.exists():
        before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
        if not begin or END not in rest:
            raise InputError(f"{page} lacks the marks {BEGIN} and {END}.", fix="Put them where the results belong.")
        after = rest.partition(END)[2]
    else:
        page.parent.mkdir(parents=True, exist_ok=True)
        before, after = f"# {title}\n\n", "\n"
    write_atomic(page, f"{before}{BEGIN}\n{text}\n{END}{after}".encode())


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table."""
    return ["| " + " | ".join(each) + " |" for each in (head, ["---"] * len(head), *rows)]


def _table(item: Item, found: Findings) -> list[str]:
    if item.kind == SMALLEST:
        return _smallest_table(item, found.rows)
    printed = any(row.printed for row in found.rows)
    paper = ("printed", "gap", "met") if printed else ()
    if item.kind == TRAIN:
        gain = ("gain",) if any(row.gain for row in found.rows) else ()
        head = ("", *paper[:1], "test accuracy, %", *paper[1:], *gain, "epochs", "epsilon", "seeds")
    else:
        head = ("", "ours", *paper)
    return table(head, [[_CELLS[name](row) for name in head] for row in found.rows])


def _smallest_table(item: Item, rows: Sequence[Row]) -> list[str]:
    """A row for every case, a column for every mark; the printed figure in brackets."""
    lines = []
    for case in item.cases:
        mine = [row for row in rows if row.case is case]
        if mine:
            cells = [row.ours + (f" (printed {row.printed})" if row.printed else "") for row in mine]
            lines.append((_marked(mine[0]), *cells, str(mine[0].seeds)))
    return table(("epsilon for a test accuracy of", *(f"{mark:g}" for mark in item.marks), "seeds"), lines)


def _grids(store: Store) -> list[str]:
    """The accuracies that the epsilons of a grid were read off from."""
    runs, lines = store.runs(), []
    for case in store.item.cases:
        points = [
            f"{with_spread([100 * float(run['test_accuracy']) for run in found])} at {epsilon:g}"
            for epsilon in case.epsilons
            if (found := runs.get(f"{case.name} at {epsilon:g}"))
        ]
        lines += [f"- {case.name}, test accuracy in % by epsilon: {', '.join(points)}."] if points else []
    return [*lines, ""] if lines else []


def _marked(row: Row) -> str:
    return row.case.name if row.private else f"{row.case.name} (**not private**)"


_CELLS: dict[str, Callable[[Row], str]] = {
    "": _marked,
    "ours": lambda row: row.ours,
    "test accuracy, %": lambda row: row.ours,
    "printed": lambda row: row.printed,
    "gap": lambda row: row.gap,
    "met": lambda row: row.verdict.value,
    "gain": lambda row: row.gain,
    "epochs": lambda row: row.length,
    "epsilon": lambda row: row.epsilon,
    "seeds": lambda row: str(row.seeds),
}
"""Head of a column -> what stands in it."""


def _link(picture: Path, place: Path) -> str:
    """The picture as a link from the folder ``place``."""
    ups, here = 0, place.resolve()
    target = picture.resolve()
    while here not in target.parents:
        here, ups = here.parent, ups + 1
    return "../" * ups + target.relative_to(here).as_posix()
