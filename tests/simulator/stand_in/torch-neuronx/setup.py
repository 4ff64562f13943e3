"""The C++ part of the stand-in; everything else stands in pyproject.toml."""

from typing import Any

import torch.utils.cpp_extension
from setuptools import setup  # type: ignore[import-untyped] # no stubs for this one file

_build: Any = torch.utils.cpp_extension  # its functions have no types

setup(
    ext_modules=[
        _build.CppExtension(
            "torch_neuronx._C",
            ["csrc/stand_in.cpp"],
            extra_compile_args=["-O0", "-g0"],  # quick to build: the work is done in PyTorch
        )
    ],
    # No ninja: it is one more thing that a machine may lack.
    cmdclass={"build_ext": _build.BuildExtension.with_options(use_ninja=False)},
)
