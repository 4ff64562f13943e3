"""The columns of a row: names, types and what each holds, as one explicit schema.

First those that readers of the public dataset `aws-neuron/torch-neuronx-model-support` already
query, with its names and types, then ours (docs/results.md). A field that was not seen is null.
Whoever changes a column raises SCHEMA_VERSION and adds a migration (`results.MIGRATIONS`).
"""

from __future__ import annotations

import pyarrow as pa

SCHEMA_VERSION = 3
"""Of the rows; `results.MIGRATIONS` lifts files of older versions."""

VERSION_KEY = b"trn_qualify.schema_version"
"""Names that version among a file's metadata."""

_STRINGS = pa.list_(pa.string())
_TRY = pa.struct(
    [
        ("reason", pa.string()),
        ("cores", pa.int32()),
        ("parallelism", pa.string()),
        ("stage", pa.string()),
        ("result", pa.string()),
        ("failure", pa.string()),
        ("signature", pa.string()),
        ("error", pa.string()),
        ("wall_s", pa.float64()),
        ("cache", pa.string()),
    ]
)

COLUMNS: tuple[tuple[str, pa.DataType, str], ...] = (
    ("model_id", pa.string(), "The model's id on the Hugging Face Hub."),
    ("library", pa.string(), "The library that loads and runs the model."),
    ("library_version", pa.string(), "That library's version."),
    ("neuron_cores", pa.int32(), "Number of cores; null when the run was refused."),
    ("tp", pa.int32(), "The same number as neuron_cores, under the public dataset's name."),
    ("runner", pa.string(), "The runner class the run was planned for."),
    ("result", pa.string(), "PASS, FAIL, or ERROR (infrastructure: says nothing of the model)."),
    ("notes", pa.string(), "What the planner and the script noted on placement and compilation."),
    ("error", pa.string(), "Why the run did not PASS; null when it did."),
    ("exclusion", pa.string(), "Always null here: exclusions are wishes and live in models.yaml."),
    ("wall_s", pa.int32(), "Wall time of the run in seconds, compilation included."),
    (
        "hbm_peak_gb",
        pa.float64(),
        "Peak device memory of the tensors on the fullest core, by the allocator's count, GiB.",
    ),
    ("hbm_capacity_gb", pa.float64(), "Device memory of one core, GiB; null off the device."),
    (
        "cpu_match",
        pa.string(),
        "Tokens against the CPU: exact, near_tie, inconclusive, mismatch, not_run.",
    ),
    ("english", pa.string(), "The judge on the text: fluent, not_fluent, inconclusive, not_run."),
    (
        "neuronx_cc",
        pa.string(),
        "Version of neuronx-cc; null when another compiler took its place.",
    ),
    ("transformers", pa.string(), "Installed version of transformers."),
    ("accelerate", pa.string(), "Installed version of accelerate."),
    ("torch_neuronx", pa.string(), "Installed version of torch-neuronx."),
    ("torch", pa.string(), "Installed version of torch."),
    ("nki", pa.string(), "Installed version of nki."),
    ("python", pa.string(), "Version of Python."),
    ("neuron_driver", pa.string(), "Version of the Neuron driver."),
    ("tested_at", pa.timestamp("ms", tz="UTC"), "When the run ended, UTC."),
    ("run_py", pa.string(), "The script that ran; replay it with python3 run.py."),
    ("schema_version", pa.int32(), "Version of this row's schema."),
    ("run_id", pa.string(), "Name of the run: model, library, compiler, torch, with versions."),
    ("revision", pa.string(), "Commit of the checkpoint; null when not pinned."),
    ("task", pa.string(), "What the model was asked to do: the Hub's pipeline tag."),
    ("model_type", pa.string(), "The checkpoint's model_type."),
    ("parameters", pa.int64(), "Number of parameters."),
    ("checkpoint_bytes", pa.int64(), "Size of the checkpoint's weights, bytes."),
    ("estimated_gb", pa.float64(), "Memory the plan expected on the fullest core, GiB."),
    (
        "runtime_peak_gb",
        pa.float64(),
        "Peak device memory of the fullest core by the runtime's own count, code and buffers "
        "included, GiB.",
    ),
    ("runtime_peak_source", pa.string(), "Where that count was read: sysfs or neuron-monitor."),
    ("stage", pa.string(), "Stage reached: plan, download, load, compile, generate, check, done."),
    ("failure", pa.string(), "Failure class; null when the run passed."),
    ("signature", pa.string(), "Short name of the error, the same for the same cause."),
    (
        "findings",
        _STRINGS,
        "What the log says against the run whatever its tokens are, signature: line; null when no "
        "log was read.",
    ),
    ("runtime", pa.string(), "Version of the Neuron runtime."),
    ("image", pa.string(), "Container image the run took place in."),
    ("extra_packages", _STRINGS, "Packages the run needed beside its stack."),
    ("target", pa.string(), "neuron, or cpu (same code path, says nothing of Trainium)."),
    ("instance_type", pa.string(), "Type of the machine."),
    ("parallelism", pa.string(), "none, tensor or expert; null when the run was refused."),
    (
        "core_ids",
        pa.list_(pa.int32()),
        "Ids of the machine's cores that the run had, in rank order; null off the device.",
    ),
    ("dtype", pa.string(), "Number format the weights were loaded in."),
    ("prompts", _STRINGS, "The prompts, in order."),
    ("generated_text", _STRINGS, "The continuation of each prompt; null when none was reached."),
    ("generated_tokens", pa.list_(pa.list_(pa.int32())), "Token ids of each continuation."),
    ("max_gap", pa.float64(), "Largest gap to the CPU reference's first choice, nats."),
    (
        "departure",
        pa.float64(),
        "Typical difference of the log-probabilities that the run gave its five most likely tokens "
        "of each step from those of the CPU reference, nats: the root mean square without the "
        "largest tenth of the steps; null when not compared.",
    ),
    (
        "noise",
        pa.float64(),
        "The same of the CPU reference itself, in the run's dtype from float32: the rounding noise "
        "that this model has anyway, nats; null when it did not run in both.",
    ),
    (
        "check",
        pa.string(),
        "Which evidence the output check rests on, and what it cannot see; null when nothing was "
        "checked.",
    ),
    ("judge", pa.string(), "The model that judged the text, with the digest of its weights."),
    (
        "judge_score",
        pa.float64(),
        "Log odds, by the judge, that the texts are wrong, mean over the prompts: lower is better.",
    ),
    ("download_s", pa.float64(), "Time to download the checkpoint, seconds."),
    ("load_s", pa.float64(), "Time to load it, seconds."),
    ("compile_s", pa.float64(), "First call of generate(), compilation included, seconds."),
    ("generate_s", pa.float64(), "Second, identical call of generate(), seconds."),
    ("tokens_per_s", pa.float64(), "New tokens a second in that second call."),
    ("host_peak_gb", pa.float64(), "Peak host memory of the run, GiB."),
    ("graphs", pa.int32(), "Graphs captured in the run."),
    (
        "backend_graphs",
        pa.int32(),
        "Graphs that the neuron backend says it made, of the rank with the fewest.",
    ),
    ("cache", pa.string(), "Where compiled graphs came from: cold, restored, partial."),
    ("cache_keys", _STRINGS, "Entries of the compiled-graph cache that the run used."),
    ("cache_store", pa.string(), "Where others find those entries; null when nowhere public."),
    ("cpu_fallback_ops", _STRINGS, "Operators that ran on the host instead; null when unknown."),
    (
        "attempts",
        pa.int32(),
        "Which attempt at this run it was, from 1 after each PASS or FAIL, over all publications.",
    ),
    ("try_reason", pa.string(), "Why this try was made; null in rows from before tries were kept."),
    (
        "tries",
        pa.list_(_TRY),
        "Earlier tries within this attempt, oldest first; the row itself is of the last. Empty "
        "when it was the first, null in rows from before tries were kept.",
    ),
    ("script_sha256", pa.string(), "SHA-256 of the script that the run was for."),
    ("run_url", pa.string(), "The workflow run that made this row."),
    ("pipeline_commit", pa.string(), "Commit of this project that made this row."),
    (
        "cost_usd",
        pa.float64(),
        "Wall time of all tries, each at its cores' share of the machine's price, US dollars.",
    ),
)
"""(name, type, what it holds) of every column, in order."""

SCHEMA = pa.schema([(name, kind) for name, kind, _ in COLUMNS])
