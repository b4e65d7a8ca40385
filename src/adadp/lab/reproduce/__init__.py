"""The tables and figures of the papers, run again: what was printed, what comes out, the gap, and why.

items.py      the files of experiments/<paper>/ and what may stand in them
measuring.py  training and commands;  storing.py: what was measured, one JSON file for each item
judging.py    ours beside the printed figure; whether claims hold; the state of an item
pages.py      Markdown pages and the inventory;  pictures.py: the plots
"""

from adadp.lab.reproduce.items import chosen_items, experiments_folder, papers
from adadp.lab.reproduce.judging import judged
from adadp.lab.reproduce.measuring import measure
from adadp.lab.reproduce.pages import write_inventory, write_paper
from adadp.lab.reproduce.storing import Store

__all__ = [
    "Store",
    "chosen_items",
    "experiments_folder",
    "judged",
    "measure",
    "papers",
    "write_inventory",
    "write_paper",
]
