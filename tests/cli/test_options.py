"""An option that a command does not have: where it stands, or how it is written here."""

import pytest

from cli.kit import Console


@pytest.mark.parametrize("option", ["--json", "--format"])
def test_an_option_of_other_programs_is_told_as_it_is_written_here(filled: Console, option: str) -> None:
    said = filled("show", "done", option)
    assert (said.code, f"No such option: {option}; write -o json" in said.err) == (2, True)
    assert "write" not in filled("journal", "export", "done", option).err, "it has no -o"


@pytest.mark.parametrize(
    "arguments, written",
    [
        (["worker", "shop:app", "--ttl", "10"], "--ttl; write `tenure --ttl SECONDS worker ...`"),
        (["worker", "shop:app", "--log=debug"], "--log; write `tenure --log LEVEL worker ...`"),
        (["approvals", "list", "--redact"], "--redact; write `tenure --redact approvals list ...`"),
    ],
)
def test_an_option_that_stands_before_the_command_is_told_with_its_place(
    console: Console, arguments: list[str], written: str
) -> None:
    said = console(*arguments)
    assert (said.code, said.err.splitlines()[-1]) == (2, f"Error: No such option: {written}")


def test_an_option_that_nobody_has_is_sent_nowhere(console: Console) -> None:
    for arguments in (["worker", "shop:app", "--nothing"], ["--nothing", "runs"]):
        said = console(*arguments)
        assert (said.code, "write" in said.err) == (2, False)
