"""The tools of the licence audit on broken metadata, and what it knows of licences."""

from pathlib import Path

import pytest

from examples.license_audit import reading
from examples.license_audit.licences import expression, ids_of, named, recognise
from examples.license_audit.places import BROKEN, known, places


def test_distributions_come_sorted_under_ids_of_normalised_name_and_version() -> None:
    assert list(known()) == sorted(known())
    assert {"pytest", "pydantic", "tenure"} <= {place.name for place in known().values()}
    assert len(places([BROKEN])) == 15


def test_of_two_with_one_id_the_first_on_the_path_counts(tmp_path: Path) -> None:
    for root, spelling in (("a", "Some_Thing-1.0+local"), ("b", "some.thing-1.0+local")):
        (tmp_path / root / f"{spelling}.dist-info").mkdir(parents=True)
    (found,) = places([tmp_path / "a", tmp_path / "b", tmp_path / "none"]).values()
    assert (found.id, found.root.name) == ("some-thing-1.0_local", "a")


def test_metadata_comes_with_its_lines_and_folded_fields_in_one_piece() -> None:
    found = reading.read_metadata("broken-open-classifiers-1.0")
    assert found["path"] == "broken_open_classifiers-1.0.dist-info/METADATA"
    assert [(one["line"], one["field"], one["text"]) for one in found["headers"]] == [
        (2, "name", "broken-open-classifiers"),
        (3, "version", "1.0"),
        (4, "license", "see the file\nLICENSE that nobody added"),
        (6, "classifier", "License :: OSI Approved :: BSD License"),
    ]


@pytest.mark.parametrize(
    "dist,error,words",
    [
        ("broken-no-metadata-1.0", FileNotFoundError, "has no METADATA"),
        ("broken-metadata-folder-1.0", FileNotFoundError, "has no METADATA"),
        ("broken-undecodable-1.0", ValueError, r"not UTF-8 \(byte \d+\)"),
        ("nobody-1.0", LookupError, "there is no distribution"),
    ],
)
def test_metadata_that_cannot_be_read_says_why(dist: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        reading.read_metadata(dist)


@pytest.mark.parametrize(
    "path",
    ["../../../../../../../../etc/hostname", "/etc/hostname", "broken_file_list-1.0.dist-info/licenses/GONE", ""],
)
def test_a_path_that_is_no_file_of_the_distribution_is_refused(path: str) -> None:
    with pytest.raises(FileNotFoundError, match="take a path from list_files"):
        reading.read_license("broken-file-list-1.0", path)


def test_a_link_is_not_followed_and_a_recorded_path_does_not_lead_out() -> None:
    assert [file["path"] for file in reading.list_files("broken-dangling-1.0")] == [
        "broken_dangling-1.0.dist-info/METADATA"
    ]
    assert all(".." not in file["path"] for file in reading.list_files("broken-file-list-1.0"))


def test_a_huge_file_is_read_in_pieces_and_not_to_its_end() -> None:
    path = "broken_huge_licence-1.0.dist-info/licenses/LICENSE"
    (size,) = [file["bytes"] for file in reading.list_files("broken-huge-licence-1.0") if file["path"] == path]
    first = reading.read_license("broken-huge-licence-1.0", path)
    assert size > reading.MAX_BYTES
    assert (len(first["lines"]), first["next"], first["cut"]) == (60, 61, True)
    assert reading.match_text("broken-huge-licence-1.0", path) == []


@pytest.mark.parametrize("start", [0, -5, 10_000_000])
def test_an_excerpt_from_nowhere_is_empty(start: int) -> None:
    assert reading.read_license("broken-expression-1.0", _licence("broken-expression-1.0"), start)["lines"] == []


def _licence(dist: str) -> str:
    return next(file["path"] for file in reading.list_files(dist) if file["path"].endswith("LICENSE"))


@pytest.mark.parametrize(
    "text,ids",
    [
        ("MIT", ("MIT",)),
        ("mit or apache-2.0", ("MIT", "Apache-2.0")),
        ("GPL-2.0-only WITH Classpath-exception-2.0", ("GPL-2.0-only",)),
        ("Apache License, Version 2.0", ("Apache-2.0",)),
        ("BSD", ("BSD-2-Clause", "BSD-3-Clause")),
        ("ask the author", ()),
    ],
)
def test_a_license_field_is_read_as_expression_or_name(text: str, ids: tuple[str, ...]) -> None:
    assert named(text) == ids


def test_what_is_no_spdx_expression_is_none() -> None:
    assert expression("ISC AND AND (Zlib") is None
    assert ids_of("(MIT OR Apache-2.0) AND LicenseRef-Own") == ("MIT", "Apache-2.0", "LicenseRef-Own")


def test_texts_are_told_apart_whatever_their_line_breaks() -> None:
    text = (BROKEN / "broken_no_metadata-1.0.dist-info/licenses/LICENSE").read_text()
    squeezed = " ".join(text.split())
    assert [(match.spdx, match.score) for match in recognise(text) if match.score == 1.0] == [("MIT", 1.0)]
    assert recognise(text)[0].line == 5
    assert [match.spdx for match in recognise(squeezed) if match.score == 1.0] == ["MIT"]
    assert recognise("All rights reserved.") == []
