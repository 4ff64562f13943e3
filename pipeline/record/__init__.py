"""The papers of a run: what was asked (Run, Job, Plan) and what was seen (Record).

Everything here is data with a schema and no behaviour beyond validation: plans travel to a device
machine as JSON, records travel back. Records are untrusted input wherever they are read.
"""

from pipeline.record.asked import (
    Job,
    Machine,
    Placement,
    Plan,
    Refusal,
    Run,
    Skipped,
    StackVersions,
)
from pipeline.record.base import SCHEMA_VERSION
from pipeline.record.files import (
    MAX_PAPER_BYTES,
    OBSERVATION_NAME,
    RECORD_NAME,
    dump,
    find_records,
    parse,
    read,
    read_bytes,
    unfinished,
    write,
    write_atomically,
)
from pipeline.record.seen import (
    CallCounts,
    Check,
    Finding,
    Generation,
    Observation,
    Record,
    Try,
    Versions,
)
from pipeline.record.told import Told, read_told

__all__ = [
    "MAX_PAPER_BYTES",
    "OBSERVATION_NAME",
    "RECORD_NAME",
    "SCHEMA_VERSION",
    "CallCounts",
    "Check",
    "Finding",
    "Generation",
    "Job",
    "Machine",
    "Observation",
    "Placement",
    "Plan",
    "Record",
    "Refusal",
    "Run",
    "Skipped",
    "StackVersions",
    "Told",
    "Try",
    "Versions",
    "dump",
    "find_records",
    "parse",
    "read",
    "read_bytes",
    "read_told",
    "unfinished",
    "write",
    "write_atomically",
]
