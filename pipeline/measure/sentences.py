"""What is said of every measurement, whatever its figures: what it is, and what it is not."""

from __future__ import annotations

from pipeline.measure.measuring import Measurement
from pipeline.words import Target, cores

NOT_A_RESULT = (
    "This is a measurement, not a result: it is no row of the results, is never published as one, "
    "and does not say whether the model works."
)
HOW_LATENCY = (
    "The first token's time runs from the call of generate() until the token ids of the first step "
    "are on the host: filling the key/value cache with the prompts of the whole batch is in it, "
    "tokenizing is not. A later token's time runs from there to the next step's ids. A step gives "
    "one token to every row of the batch. Times are those of rank 0."
)
HOW_PROMPTS = (
    "Prompts are the list's own texts, put together and cut to exactly as many tokens as asked "
    "for, another one first in each row: all rows are equally long and none is padded."
)
HOW_MEMORY = {
    True: (
        "Peak memory is what the device allocator counts for tensors on the fullest core during "
        "the measured calls. Code, scratchpads and buffers of collectives are not in it."
    ),
    False: (
        "Peak memory is the resident memory of the largest process on the host during the measured "
        "calls (VmHWM), the libraries' own included."
    ),
}


def not_to_conclude(measurement: Measurement) -> tuple[str, ...]:
    """What the figures do not say, a sentence each."""
    told = [
        "Nothing of a service: there is no serving engine, no continuous batching, no queue and no "
        "network; one program calls generate() again and again with the same prompts.",
        "Nothing of other lengths: graphs and the static cache are of exactly the prompt and the "
        "new tokens of a point, and another length is another graph.",
        "Nothing of sampling or of texts that end early: decoding is greedy and always goes on to "
        "the last new token. What the model says is not looked at.",
        "Nothing of a bill: cost is the stated price for the cores' share of a machine that "
        "generates without a pause; loading, compiling and idle time are not in it.",
    ]
    if measurement.asked.stack.target is not Target.NEURON:
        target = measurement.asked.stack.target
        told.insert(0, f"Nothing of Trainium: the target was {target}, another machine altogether.")
    versions = measurement.seen.versions.model_dump().values() if measurement.seen else ()
    if any("simulator" in version for version in versions if version):
        told.insert(0, "Nothing at all: the tests' stand-in for a device took part.")
    if measurement.qualification.reason is not None:
        told.insert(0, "Not even that the model works: there is no PASS for what was measured.")
    return tuple(told)


def title(measurement: Measurement) -> str:
    """ "demo/tiny-qwen3 on 1 core, cpu, transformers 5.24.0, torch 2.13.0"."""
    return f"{measurement.asked.model_id} on {_where(measurement)}"


def _where(measurement: Measurement) -> str:
    asked, placed = measurement.asked, measurement.qualification.placement
    stack = asked.stack
    compiler = [f"neuronx-cc {stack.neuronx_cc}"] if stack.neuronx_cc else []
    parts = [
        cores(placed.cores) + (f" ({placed.parallelism} parallel)" if placed.cores > 1 else ""),
        stack.target.value,
        *compiler,
        f"{stack.library} {stack.library_version}",
        f"torch {stack.torch}",
    ]
    return ", ".join(parts)


def qualified(measurement: Measurement) -> str:
    """One sentence about the PASS that stands behind the measurement, or that none does."""
    found = measurement.qualification
    if found.reason is not None:
        return f"NOT QUALIFIED: {found.reason}."
    return f"Qualified: PASS of {found.tested_at} on this stack, revision and placement."
