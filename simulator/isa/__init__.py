"""What every instruction computes: importing this package fills `table.REGISTRY` with the ALU opcodes."""

from kvc.simulator.isa import compare, convert, packed, salu, valu_float, valu_int

__all__ = ["compare", "convert", "packed", "salu", "valu_float", "valu_int"]
