"""Question-answer records of a small library written for the test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kvc.diagnostics import KvcError
from kvc.vault.doxygen import comment_of
from kvc.vault.front_end import FrontEnd
from kvc.vault.qa import REPORT, make

HEADER = r"""
#pragma once
#ifdef __cplusplus
extern "C" {
#endif

/*! \brief Says on which side scalars of a call live, host or device. */
typedef enum tinySide {
  TINY_HOST = 0, /**< Scalars are read on the host. */
  TINY_DEVICE,   /**< Scalars are read on the device. */
} tinySide;

/*! \brief Multiplies each element of a vector by a scalar.
 *
 *  \details Works in place: \f$ x := \alpha x \f$. The vector may have a stride.
 *
 *  @param[in] n   [int] number of elements in \p x.
 *  @param[in] alpha the scalar.
 *  @param[inout] x pointer to the vector.
 *  @return zero on success.
 *
 *  \code{.cpp}
 *  float x[2] = {1, 2};
 *  int status = tinyScale(2, 3.0f, x);
 *  \endcode
 *  \code
 *  tinyNothing(7);
 *  \endcode
 */
int tinyScale(int n, float alpha, float* x);

int tinyPlain(int n);
#ifdef __cplusplus
}

namespace tiny {
namespace detail {
/// \brief Nobody outside of the library should use this function.
inline int hidden() { return 1; }
}
/// \brief Adds what an iterator gives, from the first element to the last, and returns the sum.
/// \tparam It the type of the iterator, which must be an input iterator.
template <class It> int sum(It first, It last);
}
#endif
"""
BAD = """
/*! \\brief Needs a header that the checkout does not have. */
missing_t tinyMissing(missing_t a);
"""
SAMPLE = """\
// Copyright the authors
#include <tiny/tiny.h>
#include <vector>
int main() {
  std::vector<float> x(4, 1.0f);
  return tinyScale(4, 2.0f, x.data());
}
"""
PAGE = """\
Tiny's manual
=============

Memory
------

The library never allocates: give each call the memory that it works in, and free it when the stream is done.
See :ref:`streams <x>`.

.. code-block:: cpp

   float x[1] = {0};

.. code-block:: cpp

   this is no code;

Short
-----

Too short.
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    root = tmp_path / "tiny"
    files = {
        "include/tiny/tiny.h": HEADER, "include/tiny/bad.h": BAD, "samples/scale.cpp": SAMPLE, "docs/manual.rst": PAGE, "test/include/t.h": HEADER,  # noqa: E501
        "samples/broken.cpp": SAMPLE.replace("tinyScale(4", "tinyScale(4, 5, 6"), "samples/other.cpp": "int main() {}\n",  # noqa: E501
        "LICENSE.md": "MIT License\n\nPermission is hereby granted, free of charge, to any person\n",
    }  # fmt: skip
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def run(checkout: Path, **more: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, Any]]:
    out = checkout.parent / "qa.jsonl"
    result = make(checkout, out, [], commit="abc", **more)
    read = [[json.loads(line) for line in p.read_text().splitlines()] for p in (out, out.with_name(REPORT))]
    return read[0], read[1], result


def test_pairs_cite_their_source_and_code_has_compiled(checkout: Path) -> None:
    pairs, _, result = run(checkout)
    assert result["kinds"] == {"enum": 1, "function": 1, "example": 1, "function template": 1, "sample": 1, "page": 1}
    by_kind = {p["kind"]: p for p in pairs}
    function = by_kind["function"]
    line = HEADER.splitlines().index("int tinyScale(int n, float alpha, float* x);") + 1
    assert (function["file"], function["line"]) == ("include/tiny/tiny.h", line)
    assert (function["licence"], function["commit"], function["code"]) == ("MIT", "abc", "compiled")
    assert "- `n`: [int] number of elements in `x`." in function["answer"] and "zero on success" in function["answer"]
    assert "#include <tiny/tiny.h>" in function["answer"] and "return tinyScale(n, alpha, x);" in function["answer"]
    assert function["messages"][1]["content"].endswith(f"Source: tiny, include/tiny/tiny.h:{line}")
    assert "- `TINY_DEVICE` = 1: Scalars are read on the device." in by_kind["enum"]["answer"]
    assert "int status = tinyScale" in by_kind["example"]["answer"]
    assert "std::vector" in by_kind["sample"]["answer"] and by_kind["sample"]["line"] == 2
    page = by_kind["page"]
    assert "`streams`" in page["answer"] and "float x[1]" in page["answer"] and "no code" not in page["answer"]
    assert "hidden" not in json.dumps(pairs) and "tinyPlain" not in json.dumps(pairs)


def test_code_that_does_not_compile_is_left_out_with_the_reason(checkout: Path) -> None:
    _, dropped, _ = run(checkout)
    why = {(d["kind"], d["file"]): d["why"] for d in dropped}
    assert "missing_t" in why["function", "include/tiny/bad.h"]
    assert "tinyNothing" in why["example", "include/tiny/tiny.h"]
    assert "tinyScale" in why["sample", "samples/broken.cpp"]  # called with an argument too many
    assert why["sample", "samples/other.cpp"] == "calls nothing of the library"
    assert ("page", "docs/manual.rst") in why


def test_a_checkout_without_a_known_licence_is_refused_unless_it_is_said(checkout: Path) -> None:
    (checkout / "LICENSE.md").write_text("Ask us.\n")
    with pytest.raises(KvcError, match=r"KVC0101.*licence"):
        run(checkout)
    assert run(checkout, licence="BSD-2-Clause")[2]["licence"] == "BSD-2-Clause"


def test_a_launch_and_the_standard_library_pass_the_front_end() -> None:
    declared = """
#include <vector>
#include <algorithm>
struct dim3 { unsigned x; dim3(unsigned a) : x(a) {} };
typedef struct ihipStream_t* hipStream_t;
extern "C" int __hipPushCallConfiguration(dim3, dim3, unsigned long = 0, hipStream_t = 0);
__attribute__((global)) void k(float* x) { x[0] = 1; }
"""
    front_end = FrontEnd([])
    assert (
        front_end.problem(declared + "int main() { std::vector<float> v(3); k<<<dim3(1), dim3(2)>>>(v.data()); }") == ""
    )
    assert "too many arguments" in front_end.problem(declared + "int main() { k<<<dim3(1), dim3(2)>>>(1, 2); }")


def test_comments_come_apart() -> None:
    found = comment_of(
        "/// \\brief One \\p x.\n/// More of it.\n///\n/// \\par Overview\n/// * A point.\n/// \\returns nothing"
    )
    assert (found.brief, found.returns) == ("One `x`. More of it.", "nothing")
    assert "A point." in found.details
