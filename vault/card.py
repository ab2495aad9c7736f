"""The dataset card, made from the schema and the counts."""

from __future__ import annotations

from typing import Any

from kvc.vault.record import SCHEMA_VERSION, column_texts


def card(found: dict[str, Any]) -> str:
    """Markdown with the front matter that dataset hubs read; `found` is kvc.vault.stats.statistics."""
    size = next(name for limit, name in _SIZES if found["records"] < limit)
    columns = "\n".join(f"| `{name}` | {text} |" for name, text in column_texts().items())
    classes = "\n".join(f"| {name} | {count} |" for name, count in found["by_op_class"].items())
    licences = ", ".join(f"{name} ({count})" for name, count in found["by_licence"].items())
    sources = ", ".join(f"{name} {count}" for name, count in found["specs_by_source"].items())
    return f"""---
license: apache-2.0
pretty_name: kvc vault
task_categories: [text-generation]
tags: [code, hip, triton, rocm, amd, cdna, gpu-kernels]
size_categories: [{size}]
configs:
  - config_name: default
    data_files: "*.parquet"
---

# kvc vault

Kernels for AMD CDNA GPUs, each with the specification it implements, the PyTorch it comes from, and the verdict of
kvc's gates. `status` is `verified` where a kernel was compiled for its GPU, executed and compared with a float64 oracle
on several input sets; rejected candidates are kept with the gate and the reason.

{found["records"]} records: {found["verified"]["hip"]} verified HIP, {found["verified"]["triton"]} verified Triton,
{found["rejected"]} rejected; {found["specs"]} specs ({sources}), {found["distinct_structures"]} distinct structures.

```python
from datasets import load_dataset

vault = load_dataset("parquet", data_files="DIR/*.parquet", split="train")
kernels = vault.filter(lambda row: row["status"] == "verified" and row["split"] == "train")
```

## What verified means here

Execution is on kvc's simulator of the CDNA instruction set unless `evidence` names another executor. Times in
`estimate_us` are estimates from a roofline and counted traffic; `measured_us` and `measured.parquet`, where present,
name the device that was timed. `split` keeps sets of operations apart: no set is in both train and heldout.

## Columns (schema {SCHEMA_VERSION})

| column | meaning |
|---|---|
{columns}

## Verified records by class

| class | records |
|---|---:|
{classes}

## Licences

Kernels are written by kvc's emitters (Apache-2.0). Licences of the references: {licences}.
"""


_SIZES = (
    (1_000, "n<1K"),
    (10_000, "1K<n<10K"),
    (100_000, "10K<n<100K"),
    (1_000_000, "100K<n<1M"),
    (1 << 62, "n>1M"),
)
