"""Which chips have an opcode, derived from the architecture table so that no chip is named here."""

from __future__ import annotations

from kvc.arch import ARCHS, CDNA

CDNA2_ONLY = tuple(name for name in CDNA if ARCHS[name].fp8 == "none")
SINCE_CDNA3 = tuple(name for name in CDNA if ARCHS[name].fp8 != "none")
SINCE_CDNA4 = tuple(name for name in CDNA if ARCHS[name].fp8 == "ocp")
