"""Records: they hold the candidate exactly, and say what each column means."""

import pytest
from kvc.text import parse_kernel
from kvc.vault.normalize import normalized, op_class, op_names, split_of, structure
from kvc.vault.record import Record, column_texts, columns_of, schema

from tests.vault.samples import ROWS, SPEC, candidates, record, row


@pytest.mark.parametrize("language", ["hip", "triton"])
def test_a_record_gives_its_candidate_back(language: str) -> None:
    for candidate in candidates(language=language):
        rebuilt = record(candidate).candidate()
        # The text of a spec is its meaning; objects may hold defaults in another spelling.
        assert columns_of(rebuilt) == columns_of(candidate)
        assert rebuilt.launches == candidate.launches
        assert rebuilt.origin == candidate.origin


def test_every_column_is_described_and_typed() -> None:
    fields = schema()
    assert fields.names == list(column_texts())
    assert all(field.metadata[b"description"] for field in fields)


def test_identity_depends_on_what_runs() -> None:
    first, second = candidates()[:2]
    assert columns_of(first)["id"] != columns_of(second)["id"]
    assert columns_of(first)["id"] == columns_of(first)["id"]


def test_a_status_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="status"):
        Record.from_row(row(candidates()[0], status="maybe"))


def test_structure_ignores_sizes_constants_dtypes_and_names() -> None:
    other = SPEC.replace("f32", "bf16").replace("130", "64").replace("0.5", "2.0").replace("x", "input")
    assert structure(parse_kernel(SPEC)) == structure(parse_kernel(other.replace("einputp", "exp")))
    assert structure(parse_kernel(SPEC)) != structure(parse_kernel(ROWS))


def test_split_follows_the_set_of_operations_alone() -> None:
    spec = parse_kernel(SPEC)
    assert op_names(spec) == ("add", "exp", "mul")
    assert split_of(op_names(spec)) == split_of(tuple(op_names(parse_kernel(SPEC.replace("130", "7")))))
    splits = [split_of((f"op{i}",)) for i in range(2000)]
    assert 0.05 < splits.count("heldout") / len(splits) < 0.11


def test_class_names_the_pattern_and_the_work() -> None:
    assert op_class(parse_kernel(SPEC)) == "pointwise/plain"
    assert op_class(parse_kernel(ROWS)) == "rows/max"


@pytest.mark.parametrize(
    ("language", "one", "other"),
    [
        ("hip", "int a = 3; // x\nfloat b = a + 2.5f;", "int q = 17;\nfloat z = q + 0.1f; /* y */"),
        ("triton", "a = tl.load(b + 4)  # hi\n", "x = tl.load(y + 128)\n"),
    ],
)
def test_normalisation_drops_comments_constants_and_names(language: str, one: str, other: str) -> None:
    assert normalized(one, language) == normalized(other, language)
    assert normalized(one, language) != normalized(one.replace("+", "-"), language)
