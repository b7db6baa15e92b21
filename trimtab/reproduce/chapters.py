"""The chapters by name, in the order of the report. A new one is one function and one line."""

from __future__ import annotations

from collections.abc import Callable

from .failures import table_5
from .fit import fit
from .interference import figure_8, figures_2_and_7
from .lab import Lab
from .network import equation_2, figure_5
from .pareto import figure_1, figure_9
from .published import real_runs
from .scaling import figure_10
from .switching import table_1
from .target import Chapter
from .threeway import figure_4, figure_11
from .weights import figure_6
from .winners import table_2

CHAPTERS: dict[str, Callable[[Lab], Chapter]] = {
    "fit": fit,
    "figure-1": figure_1,
    "figure-2": figures_2_and_7,
    "table-1": table_1,
    "table-2": table_2,
    "figure-4": figure_4,
    "real": real_runs,
    "figure-5": figure_5,
    "figure-6": figure_6,
    "figure-8": figure_8,
    "figure-9": figure_9,
    "figure-10": figure_10,
    "table-5": table_5,
    "figure-11": figure_11,
    "equation-2": equation_2,
}
"""Figure 7 is in `figure-2`, Table 4 in `table-2`, Table 3 in `figure-11`. Figure 3 is a drawing."""
