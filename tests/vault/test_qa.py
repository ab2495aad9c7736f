"""Question-answer records of a small library written for the test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kvc.diagnostics import KvcError
from kvc.vault.doxygen import comment_of
from kvc.vault.front_end import FrontEnd, Shown, completed
from kvc.vault.pages import sections
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


REAL = r"""
#pragma once
#include "real-version.h"
#include "real/real-export.h"
#include <real/types.h>

/*! Where a scalar is read. */
typedef enum realMode_ {
  REAL_HOST = 0,   /** from host memory */
  REAL_DEVICE = 4, /** from device memory */
} realMode_t;

namespace real {
class Plan;
/// \brief A plan of one transform, made once and run many times on the same device.
struct Plan {
    /// \brief Runs the plan on a stream, in place, without any allocation of its own.
    /// \param [in] first, last - where the elements begin and end.
    /// \retval 0 it ran.
    /// \retval 1 sizes differ.
    /// \par Examples
    /// \parblock
    /// The example runs a plan of \p float.
    /// \code
    /// void example(...)
    /// {
    ///     float* x = ...;
    ///     // ...
    ///     real::Plan().run(x, x);
    ///     ...
    /// }
    /// \endcode
    /// \endparblock
    template <class T> int run(T first, T last) { return first == last; }
    /// \brief Runs the plan with a scale, which it applies to each of the elements.
    template <class T> int run(T first, T last, float scale) { return first == last && scale > 0; }
private:
    /// \brief Nobody can call this, so that nobody needs to know what it is for.
    int hidden();
};
/// \brief Returns how many elements a plan has, in units of a wave of 64 lanes.
REAL_EXPORT real_size lanes(const Plan& plan);
#define REAL_TWICE(name) inline int name##Twice(int x) { return 2 * x; }
/// \brief This comment belongs to an expansion of a macro and to no function of a user.
REAL_TWICE(both)
}
"""


@pytest.fixture
def unbuilt(tmp_path: Path) -> Path:
    root = tmp_path / "real"
    files = {
        "library/include/real.hpp": REAL,
        "library/include/types.h": "#pragma once\ntypedef unsigned long real_size;\n",
        "library/include/real-version.h.in": "#define REAL_MAJOR @real_VERSION_MAJOR@\n#cmakedefine REAL_FAST\n",
        "clients/include/bench.h": "/*! Times a call for those who work on it. */\nint realBench(int n);\n",
        "clients/samples/helper/util.h": "#include <real/real.hpp>\ninline int util() { return REAL_MAJOR; }\n",
        "clients/samples/one/one.cpp": '#include "util.h"\nint main() { return real::lanes(real::Plan()) + util(); }\n',
        "LICENSE": "Permission is hereby granted, free of charge, to any person\n",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_a_checkout_that_was_never_built_is_read_as_it_would_be_installed(unbuilt: Path) -> None:
    pairs, dropped, result = run(unbuilt)
    lanes = next(p for p in pairs if p["kind"] == "function")
    assert "#include <real/real.hpp>" in lanes["answer"] and "real_size call(" in lanes["answer"]
    sample = next(p for p in pairs if p["kind"] == "sample")
    assert "inline int util()" in sample["answer"]  # without its helper it is no complete program
    assert not any("realBench" in p["answer"] for p in pairs) and not dropped, dropped
    assert result["code"] == {"tried": 5, "compiled": 5, "kept": 5}


def test_members_and_overloads_are_told_apart_and_cited_where_they_are_defined(unbuilt: Path) -> None:
    pairs, _, _ = run(unbuilt)
    lines = REAL.splitlines()
    by_question = {p["question"]: p for p in pairs}
    short = next(p for q, p in by_question.items() if "run(first, last) do" in q)
    assert any("run(first, last, scale) do" in q for q in by_question)
    assert "- `first, last`: where the elements" in short["answer"]
    assert "- `0`: it ran." in short["answer"] and "- `1`: sizes differ." in short["answer"]
    assert "The example" not in short["answer"] and "template <class T> int run(T first, T last);" in short["answer"]
    plan = next(p for q, p in by_question.items() if "struct real::Plan" in q)
    assert plan["line"] == lines.index("struct Plan {") + 1
    assert "hidden" not in json.dumps(pairs) and "Twice" not in json.dumps(pairs)


def test_what_an_example_leaves_out_is_written_as_code_that_compiles(unbuilt: Path) -> None:
    example = next(p for p in run(unbuilt)[0] if p["kind"] == "example")
    assert "float* x{/* ... */};" in example["answer"] and "example(/* ... */)" in example["answer"]
    assert "The example runs a plan of `float`." in example["answer"]
    same = 'try { f(a, ...); } catch (...) { s = "..."; } // ...'
    assert completed(same) == same


def test_a_comment_behind_an_enumerator_is_that_enumerators(unbuilt: Path) -> None:
    enum = next(p for p in run(unbuilt)[0] if p["kind"] == "enum")
    assert "- `REAL_HOST` = 0: from host memory\n- `REAL_DEVICE` = 4: from device memory" in enum["answer"]


def test_headers_of_an_older_compiler_pass() -> None:
    code = """
#include <type_traits>
static_assert(__AMDGCN_WAVEFRONT_SIZE == 64, "");
namespace std { template <> struct is_floating_point<_Float16> : true_type {}; }
int both = max(1, 2);
"""
    assert FrontEnd([]).problem(code) == ""


def test_precompiled_headers_change_no_verdict(tmp_path: Path) -> None:
    (tmp_path / "a.h").write_text("inline int a() { return 1; }\n")
    (tmp_path / "b.h").write_text("inline int b() { return missing; }\n")
    front_end = FrontEnd([tmp_path])
    for _ in range(2):
        assert front_end.problem("#include <a.h>\nint x = a();\n") == ""
        assert "missing" in front_end.problem("#include <b.h>\nint x = b();\n")
        assert "b" in front_end.problem("#include <a.h>\nint x = b();\n")
    assert isinstance(front_end.compiled_form("std::vector<int> v{a()};", ["a.h"]), Shown)


def test_sections_keep_code_in_place_and_lose_what_announces_lost_code() -> None:
    text = """Page
====

Run the tests of the library after each change of the build, as all of them must pass. For one test alone:

.. code-block:: bash

   tests --filter=one

The call that follows is a fragment:

.. code-block:: cpp

   fragment(

Where is more?
--------------

This section lists the samples that come with the library, one for each of the operations that it has.
"""
    one, two = sections(text)
    answer = one.answer({})
    assert answer.endswith("```bash\ntests --filter=one\n```") and "fragment" not in answer
    assert "fragment();" in one.answer({3: "fragment();"})
    assert two.answer({}) == "" and two.question("x") == "Where is more? (x: Page)"
    assert (one.line, two.line) == (1, 16)
