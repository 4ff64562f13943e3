"""What a check is: one assumption of this code about the device, and how it is tried."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """Where an assumption is mended: a file of the checkout, and a name in it."""

    file: str
    name: str

    def __str__(self) -> str:
        return f"{self.file}: {self.name}"


@dataclass(frozen=True)
class Check:
    """One assumption and how it is tried.

    probe: the module that tries it, in a function named after the id; without a dot one of this
    package. cores: how many free cores of one device it takes; 0 = it touches none. needs: ids of
    checks that must have held before. limit_s: it is ended after this many seconds, which is a
    result, too. whole: what it saw describes the machine; the report shows all of it.
    """

    id: str
    assumption: str
    source: str
    places: tuple[Place, ...]
    how: str
    probe: str
    cores: int = 0
    needs: tuple[str, ...] = ()
    limit_s: int = 300
    whole: bool = False

    @property
    def module(self) -> str:
        """Full name of the probe's module."""
        return self.probe if "." in self.probe else f"{__package__}.{self.probe}"

    @property
    def function(self) -> str:
        """Name of the function in the probe's module."""
        return self.id.replace("-", "_")


# Places and needs that many checks share.
RUN = "templates/run.py.jinja"
SIGNATURES = "pipeline/data/signatures.yaml"
LISTING = Place("pipeline/device/listing.py", "_device")
ENVIRONMENT = Place(RUN, "rank_environment")
WORK = Place(RUN, "work")
TORCH = ("neuron-ls", "torch-import")
GRAPH = (*TORCH, "compiled-graph")
