"""What every instruction computes: importing this package fills `table.REGISTRY` with the ALU opcodes."""

from kvc.simulator.isa import compare, convert, division, packed, salu, valu_float, valu_int
from kvc.simulator.isa.table import REGISTRY

__all__ = ["ALU", "compare", "convert", "division", "packed", "salu", "valu_float", "valu_int"]

# The mnemonics that these modules register; the engine adds its own afterwards (memory, EXEC, cross-lane, matrix).
ALU = frozenset(REGISTRY)
