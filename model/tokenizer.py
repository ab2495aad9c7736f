"""The shipped model's own byte-level BPE tokenizer.

Names of the canonical spec (`d3`, `a0`), dtypes and the digits of numbers are tokens of their own, so that a name is
copied by one token; everything between them, blanks and line ends included, is one piece, so that the long phrases of
kernel code (`__bfloat162float(`, `other=0.0)`) become single tokens. Training uses the `tokenizers` package; encoding
and decoding need nothing but the tokenizer.json that it wrote.
"""

from __future__ import annotations

import heapq
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from kvc.diagnostics import KvcError

PAD, BOS, ANSWER, EOS = range(4)
SPECIAL = ("<pad>", "<bos>", "<answer>", "<eos>")
#: What stands alone. Also the pre-tokeniser of the file; `tokenizers` and this module must cut alike. A digit stands
#: alone unless it belongs to a word (`float32`, three digits at most) or to the number 0.0.
ALONE = (
    r"(?<![A-Za-z_0-9])(?:bf16|f16|f32|f64|i64|i32)(?![A-Za-z_0-9])"
    r"|(?<![A-Za-z])[acdDty][0-9]{1,2}(?![0-9])"
    r"|(?<![A-Za-z_])(?<![A-Za-z_][0-9])(?<![A-Za-z_][0-9]{2})(?!(?<![0-9.])0\.0(?![0-9]))(?<![^0-9.]0\.)[0-9]"
)
_ALONE = re.compile(f"({ALONE})")
#: Longest token in characters.
LONGEST = 80


def _byte_letters() -> list[str]:
    """The printable letter of each byte, as GPT-2's byte-level BPE has them."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {b: chr(b) for b in printable}
    spare = iter(range(256, 512))
    return [letters.get(b) or chr(next(spare)) for b in range(256)]


_LETTERS = _byte_letters()
_BYTES = {letter: byte for byte, letter in enumerate(_LETTERS)}


def train(texts: Iterable[str], path: Path, vocabulary: int = 4096, least: int = 4) -> None:
    """Train on texts and write tokenizer.json. Needs the `tokenizers` package (extra kvc[train])."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(ALONE), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        min_frequency=least,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(_LETTERS),
        max_token_length=LONGEST,
        show_progress=False,
    )
    made.train_from_iterator(texts, trainer)
    path.write_text(made.to_str(), encoding="utf-8")


class Tokenizer:
    """Encodes and decodes by a tokenizer.json. KVC0803 for a file that is none."""

    def __init__(self, path: Path) -> None:
        try:
            data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            vocabulary: dict[str, int] = data["model"]["vocab"]
            merges = [tuple(m.split(" ")) if isinstance(m, str) else tuple(m) for m in data["model"]["merges"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise KvcError("KVC0803", f"{path} is no tokenizer: {error}") from None
        self.vocabulary = vocabulary
        self._ranks = {(a, b): rank for rank, (a, b) in enumerate(merges)}
        self._piece = lru_cache(maxsize=1 << 16)(self._encode_piece)

    def __len__(self) -> int:
        return len(self.vocabulary)

    @cached_property
    def _texts(self) -> list[bytes]:
        texts = [b""] * len(self.vocabulary)
        for token, number in self.vocabulary.items():
            if number >= len(SPECIAL):
                texts[number] = bytes(_BYTES[letter] for letter in token)
        return texts

    def encode(self, text: str) -> list[int]:
        """Token numbers of a text, without special ones."""
        return [token for piece in _ALONE.split(text) if piece for token in self._piece(piece)]

    def prompt(self, text: str) -> list[int]:
        """What a model reads before it answers."""
        return [BOS, *self.encode(text), ANSWER]

    def decode(self, tokens: Sequence[int]) -> str:
        """The text; special tokens have none. U+FFFD stands for broken UTF-8, and for a token that only the model has,
        whose vocabulary may be larger."""
        known = self._texts
        return b"".join(known[t] if t < len(known) else b"\xff" for t in tokens).decode("utf-8", errors="replace")

    def _encode_piece(self, piece: str) -> tuple[int, ...]:
        """Merge the pair of the lowest rank, the leftmost first, until none is left. A heap over a linked list keeps
        long pieces from costing quadratic time."""
        parts: list[str | None] = [_LETTERS[b] for b in piece.encode()]
        after, before = list(range(1, len(parts) + 1)), list(range(-1, len(parts) - 1))
        heap = list(self._pairs(parts))
        heapq.heapify(heap)
        while heap:
            _, at, left, right = heapq.heappop(heap)
            follower = after[at]
            if parts[at] != left or follower >= len(parts) or parts[follower] != right:
                continue
            parts[at], parts[follower] = left + right, None
            after[at] = after[follower]
            if after[at] < len(parts):
                before[after[at]] = at
            for start, end in ((before[at], at), (at, after[at])):
                if start >= 0 and end < len(parts):
                    a, b = parts[start], parts[end]
                    rank = self._ranks.get((a, b)) if a is not None and b is not None else None
                    if rank is not None and a is not None and b is not None:
                        heapq.heappush(heap, (rank, start, a, b))
        return tuple(self.vocabulary[p] for p in parts if p is not None)

    def _pairs(self, parts: list[str | None]) -> Iterator[tuple[int, int, str, str]]:
        for at, (a, b) in enumerate(pairwise(parts)):
            if a is not None and b is not None and (a, b) in self._ranks:
                yield self._ranks[a, b], at, a, b
