"""Changed specs are specs, keep the split, and come with what the rules write for them."""

import random

import pytest
from kvc.check import kernel_problems
from kvc.model.augment import augment, changed
from kvc.model.dataset import Example
from kvc.model.frame import parse
from kvc.text import parse_kernel, print_kernel
from kvc.vault.normalize import op_names, split_of, structure

from tests.model.test_lift import SPECS


def source(name: str) -> Example:
    spec = parse_kernel(SPECS[name])
    return Example("", "", "triton", "gfx942", "train", "best", "", "", spec.hash, "", print_kernel(spec), "[]", 0)


def test_changed_specs_hold_their_invariants_and_stay_in_their_split() -> None:
    rng, made = random.Random(0), []
    for name in ("softmax", "linear", "window", "scaled"):
        made += [s for _ in range(40) if (s := changed(parse_kernel(SPECS[name]), rng)) is not None]
    assert len(made) > 60 and len({structure(s) for s in made}) > 40
    for spec in made:
        assert next(kernel_problems(spec), None) is None and split_of(op_names(spec)) == "train"
        assert parse_kernel(print_kernel(spec)).hash == spec.hash


def test_examples_are_the_rules_own_and_no_spec_comes_twice() -> None:
    made = list(augment([source("softmax"), source("scaled")], 12, 60.0, seed=3))
    assert len(made) >= 12 and len({(e.spec_hash, e.target) for e in made if e.rank == "best"}) == sum(
        e.rank == "best" for e in made
    )
    for e in made:
        assert parse(e.answer).runs and e.split == "train" and e.prompt.startswith("triton gfx942 strict")
        assert ("\nwith " in e.prompt) == (e.rank != "best")


def test_the_same_seed_gives_the_same_examples() -> None:
    first, second = (list(augment([source("linear")], 4, 60.0, seed=5)) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("split", ["train", "heldout"])
def test_held_out_sets_of_operations_are_kept_apart(split: str) -> None:
    for e in augment([source("softmax"), source("scaled"), source("window")], 3, 30.0, seed=1, each=1, split=split):
        assert e.split == split == split_of(op_names(parse_kernel(e.spec_text)))
