"""From examples to what training reads: tokenizer.json and corpus.npz in one folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from kvc.model.dataset import read
from kvc.model.tokenizer import Tokenizer, train
from kvc.model.train.corpus import tokenise

#: Examples that the tokenizer is trained on, about.
TEXTS = 30_000


def prepare(
    examples: Path, out: Path, vocabulary: int, longest: int, tokenizer_file: Path | None = None
) -> dict[str, Any]:
    """Write the two files; gives counts and the tokens of prompts and answers by target: median and 95th percentile.
    `tokenizer_file`: one that a model was trained with already, taken instead of a new one."""
    out.mkdir(parents=True, exist_ok=True)
    loaded = list(read(examples))
    if tokenizer_file is None:
        kept = [e for e in loaded if e.split == "train"]
        some = kept[:: max(len(kept) // TEXTS, 1)]  # evenly: a folder's files differ
        train([t for e in some for t in (e.prompt, e.answer)], out / "tokenizer.json", vocabulary)
    elif tokenizer_file != out / "tokenizer.json":
        (out / "tokenizer.json").write_text(tokenizer_file.read_text(encoding="utf-8"), encoding="utf-8")
    tokenizer = Tokenizer(out / "tokenizer.json")
    corpus = tokenise(loaded, tokenizer, longest)
    corpus.save(out / "corpus.npz")
    summary: dict[str, Any] = {
        "examples": len(loaded),
        "sequences": len(corpus),
        "tokens": int(corpus.starts[-1]),
        "heldout": len(corpus.heldout),
        "vocabulary": len(tokenizer),
    }
    for target in sorted({e.target for e in loaded}):
        mine = [e for e in loaded if e.target == target]
        for what, sizes in (
            ("prompt", [len(tokenizer.encode(e.prompt)) for e in mine]),
            ("answer", [len(tokenizer.encode(e.answer)) for e in mine]),
        ):
            summary[f"{target} {what} tokens"] = {
                "median": int(np.median(sizes)), "p95": int(np.percentile(sizes, 95))
            }  # fmt: skip
    return summary
