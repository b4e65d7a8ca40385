"""The transform of ``adadp.normals`` in C, several times as fast: compiled when it is first asked for.

It is used only where it makes the bits that numpy makes, which ``adadp.normals`` finds out.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from pathlib import Path

from adadp.normals import ANGLE, COSINE, LN2, LOG, ROOT_HALF, SINE, Doubles, Transform, Words

_SOURCE = r"""
#include <math.h>
#include <stdint.h>
typedef union { double number; int64_t bits; } word;
void normals(const int64_t *restrict i, const int64_t *restrict j, double *restrict x, double *restrict y, int64_t n) {
    for (int64_t k = 0; k < n; k++) {
        double shifted = (double)i[k] + 0.5;
        word u = { .number = fabs(shifted) };
        int64_t exponent = (u.bits - ROOT_HALF) >> 52;
        word mantissa = { .bits = u.bits - exponent * (INT64_C(1) << 52) };
        double f = mantissa.number - 1.0, s = f / (mantissa.number + 1.0), s2 = s * s;
        double square = ((double)(63 - exponent) * LN2 - (f - (f - LOG(s2) * s2) * s)) * 2.0;
        double radius = copysign(sqrt(square), shifted);
        double half = (double)j[k] * ANGLE, h2 = half * half;
        double sine = SINE(h2) * h2 * half + half;
        double cosine = 1.0 - (h2 * 0.5 - COSINE(h2) * (h2 * h2));
        x[k] = (1.0 - sine * sine * 2.0) * radius;
        y[k] = sine * cosine * 2.0 * radius;
    }
}
"""


def _definitions() -> str:
    """The constants of ``_SOURCE``, bit by bit, and its polynomials by Horner's rule."""
    lines = [f"ROOT_HALF INT64_C({ROOT_HALF})", f"LN2 {LN2.hex()}", f"ANGLE {ANGLE.hex()}"]
    for name, coefficients in (("LOG", LOG), ("SINE", SINE), ("COSINE", COSINE)):
        *others, highest = (value.hex() for value in coefficients)
        lines.append(f"{name}(x) ({' + (x) * ('.join([*others, highest])}{')' * len(others)})")
    return "".join(f"#define {line}\n" for line in lines)


def compiled() -> Transform | None:
    """``_SOURCE`` by the machine's compiler; None where there is none."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang") or "cc"
    # No fused products: they round once where numpy rounds twice. The last two change no number.
    options = ["-O3", "-march=native", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "normals.c"), Path(folder, "normals.so")
        source.write_text(_definitions() + _SOURCE, encoding="ascii")
        command = [compiler, *options, "-shared", "-fPIC", str(source), "-o", str(library), "-lm"]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=60)
            function = ctypes.CDLL(str(library)).normals
        except (OSError, AttributeError, subprocess.SubprocessError):
            return None

    def transform(i: Words, j: Words, x: Doubles, y: Doubles) -> None:
        function(*(ctypes.c_void_p(array.ctypes.data) for array in (i, j, x, y)), ctypes.c_int64(len(i)))

    return transform
