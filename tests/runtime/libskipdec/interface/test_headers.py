"""Each public header compiles alone in each of its languages, and C and C++ agree."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

INCLUDE = Path(__file__).parents[4] / "runtime/native/include"
C_HEADER = (INCLUDE / "skipdec/skipdec.h").read_text(encoding="utf-8")
CPP_HEADER = (INCLUDE / "skipdec/skipdec.hpp").read_text(encoding="utf-8")

USE_C = """#include <skipdec/skipdec.h>
int main(void) { skipdec_params params; skipdec_params_init(&params, sizeof params); return 0; }
"""
USE_CPP = """#include <skipdec/skipdec.hpp>
#include <type_traits>
template <class Handle>
constexpr bool is_moved_only =
    !std::is_copy_constructible_v<Handle> && !std::is_copy_assignable_v<Handle> &&
    std::is_nothrow_move_constructible_v<Handle> && std::is_nothrow_move_assignable_v<Handle>;
static_assert(is_moved_only<skipdec::Engine> && is_moved_only<skipdec::Request>);
void use(skipdec::Engine& engine) {
  auto params = skipdec::Params().max_tokens(3).seed(1).stop({"\\n", "."}).schedule("2x");
  for (const skipdec::Delta& delta : engine.submit({1, 2, 3}, params)) static_cast<void>(delta);
  engine.submit("text", params.on_delta([](const skipdec::Delta&) { return false; }));
  engine.generate(std::vector<std::int64_t>{1});
  engine.generate({1, 2});
  engine.generate("text");
  engine.submit_many({"two", "texts"});
  engine.submit_many({{1, 2}, {3}});
  engine.submit_many({"text", {1, 2}}, params);
  engine.submit_many(std::vector<std::string>{"text"});
}
"""


@pytest.mark.parametrize(
    ("compiler", "standard", "suffix", "text"),
    [
        ("gcc", "c99", ".c", USE_C),
        ("gcc", "c11", ".c", USE_C),
        ("g++", "c++17", ".cpp", USE_C),
        ("g++", "c++17", ".cpp", USE_CPP),
        ("g++", "c++20", ".cpp", USE_CPP),
    ],
)
def test_a_header_compiles_alone_without_a_warning(
    tmp_path: Path, compiler: str, standard: str, suffix: str, text: str
) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler}")
    source = tmp_path / f"use{suffix}"
    source.write_text(text, encoding="utf-8")
    flags = [f"-std={standard}", "-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-I{INCLUDE}"]
    command = [compiler, *flags, "-fsyntax-only", str(source)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_the_cpp_header_includes_only_the_standard_library_and_the_c_header() -> None:
    included = re.findall(r"^#include (\S+)", CPP_HEADER, re.MULTILINE)
    assert included.pop() == '"skipdec.h"'
    assert all(re.fullmatch(r"<[a-z_]+>", name) for name in included)


def test_the_cpp_header_calls_every_c_function() -> None:
    declared = set(re.findall(r"\b(skipdec_\w+)\(", C_HEADER))
    assert len(declared) > 20
    used = set(re.findall(r"\b(skipdec_\w+)\(", CPP_HEADER))
    only_in_c = {"skipdec_version", "skipdec_status_name"}
    only_in_c |= {"skipdec_submit_text", "skipdec_submit_tokens"}  # submit_many covers both
    assert declared - used == only_in_c


@pytest.mark.parametrize(
    ("struct", "set_otherwise"),
    [
        ("options", {"size"}),
        # set together with an array or a callback, or as an optional value
        ("params", {"size", "has_seed", "num_stop", "num_stop_token_ids", "callback", "user_data"}),
    ],
)
def test_every_field_has_a_setter_with_its_name(struct: str, set_otherwise: set[str]) -> None:
    body = re.search(rf"typedef struct skipdec_{struct} {{(.*?)}}", C_HEADER, re.DOTALL)
    assert body is not None
    declarations = re.sub(r"/\*.*?\*/", "", body[1], flags=re.DOTALL)
    fields = set(re.findall(r"(\w+)\s*;", declarations))
    cpp_class = re.search(rf"\nclass {struct.capitalize()} {{(.*?)\n}};", CPP_HEADER, re.DOTALL)
    assert cpp_class is not None
    setters = set(re.findall(rf"{struct.capitalize()}& (\w+)\(", cpp_class[1]))
    assert fields - set_otherwise <= setters


def test_no_type_name_is_defined_twice() -> None:
    # Of two types with one name, the linker keeps the functions of either for both.
    source = INCLUDE.parent / "src"
    defined = [
        name
        for header in sorted(source.rglob("*.h"))
        for name in re.findall(
            r"^(?:class|struct|enum class) (\w+)(?: final)?(?: : [^;]*)? \{",
            header.read_text(encoding="utf-8"),
            re.MULTILINE,
        )
    ]
    assert len(defined) > 60
    assert not [name for name in set(defined) if defined.count(name) > 1]
