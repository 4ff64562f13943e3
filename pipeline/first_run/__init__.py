"""The first run on a device: which assumptions of this code hold there, and where each is mended.

`checks` and `checks_single` are the list, `probes_*` how each is tried, `workers` what touches
torch, `session` runs them one by one in processes of their own, `report` tells what was seen.
"""

from pipeline.first_run.check import Check, Place
from pipeline.first_run.checks import CHECKS
from pipeline.first_run.report import Outcome, Report, Result
from pipeline.first_run.session import first_run

__all__ = ["CHECKS", "Check", "Outcome", "Place", "Report", "Result", "first_run"]
