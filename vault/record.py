"""One record of the vault: a kernel, the spec it was written for, where that came from, and what the gates said of it.

Records are flat: a column holds a string, an integer, a float or nothing, and structured parts are JSON text, so that
every Parquet reader shows them alike. Each field carries its own description; the Arrow schema and the dataset card
are made from them. A record holds all that `candidate()` needs to rebuild the judged candidate exactly.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, get_type_hints

from kvc.kernel import KernelSpec

if TYPE_CHECKING:
    import pyarrow
    from kvc.emitter import Candidate

#: Raise it when a column is added or changes its meaning; readers refuse a newer major version.
SCHEMA_VERSION = 1

SOURCE_KINDS = ("nn", "transformers", "torchvision", "timm", "random", "user")
STATUSES = ("verified", "rejected")
SPLITS = ("train", "heldout")


def _column(text: str) -> Any:
    return dataclasses.field(metadata={"text": text})


@dataclass(frozen=True)
class Record:
    """A judged candidate. `None` means "not known" in the nullable columns alone; text columns use ""."""

    id: str = _column("Identity of the candidate: digest of spec, target, arch, numerics, source and launches.")
    spec_text: str = _column("The kernel specification in index notation (.kir); kvc.text.parse_kernel reads it.")
    spec_hash: str = _column("Digest of the canonical spec: names of tensors and axes do not count, sizes do.")
    structure: str = _column("Digest of the canonical spec with sizes, constants and dtypes normalised away.")
    target: str = _column("Language of the kernel: hip or triton.")
    arch: str = _column("GPU that the kernel was compiled and executed for, such as gfx942.")
    numerics: str = _column("strict (fp32 stays fp32) or fast (xf32 and bf16 products are allowed).")
    op_class: str = _column("Pattern of the spec and its dominant operation, such as rows/max+sum or contraction/conv.")
    ops: str = _column("Sorted names of the functions and reductions of the spec, separated by blanks.")
    dtype: str = _column("Floating type of the first float output, else of the first output.")
    split: str = _column("train or heldout, decided by the set of operations alone, so that the two share no set.")
    source_kind: str = _column("Where the reference comes from: nn, transformers, torchvision, timm, random or user.")
    origin: str = _column("The library module with its configuration, the generator's seed, or the user's file.")
    licence: str = _column("SPDX licence of the reference's origin.")
    reference: str = _column("Self-contained Python: class Model, get_inputs() and get_init_inputs().")
    functional: str = _column("The kernel's part of the model as a Python function over torch.ops, checked on inputs.")
    emitter: str = _column("What wrote the kernel: the name of a rule emitter or of a model.")
    emitter_version: str = _column("Version of the emitter.")
    weights: str = _column("Digest of the weights, for a learned emitter.")
    emitter_seed: int = _column("Seed that the emitter was asked with.")
    schedule: str = _column("The emitter's schedule, such as row_reduction.")
    knobs: str = _column("JSON list of [name, value]: the setting of the emitter's knobs.")
    launches: str = _column("JSON list of launches in order: kernel, grid, block, args, dynamic_lds, options.")
    workspace: str = _column("JSON list of scratch buffers: name, dtype, numel.")
    source: str = _column("Text of the kernel.")
    source_hash: str = _column("SHA-256 of the text, 16 digits.")
    normalized_hash: str = _column("SHA-256 of the text without comments, constants and names, 16 digits.")
    status: str = _column("verified: passed every gate. rejected: `stage` and `code` say where and why not.")
    stage: str = _column("Gate that rejected it: propose, lint, compile, resources, execute, compare or determinism.")
    code: str = _column("Code of the diagnostic of a rejection, such as KVC0701.")
    message: str = _column("Text of that diagnostic.")
    attempts: int = _column("Candidates that were judged for this spec by this emitter, this one included.")
    feedback: str = _column("JSON list of earlier attempts' stage, code and message that the emitter was shown.")
    resources: str = _column("JSON: registers, LDS, scratch and occupancy of each kernel, from the compiler.")
    evidence: str = _column("JSON of kvc.verify.verdict.Evidence: errors, checks, executor, seed, counters.")
    estimate_us: float | None = _column("Microseconds by roofline and counted traffic: an estimate, not measured.")
    measured_us: float | None = _column("Microseconds measured on the device `measured_on`, else nothing.")
    measured_on: str = _column("Device of `measured_us`.")
    baseline_us: float | None = _column("Microseconds of the reference, same device; for hip2hip the start's estimate.")
    parent: str = _column("hip2hip: id of the verified kernel that this one improves on.")
    seed: int = _column("Seed of the input sets and of the wave order.")
    kvc_version: str = _column("Version of kvc that judged it.")
    toolchain: str = _column("JSON: name, version and flags of the compiler.")

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("status", self.status, STATUSES),
            ("split", self.split, SPLITS),
            ("source_kind", self.source_kind, SOURCE_KINDS),
        ):
            if value not in allowed:
                raise ValueError(f"{name} {value!r} is none of {', '.join(allowed)}")

    @property
    def is_verified(self) -> bool:
        return self.status == "verified"

    def spec(self) -> KernelSpec:
        """The parsed specification."""
        from kvc.text import parse_kernel

        return parse_kernel(self.spec_text)

    def candidate(self, spec: KernelSpec | None = None) -> Candidate:
        """The candidate exactly as it was judged; `spec` saves parsing the text again."""
        from kvc.records import candidate_from_json

        data = {
            "spec": self.spec_text,
            "arch": self.arch,
            "numerics": self.numerics,
            "target": self.target,
            "schedule": self.schedule,
            "source": self.source,
            "launches": json.loads(self.launches),
            "workspace": json.loads(self.workspace),
            "knobs": json.loads(self.knobs),
            "origin": {
                "emitter": self.emitter,
                "version": self.emitter_version,
                "weights": self.weights,
                "seed": self.emitter_seed,
            },
        }
        return candidate_from_json(data, spec)

    def to_row(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @staticmethod
    def from_row(row: dict[str, Any]) -> Record:
        """A record from a row that holds at least its columns; others are left out."""
        return Record(**{name: row[name] for name in column_texts()})


def columns_of(candidate: Candidate) -> dict[str, Any]:
    """The columns that state a candidate; its id and digests among them."""
    from kvc.records import candidate_to_json
    from kvc.vault.normalize import normalized

    data = candidate_to_json(candidate)
    launches = compact(data["launches"])
    spec = candidate.task.spec
    identity = (spec.hash, candidate.target, data["arch"], data["numerics"], candidate.source, launches)
    return {
        "id": digest("\0".join(identity)),
        "spec_text": data["spec"],
        "spec_hash": spec.hash,
        "target": candidate.target,
        "arch": data["arch"],
        "numerics": data["numerics"],
        "emitter": candidate.origin.emitter,
        "emitter_version": candidate.origin.version,
        "weights": candidate.origin.weights,
        "emitter_seed": candidate.origin.seed,
        "schedule": candidate.schedule,
        "knobs": compact(data["knobs"]),
        "launches": launches,
        "workspace": compact(data["workspace"]),
        "source": candidate.source,
        "source_hash": digest(candidate.source),
        "normalized_hash": digest(normalized(candidate.source, candidate.target)),
    }


def digest(text: str) -> str:
    """SHA-256 of a text, its first 16 hex digits."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def compact(data: Any) -> str:
    """JSON without blanks, keys in order: the same data gives the same text."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), default=str)


@cache
def column_texts() -> dict[str, str]:
    """Description of every column, in order."""
    return {field.name: field.metadata["text"] for field in dataclasses.fields(Record)}


@cache
def schema() -> pyarrow.Schema:
    """The Arrow schema: a description on every column, the schema's version on the whole."""
    import pyarrow as pa

    kinds = {str: (pa.string(), False), int: (pa.int64(), False), float | None: (pa.float64(), True)}
    hints = get_type_hints(Record)
    fields = []
    for name, text in column_texts().items():
        kind, nullable = kinds[hints[name]]
        fields.append(pa.field(name, kind, nullable=nullable, metadata={"description": text}))
    return pa.schema(fields, metadata={"kvc_vault_schema": str(SCHEMA_VERSION)})
