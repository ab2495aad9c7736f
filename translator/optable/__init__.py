"""The operator table, one file a kind of op; importing a file registers its ops (kvc.ops.op_table does that)."""
