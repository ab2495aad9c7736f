"""Shards: append-only, atomic, and their own journal."""

from pathlib import Path

import pytest
from kvc.diagnostics import KvcError
from kvc.vault import shards
from kvc.vault.shards import ShardWriter, finished, records, rows
from kvc.vault.validate import merge

from tests.vault.samples import ROWS, candidates, row


def _rows(count: int) -> list[dict]:
    return [row(candidate) for candidate in candidates()[:count]]


def test_rows_and_tasks_come_back(tmp_path: Path) -> None:
    some = _rows(3)
    with ShardWriter(tmp_path, "hip") as writer:
        writer.add("a", some[:2])
        writer.add("b", [])
        writer.add("c", some[2:])
    assert [r.id for r in records(tmp_path)] == [r["id"] for r in some]
    assert finished(tmp_path) == {"a", "b", "c"}


def test_full_shards_are_never_rewritten(tmp_path: Path) -> None:
    some = _rows(3)
    with ShardWriter(tmp_path, "hip", rows_per_shard=1) as writer:
        writer.add("a", some[:1])
        first = {p.name: p.read_bytes() for p in shards.shards(tmp_path)}
        writer.add("b", some[1:2])
    with ShardWriter(tmp_path, "hip", rows_per_shard=1) as writer:
        writer.add("c", some[2:])
    assert len(shards.shards(tmp_path)) == 3
    assert all((tmp_path / name).read_bytes() == data for name, data in first.items())


def test_a_build_that_dies_while_writing_leaves_no_half_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = ShardWriter(tmp_path, "hip")
    writer.add("a", _rows(1))
    writer.flush()

    def dies(self: Path, target: Path) -> Path:
        raise OSError("no space left on device")

    monkeypatch.setattr(Path, "rename", dies)
    writer.add("b", _rows(1))
    with pytest.raises(KvcError, match="no space left"):
        writer.flush()
    assert finished(tmp_path) == {"a"}
    assert [p.name for p in tmp_path.iterdir()] == ["hip-00001.parquet"]


def test_a_damaged_shard_is_named(tmp_path: Path) -> None:
    (tmp_path / "hip-00001.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(KvcError, match="no readable shard"):
        list(rows(tmp_path))


def test_merging_twice_adds_nothing(tmp_path: Path) -> None:
    for name, text in (("one", None), ("two", ROWS)):
        made = [row(c) for c in (candidates() if text is None else candidates(text))[:2]]
        with ShardWriter(tmp_path / name, "hip") as writer:
            writer.add(f"hip/gfx942/strict/{name}", made)
    folders = [tmp_path / "one", tmp_path / "two"]
    assert merge(folders, tmp_path / "all") == (4, 0)
    assert merge(folders, tmp_path / "all") == (0, 4)
    assert {"hip/gfx942/strict/one", "hip/gfx942/strict/two"} <= finished(tmp_path / "all")


def test_parquet_readers_need_nothing_of_ours(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    with ShardWriter(tmp_path, "hip") as writer:
        writer.add("a", _rows(2))
    table = pq.read_table(tmp_path / "hip-00001.parquet")
    assert table.num_rows == 2
    assert table.schema.field("source").metadata[b"description"]
