"""Fake tensors on "cuda" with a torch that was built without CUDA.

Autograd asks every device it meets for a guard. A CUDA build without a GPU has one that does nothing, which torch
installs for fake tensors; a CPU build has none and aborts the process. Four lines of C++ install the same one.
"""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
import torch

_SOURCE = """
#include <c10/core/impl/DeviceGuardImplInterface.h>
namespace {
C10_REGISTER_GUARD_IMPL(CUDA, c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA>)
}
"""


@functools.cache
def install_guard() -> None:
    """Make autograd work for fake tensors on "cuda"; skips the test where there is neither CUDA nor a compiler."""
    if torch.cuda._is_compiled():
        return
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    torch_folder = Path(torch.__file__).parent
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder) / "guard.cpp", Path(folder) / "guard.so"
        source.write_text(_SOURCE)
        paths = [f"-I{torch_folder / 'include'}", f"-L{torch_folder / 'lib'}"]
        subprocess.run(
            [compiler, "-std=c++20", "-shared", "-fPIC", *paths, str(source), "-lc10", "-o", str(library)],
            check=True,
            capture_output=True,
        )
        ctypes.CDLL(str(library))
