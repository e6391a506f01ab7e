"""The documentation's state diagram is the law's table, drawn."""

from pathlib import Path

from tenure.views.states import mermaid

PAGE = Path(__file__).parent.parent / "docs" / "concepts.md"


def test_the_state_diagram_is_drawn_from_the_rules() -> None:
    drawn = PAGE.read_text().split("drawn from the rules, do not edit -->\n")[1].split("<!-- /states -->")[0]
    assert drawn == f"```mermaid\n{mermaid()}\n```\n"
