"""What every instruction means: importing this package fills `table.REGISTRY` with the scalar and vector ALU opcodes."""

from kvc.simulator.isa import compare, convert, packed, salu, valu_float, valu_int

__all__ = ["compare", "convert", "packed", "salu", "valu_float", "valu_int"]
