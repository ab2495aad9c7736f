"""Near-duplicates and contamination: what a corpus should not hold twice, and what it should not hold at all.

Near-duplicates are looked for within a spec and target, on shingles of the source's tokens with every constant the
same: MinHash signatures and their LSH (datasketch, MIT). References are compared with the files of other suites by
their syntax trees: a digest of the tree with names and constants taken out, and the overlap of token 8-grams.
"""

from __future__ import annotations

import ast
import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from kvc.diagnostics import KvcError
from kvc.vault.normalize import without_constants
from kvc.vault.shards import ShardWriter, rows

SHINGLE = 5  # tokens
PERMUTATIONS = 128
GRAM = 8  # tokens of a reference
MAX_OVERLAP = 0.6  # share of a reference's grams found in one file of another suite
MIN_GRAMS = 24  # a shorter reference is judged by its tree alone: `relu(x)` is nobody's property


def shingles(source: str, target: str) -> set[str]:
    """Runs of SHINGLE tokens, constants taken out."""
    words = without_constants(source, target)
    return {" ".join(words[i : i + SHINGLE]) for i in range(max(len(words) - SHINGLE + 1, 1))}


def near_duplicates(records: Iterable[dict[str, Any]], threshold: float) -> set[str]:
    """Ids of verified records that repeat an earlier one of their spec and target: the same text but for constants, or
    a similarity of `threshold` and more. Of rejected ones only exact repetitions count, since a fault is often small.
    KVC0501 without datasketch."""
    minhash = _datasketch()
    exact: set[tuple[str, str, str]] = set()
    groups: dict[tuple[str, str], Any] = {}
    found: set[str] = set()
    for row in records:
        verified = row["status"] == "verified"
        text = " ".join(without_constants(row["source"], row["target"])) if verified else row["source"]
        key = (row["spec_hash"], row["target"], hashlib.sha256(text.encode()).hexdigest())
        if key in exact:
            found.add(row["id"])
            continue
        exact.add(key)
        if not verified:
            continue
        group = groups.setdefault(key[:2], minhash.MinHashLSH(threshold=threshold, num_perm=PERMUTATIONS))
        signature = minhash.MinHash(num_perm=PERMUTATIONS)
        signature.update_batch([s.encode() for s in shingles(row["source"], row["target"])])
        if group.query(signature):
            found.add(row["id"])
        else:
            group.insert(row["id"], signature)
    return found


def _datasketch() -> Any:
    try:
        import datasketch
    except ModuleNotFoundError:
        raise KvcError("KVC0501", "datasketch is not installed", hint="pip install 'kvc[vault]'") from None
    return datasketch


# ---------------------------------------------------------------- contamination


