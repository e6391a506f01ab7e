"""docs/errors.md has one row for each code, and what it says of class and exit code is so."""

import re
from pathlib import Path

from tenure.cli.exits import EXIT, Exit
from tenure.errors import Code, by_code

PAGE = (Path(__file__).parents[1] / "docs" / "errors.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `([A-Z_]+)` \| `(\w+)` \| (.+?) \| (.+?) \| (\d+) \|$", PAGE, flags=re.MULTILINE)


def test_every_code_has_one_row_and_every_row_a_code() -> None:
    assert sorted(row[0] for row in ROWS) == sorted(code.value for code in Code)


def test_each_row_names_the_class_and_the_exit_code() -> None:
    for code, name, meaning, advice, number in ROWS:
        assert by_code(code).__name__ == name
        assert EXIT[Code(code)] == int(number)
        assert meaning.endswith(".")
        assert advice.endswith(".")


def test_every_exit_code_is_explained() -> None:
    explained = re.findall(r"^\| (\d+) \| .+ \|$", PAGE, flags=re.MULTILINE)
    assert [int(number) for number in explained] == [code.value for code in Exit]
