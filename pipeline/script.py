"""From a Run to its run.py: one template for both tasks, both targets, all placements.

The same Run gives the same bytes. The rendered file is formatted and lint-clean as it stands
(tests hold it against ruff), and imports nothing of this package.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from pipeline.record import SCHEMA_VERSION, Run, StackVersions
from pipeline.words import Parallelism, Target, Task

_NEURON_INDEX = "https://pip.repos.neuron.amazonaws.com"
_CPU_INDEX = "https://download.pytorch.org/whl/cpu"

_IMAGE_SIZE = 224
"""Side of the square picture in pixels: what most vision towers take as their smallest size."""

_AUTO_CLASSES = {
    Task.TEXT_GENERATION: "AutoModelForCausalLM",
    Task.IMAGE_TEXT_TO_TEXT: "AutoModelForImageTextToText",
}

RECORDED_PACKAGES = (
    "torch",
    "transformers",
    "accelerate",
    "huggingface_hub",
    "safetensors",
    "tokenizers",
    "torch-neuronx",
    "neuronx-cc",
    "nki",
)

_PLAIN = re.compile(r"[\w .,:;/@+()=<>~!*\[\]-]*")


def template_folder() -> Path:
    """templates/ of the checkout, or the copy inside an installed package."""
    inside = Path(__file__).parent / "templates"
    return inside if inside.is_dir() else Path(__file__).parent.parent / "templates"


def environment() -> Environment:
    """The Jinja environment of every template: undefined names are errors, blocks leave no line."""
    made = Environment(
        loader=FileSystemLoader(template_folder()),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 -- no HTML: values go through `literal` or `plain`
    )
    made.filters["literal"] = literal
    made.filters["plain"] = plain
    return made


def literal(value: object) -> str:
    """A Python literal in the formatter's style; what it evaluates to is `value` itself.

    Everything that a model list can bring into a script passes here or through `plain`.
    """
    if isinstance(value, str):
        text = repr(value)
        if text[0] == "'" and '"' not in text:
            text = f'"{text[1:-1]}"'
        elif text[0] == "'" and text.count('"') <= text.count("\\'"):
            text = '"' + text[1:-1].replace("\\'", "'").replace('"', '\\"') + '"'
        return text
    if isinstance(value, tuple | list):
        inner = ", ".join(literal(item) for item in value)
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    raise TypeError(f"no literal for {type(value).__name__}")


def plain(text: str) -> str:
    """`text` unchanged if it can stand in a docstring; ValueError otherwise."""
    if not _PLAIN.fullmatch(text):
        raise ValueError(f"cannot stand in a docstring: {text!r}")
    return text


@cache
def _template(name: str) -> Template:
    return environment().get_template(name)


def render(run: Run, template: str = "run.py.jinja", **more: object) -> str:
    """The text of run.py for a run that has a placement (ValueError for a refused one).

    template: a script that extends run.py's, with what it needs to know beside that in `more`.
    """
    if run.placement is None:
        raise ValueError(f"{run.run_id} is refused: there is nothing to render")
    stack = run.stack
    neuron = stack.target is not Target.CPU
    made_for = [("torch", stack.torch), (stack.library, stack.library_version)]
    if stack.python:
        made_for.insert(0, ("python", stack.python))
    for package, version in (
        ("torch-neuronx", stack.torch_neuronx),
        ("neuronx-cc", stack.neuronx_cc),
        ("nki", stack.nki),
    ):
        if version:
            made_for.append((package, version))
    if neuron:
        system = (("runtime", stack.runtime), ("neuron-driver", stack.driver))
        made_for += [(what, version) for what, version in system if version]
    stack_lines = [f"{package} {version}" for package, version in made_for]
    if run.extra_packages:
        stack_lines.append(f"and: {', '.join(run.extra_packages)}")
    cores = run.placement.cores
    return _template(template).render(
        run=run,
        target_words=(
            f"{cores} NeuronCore{'s' if cores > 1 else ''} of AWS Trainium2"
            if neuron
            else f"the CPU, in {cores} process{'es' if cores > 1 else ''}"
        ),
        stack_lines=stack_lines,
        made_for=made_for,
        install=install_words(stack, run.extra_packages),
        schema_version=SCHEMA_VERSION,
        prefill_chunk=run.prefill_chunk,
        device="neuron" if neuron else "cpu",
        backend="neuron" if neuron else "inductor",
        process_group="neuron" if neuron else "gloo",
        neuron=neuron,
        image=run.task is Task.IMAGE_TEXT_TO_TEXT,
        auto_class=_AUTO_CLASSES[run.task],
        sharded=cores > 1,
        expert=run.placement.parallelism is Parallelism.EXPERT,
        moe=run.mixture_of_experts,
        image_size=_IMAGE_SIZE,
        version_names=RECORDED_PACKAGES,
        **more,
    )


def install_command(stack: StackVersions, extra_packages: Iterable[str] = ()) -> str:
    """The pip command that installs a stack's Python packages at its versions."""
    return " ".join(install_words(stack, extra_packages))


def install_words(stack: StackVersions, extra_packages: Iterable[str] = ()) -> list[str]:
    """The pip command of a stack in words for a shell; the first is `python -m pip install`.

    The Neuron index carries PyTorch/XLA under the same name and PyPI a placeholder, hence every
    version is pinned. Indexes: AWS Neuron 2.33, setup/pytorch/update-manual.
    """
    return pip_words(stack, requirements(stack, extra_packages))


def pip_words(stack: StackVersions, packages: Iterable[str]) -> list[str]:
    """The pip command for these packages from the indexes of a stack's target, in words."""
    indexes = [_NEURON_INDEX] if stack.target is not Target.CPU else []
    return [
        "python -m pip install",
        *(shlex.quote(package) for package in packages),
        *(f"--extra-index-url {index}" for index in (*indexes, _CPU_INDEX)),
    ]


def requirements(
    stack: StackVersions, extra_packages: Iterable[str] = (), *, beside_image: bool = False
) -> list[str]:
    """A stack's Python packages as pip requirements, each without spaces and not quoted.

    beside_image: only what is put beside the packages that a machine of the target already has. On
    the device torch, torch-neuronx, the compiler and nki come with the image and are never
    installed over it; elsewhere nothing is there.
    """
    packages = [f"torch=={stack.torch}", f"{stack.library}=={stack.library_version}"]
    if beside_image:
        return [*packages[stack.target is Target.NEURON :], *extra_packages]
    for package, version in (
        ("torch-neuronx", stack.torch_neuronx),
        ("neuronx-cc", stack.neuronx_cc),
        ("nki", stack.nki),
    ):
        if version:
            # Wheels carry a build number behind the version that release notes name.
            packages.append(f"{package}=={version}.*")
    return [*packages, *extra_packages]


def sha256(text: str) -> str:
    """Identity of a rendered script: hex digest of its UTF-8 bytes."""
    return hashlib.sha256(text.encode()).hexdigest()
