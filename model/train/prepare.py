"""From examples to what training reads: tokenizer.json and corpus.npz in one folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from kvc.model.dataset import read
from kvc.model.tokenizer import Tokenizer, train
from kvc.model.train.corpus import tokenise

#: Texts that the tokenizer is trained on, at most.
TEXTS = 30_000


def prepare(examples: Path, out: Path, vocabulary: int, longest: int) -> dict[str, Any]:
    """Write the two files; gives counts and the tokens of prompts and answers by target: median and 95th percentile."""
    out.mkdir(parents=True, exist_ok=True)
    loaded = list(read(examples))
    texts = [t for e in loaded if e.split == "train" for t in (e.prompt, e.answer)][: 2 * TEXTS]
    train(texts, out / "tokenizer.json", vocabulary)
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
