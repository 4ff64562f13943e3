"""How fast a model generates: the step after qualification, and clearly apart from it.

A measurement is never a result: no record is left, so that nothing of it can be published as a row.
`measuring` runs the script, `points` judges what it saw, `figures` is the arithmetic, `report` and
`chart` show it.
"""

from pipeline.measure.gate import Qualification, qualification
from pipeline.measure.measuring import Measurement, Places, Request, free_folder, measure
from pipeline.measure.report import data, markdown, table, write

__all__ = [
    "Measurement",
    "Places",
    "Qualification",
    "Request",
    "data",
    "free_folder",
    "markdown",
    "measure",
    "qualification",
    "table",
    "write",
]
