"""The second tier: the same machine in C, an interpreter that runs waves one after another.

`encode` turns the decoded instructions of a program into records, `source` makes the ALU from the opcode table and
`forms`, `machine.h` interprets, `build` compiles all of it once for a processor, `run` runs launches.

Nothing is decided here: where the machine meets an instruction without a form, or finds what might be a fault, memory
is put back and the NumPy tier runs the launch. Its checks may therefore be stricter, and must never be weaker.
"""
