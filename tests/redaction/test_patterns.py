"""What is hidden, what is left alone, and that what was hidden stays as it is."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure import InvalidContent, NotAllowed, Redaction, Request
from tenure.core import canonical, journal
from tenure.core.messages import ToolCall, assistant, to_json
from tenure.redaction import changes, redaction_of

# In two pieces each, so that no scanner takes this file for a leak.
SECRETS = {
    "github": "ghp_" + "a1B2" * 9,
    "github fine-grained": "github_pat_" + "11AAAAAAA0" * 4,
    "gitlab": "glpat-" + "xYz0_12345" * 2,
    "aws": "AKIA" + "IOSFODNN7EXAMPLE",
    "slack": "xoxb-" + "123456789012-abcdefghij",
    "slack app": "xapp-" + "1-A0123456789-abcdef",
    "slack webhook": "https://hooks.slack.com/" + "services/T0000/B0000/XXXXXXXX",
    "openai": "sk-" + "proj-abcdEFGH0123456789xyz",
    "anthropic": "sk-" + "ant-api03-abcdEFGH0123456789",
    "stripe": "sk_" + "live_abcdefghij0123",
    "google": "AIza" + "S" * 35,
    "google oauth": "ya29." + "a0AfH6SMB" * 4,
    "hugging face": "hf_" + "abcdefghij" * 3 + "kl",
    "npm": "npm_" + "abcdefghij" * 3 + "kl",
    "jwt": "eyJ" + "hbGciOiJIUzI1NiJ9." + "eyJ" + "zdWIiOiIxMjM0NSJ9.dBjftJeZ4CVP",
    "pem": "-----BEGIN RSA PRIVATE " + "KEY-----\nMIIEow\nIBAAKC\n-----END RSA PRIVATE " + "KEY-----",
    "pem that was cut": "-----BEGIN PRIVATE " + "KEY-----\nMIIEow\nIBAAKC",
}
BEFORE_AND_AFTER = {
    "Authorization: Bearer " + "abc.def.123": "Authorization: Bearer [redacted]",
    '{"authorization": "Basic ' + 'dXNlcjpwYXNz"}': '{"authorization": "Basic [redacted]"}',
    "curl -H 'X-Api-Key: " + "0123456789abcdef'": "curl -H 'X-Api-Key: [redacted]'",
    "a bearer " + "0a1b2c3d4e5f6a7b came": "a bearer [redacted] came",
    "postgresql://app:" + "hunter2@db/x": "postgresql://app:[redacted]@db/x",
    "DB_PASSWORD=" + "hunter22 next": "DB_PASSWORD=[redacted] next",
    '{"api_key": "' + 'p@ss\\"w, rd", "n": 1}': '{"api_key": "[redacted]", "n": 1}',
}


@pytest.mark.parametrize("name", SECRETS)
def test_m_sm03_what_a_secret_looks_like_is_hidden_in_any_text(name: str) -> None:
    redaction = Redaction()
    found = redaction.value({"note": f"use {SECRETS[name]} for it", "list": [SECRETS[name]]})
    assert SECRETS[name] not in str(found)
    assert found["list"] == ["[redacted]"]
    assert found["note"].startswith("use [redacted]")


@pytest.mark.parametrize("text", BEFORE_AND_AFTER)
def test_m_sm03_headers_and_settings_keep_their_name(text: str) -> None:
    assert Redaction().text(text) == BEFORE_AND_AFTER[text]


@pytest.mark.parametrize(
    "text",
    [
        "the token is sent with each request",
        "max_tokens=4096 and 1,200 tokens were used",
        "a task-list, a risk-assessment and https://example.org/a?b=c",
        "0197c1f2-7a4e-7b7e-8000-0123456789ab",
        "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
    ],
)
def test_what_is_no_secret_is_left_as_it_is(text: str) -> None:
    assert Redaction().text(text) == text
    assert not changes(Redaction(), {"x": [text]})


def test_m_sm03_fields_are_known_by_name_in_any_spelling() -> None:
    value = {
        "password": "x",
        "githubToken": "y",
        "X-API-Key": "z",
        "secret": {"inner": ["a", 1, True, None, ""]},
        "pin": 1234,
        "next_page_token": "CAUQAA",
        "input_tokens": 12,
        "key": "value",
    }
    assert Redaction().value(value) == {
        "password": "[redacted]",
        "githubToken": "[redacted]",
        "X-API-Key": "[redacted]",
        "secret": {"inner": ["[redacted]", "[redacted]", True, None, ""]},
        "pin": 1234,
        "next_page_token": "CAUQAA",
        "input_tokens": 12,
        "key": "value",
    }
    assert Redaction(fields=["pin"]).value({"pin": 1234, "password": "x"}) == {"pin": "[redacted]", "password": "x"}


def test_a_key_that_holds_a_secret_is_hidden_and_none_of_its_values_is_lost() -> None:
    found = Redaction().value({SECRETS["github"]: 1, SECRETS["slack"]: 2, "[redacted]": 3})
    assert sorted(found.values()) == [1, 2, 3]
    assert set(found) == {"[redacted]", "[redacted] 2", "[redacted] 3"}


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text() | st.sampled_from([*SECRETS.values(), *BEFORE_AND_AFTER]),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.sampled_from(["token", "a"]), inner),
        max_leaves=8,
    ),
    st.lists(st.sampled_from([*SECRETS.values(), *BEFORE_AND_AFTER, " ", "=", '"']), max_size=4).map("".join),
)
@settings(deadline=None)
def test_i25_what_was_redacted_is_not_changed_again(value: Any, text: str) -> None:
    redaction = Redaction()
    once = redaction.value([value, text])
    assert not redaction.changes(once)


def test_patterns_and_functions_of_ones_own() -> None:
    def no_mail(value: Any) -> Any:
        return re.sub(r"\S+@\S+", "<mail>", value) if isinstance(value, str) else value

    redaction = Redaction(patterns=[r"\b\d{16}\b", r"\w+"][:1], functions=[no_mail], marker="<hidden>")
    assert redaction.value("4111111111111111 of a@example.org") == "<hidden> of <mail>"
    assert Redaction(patterns=[r"\w+"]).text("one two") == "[redacted] [redacted]"
    assert not Redaction(patterns=[r"\w+"]).changes("[redacted] [redacted]"), "whatever a pattern matches"


def test_what_cannot_work_is_refused_by_name() -> None:
    with pytest.raises(NotAllowed, match="regular expression"):
        Redaction(patterns=["("])
    with pytest.raises(NotAllowed, match="no length"):
        Redaction(patterns=[r"\d*"])
    with pytest.raises(NotAllowed, match="collection"):
        Redaction(fields="token")
    with pytest.raises(NotAllowed, match="redact="):
        redaction_of("yes")
    assert redaction_of(None) is None
    assert redaction_of(False) is None

    def broken(_: Any) -> Any:
        raise ZeroDivisionError

    with pytest.raises(InvalidContent, match="broken raised ZeroDivisionError"):
        Redaction(functions=[broken]).value("x")


def test_an_event_keeps_what_says_what_it_is_and_a_message_its_form() -> None:
    redaction = Redaction(fields=["name", "id", "type", "role", "password"], patterns=["hunter2"])
    message = assistant("it is hunter2", ToolCall(id="c1", name="login", arguments={"password": "x", "name": "y"}))
    data = journal.event("assistant/message", name="model:1", message=to_json(message), usage={"input_tokens": 3})
    found = canonical.decode(redaction.event(data))
    assert (found["type"], found["name"], found["usage"]) == ("assistant/message", "model:1", {"input_tokens": 3})
    assert found["message"]["parts"] == [
        {"type": "text", "text": "it is [redacted]"},
        {"type": "call", "id": "c1", "name": "login", "arguments": {"password": "[redacted]", "name": "[redacted]"}},
    ]
    untouched = journal.event("record", name="step:a", value=1)
    assert redaction.event(untouched) is untouched


def test_a_name_is_refused_and_not_redacted() -> None:
    with pytest.raises(InvalidContent, match="name"):
        Redaction().event(journal.event("record", name=f"step:{SECRETS['aws']}", value=1))


def test_i25_a_request_is_stored_as_it_is_or_not_at_all() -> None:
    asked = Request(digest="d" * 64)
    fine = journal.event(journal.REQUEST_OPENED, request="r", digest=asked.digest, content={"to": "somebody"})
    assert Redaction().event(fine) == fine
    data = journal.event(journal.REQUEST_OPENED, request="r", digest=asked.digest, content={"to": SECRETS["jwt"]})
    with pytest.raises(InvalidContent, match="as it is or not at all"):
        Redaction().event(data)


class Meanwhile(str):
    """A key at which another thread comes in."""

    __slots__ = ("change",)
    change: Callable[[], object]
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return str(self) == other

    def __ne__(self, other: object) -> bool:
        self.change()
        return str(self) != other


def test_content_that_another_thread_changes_under_way_is_redacted_as_it_was() -> None:
    key = Meanwhile("b")
    shared: dict[str, object] = {"a": 1, key: SECRETS["github"], "c": 3}
    key.change = lambda: shared.update(d=4)
    assert list(Redaction().value(shared).items()) == [("a", 1), ("b", "[redacted]"), ("c", 3)]
