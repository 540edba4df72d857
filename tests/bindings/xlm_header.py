"""What xlm.h says, as facts: names from the text, sizes, offsets and values from the C compiler."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
INCLUDE = ROOT / "native/include"
HEADER = INCLUDE / "xlm/xlm.h"

_STRUCT = re.compile(r"typedef struct (\w+) \{(.*?)\} \1;", re.DOTALL)
_ENUM = re.compile(r"^enum \{(.*?)\};", re.DOTALL | re.MULTILINE)
_FUNCTION = re.compile(r"^XLM_API\s+([\w ]+?[ *])(\w+)\(([^)]*)\);", re.MULTILINE)
_SCALARS = {"int32_t": "Int32", "xlm_result": "Int32", "uint64_t": "UInt64", "xlm_str": "xlm_str"}


@dataclass(frozen=True)
class Header:
    """Names as they stand in the header, in its order."""

    structs: dict[str, list[str]]
    enumerators: list[str]
    functions: dict[str, list[str]]  # result first


def parse(text: str) -> Header:
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    structs = {name: [_field(line) for line in body.split(";") if line.strip()] for name, body in _STRUCT.findall(text)}
    enumerators = [word.split("=")[0].strip() for body in _ENUM.findall(text) for word in body.split(",")]
    functions = {name: [_kind(result), *_parameters(words)] for result, name, words in _FUNCTION.findall(text)}
    return Header(structs, [name for name in enumerators if name], functions)


def _field(declaration: str) -> str:
    """``xlm_str name``, ``const int32_t *ids``, ``void *(*allocate)(...)``."""
    pointer = re.search(r"\(\*(\w+)\)\(", declaration)
    return pointer[1] if pointer else re.findall(r"\w+", declaration)[-1]


def _parameters(words: str) -> list[str]:
    return [] if words.strip() == "void" else [_kind(word) for word in words.split(",")]


def _kind(declaration: str) -> str:
    """The kind in which a value of this type is passed, in the words of .NET."""
    if "*" in declaration:
        return "pointer"
    return _SCALARS.get(declaration.split()[0], "UInt32")  # every other type of the header is an enumeration


def facts(header: Header, folder: Path) -> set[str]:
    """``struct NAME SIZE``, ``field STRUCT.NAME OFFSET SIZE``, ``enum NAME VALUE``, ``function NAME RESULT …``."""
    source, program = folder / "facts.c", folder / "facts"
    source.write_text(_program(header))
    subprocess.run(["cc", "-std=c99", "-Wall", "-Werror", f"-I{INCLUDE}", source, "-o", program], check=True)
    printed = subprocess.run([program], check=True, capture_output=True, text=True).stdout.splitlines()
    return {*printed, *(f"function {name} {' '.join(kinds)}" for name, kinds in header.functions.items())}


def _program(header: Header) -> str:
    lines = [f'printf("enum {name} %lld\\n", (long long){name});' for name in header.enumerators]
    for struct, fields in header.structs.items():
        lines.append(f'printf("struct {struct} %zu\\n", sizeof({struct}));')
        for field in fields:
            place = f"offsetof({struct}, {field}), sizeof((({struct} *)0)->{field})"
            lines.append(f'printf("field {struct}.{field} %zu %zu\\n", {place});')
    body = "\n".join(lines)
    return f"#include <stdio.h>\n#include <xlm/xlm.h>\nint main(void) {{\n{body}\nreturn 0;\n}}\n"
