# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Loads the extension module, or says why it cannot be loaded."""

from ._built_with import TORCH, VERSION

_COMMAND = "pip install --force-reinstall --no-deps . in gradtune's folder, or pip install"

try:
    import torch  # loads the libraries that the extension needs
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ImportError(f"gradtune needs torch, and there is none: pip install torch=={TORCH}") from error

# Its C++ interface changes from one minor version to the next.
if torch.__version__.split(".")[:2] != TORCH.split(".")[:2]:
    raise ImportError(
        f"gradtune was built with torch {TORCH}, and torch {torch.__version__} is installed: {_COMMAND} torch=={TORCH}"
    )

from . import _gradtune  # noqa: E402, F401  after torch

__all__ = ["TORCH", "VERSION"]