class _Plain(ast.NodeTransformer):
    """A syntax tree without names of variables, constants, docstrings and annotations; attributes stay."""

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.copy_location(ast.Name("v", node.ctx), node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        return ast.copy_location(ast.arg("v", None), node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return ast.copy_location(ast.Constant(0), node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        if isinstance(node.value, ast.Constant):
            return None
        return self.generic_visit(node)


@dataclass(frozen=True)
class Fingerprint:
    """Of the computation in a file: digests of its `forward` methods' trees, and grams of their tokens."""

    trees: frozenset[str]
    grams: frozenset[str]


def fingerprint(source: str) -> Fingerprint | None:
    """None where the text is no Python, or defines no function."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return None
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    chosen = [f for f in functions if f.name == "forward"] or [f for f in functions if not f.name.startswith("get_")]
    trees, words = set(), []
    for function in chosen:
        body = ast.Module([n for s in function.body if (n := _Plain().visit(s)) is not None], [])
        trees.add(hashlib.sha256(ast.dump(body).encode()).hexdigest())
        words += without_constants(ast.unparse(function), "triton")
    made = [n for f in functions if f.name == "__init__" for n in ast.walk(f) if isinstance(n, ast.Call)]
    layers = [ast.unparse(c.func) for c in made]
    words += layers
    # The same forward over other layers is another model.
    suffix = "/".join(sorted(layers))
    grams = frozenset(" ".join(words[i : i + GRAM]) for i in range(len(words) - GRAM + 1))
    return Fingerprint(frozenset(f"{t}/{suffix}" for t in trees), grams)


class Suites:
    """The files of other suites, to compare references with."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._trees: dict[str, str] = {}
        self._grams: dict[str, list[int]] = defaultdict(list)
        self.files: list[str] = []
        for folder in folders:
            if not folder.is_dir():
                raise KvcError("KVC0101", f"{folder} is no folder")
            for path in sorted(folder.rglob("*.py")):
                self._add(str(path), path.read_text(encoding="utf-8", errors="replace"))

    def _add(self, name: str, source: str) -> None:
        found = fingerprint(source)
        if found is None:
            return
        self.files.append(name)
        for tree in found.trees:
            self._trees.setdefault(tree, name)
        for gram in found.grams:
            self._grams[gram].append(len(self.files) - 1)

    def match(self, source: str) -> str:
        """The file that a reference matches; "" for none."""
        found = fingerprint(source)
        if found is None:
            return ""
        for tree in found.trees:
            if tree in self._trees:
                return self._trees[tree]
        if len(found.grams) < MIN_GRAMS:
            return ""
        counts: Counter[int] = Counter()
        for gram in found.grams:
            counts.update(self._grams.get(gram, ()))
        best, count = max(counts.items(), key=lambda item: item[1], default=(0, 0))
        return self.files[best] if count >= MAX_OVERLAP * len(found.grams) else ""


# ---------------------------------------------------------------- the cleaned copy


def clean(
    folders: Sequence[Path],
    out: Path,
    against: Sequence[Path] = (),
    *,
    threshold: float = 0.9,
    keep_rejected: bool = True,
    limit: int | None = None,
) -> dict[str, Any]:
    """Copy vaults to `out` (new shards) without near-duplicates and contaminated references, at most `limit` records in
    all, spread evenly over classes and specs. What `out` holds already stays, and nothing near it is added. Gives the
    counts before and after."""
    columns = ["id", "spec_hash", "target", "status", "source", "reference", "op_class", "dtype", "source_kind"]

    def every(wanted: list[str]) -> Iterator[dict[str, Any]]:
        return (row for folder in folders for row in rows(folder, wanted))

    held = list(rows(out, columns)) if out.is_dir() else []
    there = {row["id"] for row in held}
    before = Counter(row["status"] for row in every(["status"]))
    duplicates = near_duplicates(chain(held, (r for r in every(columns[:5]) if r["id"] not in there)), threshold)
    suites = Suites(against)
    matches: dict[str, str] = {}
    kept: list[dict[str, Any]] = []
    contaminated = 0
    for row in every(columns):
        if row["id"] in duplicates or row["id"] in there or (row["status"] != "verified" and not keep_rejected):
            continue
        text = row["reference"]
        if against and text not in matches:
            matches[text] = suites.match(text)
        if against and matches[text]:
            contaminated += 1
            continue
        kept.append({k: row[k] for k in ("id", "spec_hash", "target", "op_class", "dtype", "source_kind")})
    chosen = set(stratified(kept, None if limit is None else max(limit - len(held), 0)))
    after = Counter(row["status"] for row in held)
    found = (row for folder in folders for row in rows(folder))
    with ShardWriter(out, "clean") as writer:
        for part, batch in enumerate(_batches(found, chosen, writer.rows_per_shard)):
            after.update(row["status"] for row in batch)
            writer.add(f"clean/{part}", batch)
    return {
        "before": dict(before),
        "near_duplicates": len(duplicates),
        "contaminated": contaminated,
        "contaminated_by": sorted({m for m in matches.values() if m}),
        "after_cleaning": len(held) + len(kept),
        "after": dict(after),
    }


def _batches(found: Iterator[dict[str, Any]], chosen: set[str], size: int) -> Iterator[list[dict[str, Any]]]:
    batch: list[dict[str, Any]] = []
    left = set(chosen)
    for row in found:
        if row["id"] in left:
            left.discard(row["id"])  # a candidate that two builds judged is kept once
            batch.append(row)
            if len(batch) >= size:
                yield batch
                batch = []
    if batch:
        yield batch


def stratified(kept: Sequence[dict[str, Any]], limit: int | None) -> list[str]:
    """Ids of at most `limit` records: each class, dtype and source in turn, and within it each spec in turn."""
    if limit is None or len(kept) <= limit:
        return [row["id"] for row in kept]
    strata: dict[tuple[str, ...], dict[tuple[str, str], list[str]]] = defaultdict(lambda: defaultdict(list))
    for row in kept:
        stratum = (row["op_class"], row["dtype"], row["source_kind"], row["target"])
        strata[stratum][row["spec_hash"], row["target"]].append(row["id"])
    queues = [_by_turns(list(specs.values())) for specs in strata.values()]
    return _by_turns(queues)[:limit]


def _by_turns(lists: list[list[str]]) -> list[str]:
    longest = max(map(len, lists), default=0)
    return [items[i] for i in range(longest) for items in lists if i < len(items)]
