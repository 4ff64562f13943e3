"""The command line: thin. Each command reads its papers, calls one module, prints, exits.

Modules are imported inside the commands, so that `qualify --help` and `qualify validate` start
fast and no reading command ever needs torch.
"""

from pipeline.cli import planning  # isort: skip -- commands are documented in the order of imports
from pipeline.cli import running  # isort: skip
from pipeline.cli import reading  # isort: skip
from pipeline.cli import siting  # isort: skip
from pipeline.cli import doctoring  # isort: skip
from pipeline.cli import reproducing  # isort: skip
from pipeline.cli import measuring  # isort: skip
from pipeline.cli import actions  # isort: skip
from pipeline.cli.group import main

__all__ = [
    "actions",
    "doctoring",
    "main",
    "measuring",
    "planning",
    "reading",
    "reproducing",
    "running",
    "siting",
]
