"""The effects of an append: which commit is a plain one."""

from dataclasses import fields, replace
from typing import Any

from tenure.effects import Effects


def test_an_append_is_plain_if_nothing_becomes_true_but_that_a_step_ended() -> None:
    assert Effects().plain
    assert Effects(step=3).plain
    given: dict[str, Any] = {"failures": 0, "inbox_seq": 0, "wants": (), "tags": {}}  # nothing, and said all the same
    for field in fields(Effects):
        if field.name not in ("step", "through"):
            assert not replace(Effects(step=1), **{field.name: given.get(field.name, ("x",))}).plain, field.name
