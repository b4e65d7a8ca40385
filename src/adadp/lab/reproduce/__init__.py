"""The tables and figures of the papers, run again: what was printed, what comes out, the gap, and why.

items.py      the files of experiments/<paper>/ and what may stand in them
measuring.py  training and commands;  storing.py: what was measured, one JSON file for each item
judging.py    ours beside the printed figure; whether claims hold; the state of an item
pages.py      Markdown pages and the inventory;  pictures.py: the plots
"""

from adadp.lab.reproduce.items import Item, Paper, chosen_items, experiments_folder, papers
from adadp.lab.reproduce.judging import Findings, State, judged
from adadp.lab.reproduce.measuring import measure
from adadp.lab.reproduce.pages import state_text, write_inventory, write_paper
from adadp.lab.reproduce.storing import Store

__all__ = [
    "Findings",
    "Item",
    "Paper",
    "State",
    "Store",
    "chosen_items",
    "experiments_folder",
    "judged",
    "measure",
    "papers",
    "state_text",
    "write_inventory",
    "write_paper",
]
