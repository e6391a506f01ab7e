"""`approvals` and `signal`: what runs ask is listed and shown, and what people say reaches the run."""

from __future__ import annotations

import getpass
from collections.abc import Callable
from typing import Any

import pytest

from cli.kit import Console
from tenure import Agent, App, CheckpointedAgent, Ledger, RunSuspended, Store, ToolCall, tool
from tenure.core.messages import assistant
from tenure.perform import perform
from tenure.testing.models import Reply, ScriptedModel

made: list[str] = []


@tool(approval=True)
async def send(to: str, cents: int) -> str:
    made.append(f"{cents} to {to}")
    return "sent"


def _agent() -> Agent[str]:
    replies: list[Reply] = [
        assistant("", ToolCall(id="c1", name="send", arguments={"to": "ann", "cents": 5000})),
        assistant("", ToolCall(id="c2", name="send", arguments={"to": "ann", "cents": 50})),
        "done",
    ]
    return Agent(ScriptedModel(replies), name="cashier", tools=[send])


def _goes_on(console: Console) -> str:
    async def recover(store: Store) -> str:
        try:
            found = await CheckpointedAgent(_agent(), store).recover("r1")
        except RunSuspended:
            return "suspended"
        return found

    found: str = console.do(recover)
    return found


@pytest.fixture
def asking(console: Console) -> Console:
    """A console whose store has a run that asks whether to send."""
    made.clear()

    async def ask(store: Store) -> None:
        with pytest.raises(RunSuspended):
            await CheckpointedAgent(_agent(), store).run("go", id="r1")

    console.do(ask)
    return console


def test_m_ap_l5_requests_are_listed_shown_and_approved(asking: Console) -> None:
    listed = asking("approvals", "list")
    assert listed.code == 0
    assert [word in listed.out for word in ("r1", "approve:c1", 'send{"cents":5000,"to":"ann"}')] == [True] * 3
    (value,) = asking("approvals", "list", "-o", "json", "--kind", "cashier").json
    assert (value["run_id"], value["id"], value["standing"]) == ("r1", "approve:c1", "open")
    assert asking("approvals", "list", "--kind", "other", "-o", "jsonl").lines == []
    shown = asking("approvals", "show", "r1")
    assert value["digest"] in shown.out
    assert '"cents": 5000' in shown.out
    done = asking("approvals", "approve", "r1", "approve:c1", "--by", "ann", "--digest", value["digest"][:12])
    assert (done.code, done.out) == (0, "r1 has approve:c1 approved and is queued\n")
    assert "approved by ann" in asking("approvals", "list").out
    assert _goes_on(asking) == "suspended"
    assert made == ["5000 to ann"]
    assert _decided(asking)[0]["by"] == "ann"


def _decided(console: Console) -> list[Any]:
    found: list[Any] = []

    async def read(store: Store) -> None:
        async with Ledger(store) as ledger:
            found.extend(decision.to_json() for decision in await ledger.handle("r1").decisions())

    console.do(read)
    return found


def test_the_next_version_is_shown_with_its_difference_and_a_lone_request_needs_no_name(asking: Console) -> None:
    assert asking("approvals", "reject", "r1", "--reason", "too much").code == 0
    assert _goes_on(asking) == "suspended"
    (first,) = _decided(asking)
    assert (first["approved"], first["reason"]) == (False, "too much")
    assert first["by"].startswith(f"{getpass.getuser()}@")
    shown = asking("approvals", "show", "r1", "approve:c2").out
    assert '-    "cents": 5000,' in shown
    assert '+    "cents": 50,' in shown
    assert asking("approvals", "approve", "r1").code == 0
    assert _goes_on(asking) == "done"
    assert made == ["50 to ann"]
    assert asking("approvals", "list").err == "no run asks anything\n"


def test_who_decides_without_a_name_after_the_last_request_was_decided_is_told_by_whom_and_when(
    asking: Console,
) -> None:
    assert asking("approvals", "reject", "r1", "--by", "ann", "--reason", "too much").code == 0
    assert _goes_on(asking) == "suspended"
    assert asking("approvals", "approve", "r1", "--by", "cid").code == 0
    assert _goes_on(asking) == "done"
    for how in ("approve", "reject"):
        late = asking("approvals", how, "r1", "--by", "cid")
        told = "does not ask anything; its last request 'approve:c2' was decided first, by cid: approved; the run took"
        assert (late.code, told in late.err) == (9, True)
    named = asking("approvals", "approve", "r1", "approve:c1", "--by", "bob")
    assert (named.code, "decided first, by ann: rejected (too much); the run took" in named.err) == (9, True)


def test_a_run_that_never_asked_anything_is_told_as_such(filled: Console) -> None:
    said = filled("approvals", "approve", "done")
    assert (said.code, "run done does not ask anything; `tenure approvals list`" in said.err) == (9, True)


def test_who_misspells_a_request_is_told_what_the_run_asks_and_a_stale_digest_which_one_it_is_now(
    asking: Console,
) -> None:
    for how in ("approve", "show"):
        said = asking("approvals", how, "r1", "approve:d1")
        assert (said.code, "run r1 does not ask 'approve:d1'; it asks approve:c1; `tenure show r1`" in said.err) == (
            9,
            True,
        )
    (one,) = asking("approvals", "list", "-o", "jsonl").lines
    said = asking("approvals", "approve", "r1", "approve:c1", "--digest", "0" * 64)
    assert (said.code, one["digest"][:12] in said.err) == (9, True), said.err


def test_a_run_that_was_cancelled_has_no_open_business(asking: Console) -> None:
    assert asking("cancel", "r1").code == 0
    shown = asking("show", "r1").out
    assert "requests that nobody answered (1)" in shown
    assert "open requests" not in shown


def test_what_cannot_be_decided_has_its_exit_code(asking: Console) -> None:
    def code(*arguments: str) -> int:
        return asking("approvals", *arguments).code

    assert code("approve", "nobody") == 3
    assert code("approve", "r1", "approve:c9") == 9
    assert code("show", "r1", "approve:c9") == 9
    assert code("approve", "r1", "--digest", "123") == 2
    stale = asking("approvals", "approve", "r1", "--digest", "0" * 12)
    assert (stale.code, "STALE_DECISION" in stale.err) == (9, True)
    assert code("revoke", "r1", "approve:c1") == 9
    assert code("approve", "r1", "--by", "ann") == 0
    assert code("approve", "r1", "approve:c1", "--by", "ann") == 0, "the same again"
    late = asking("approvals", "reject", "r1", "approve:c1", "--by", "bob")
    assert (late.code, "decided first, by ann" in late.err) == (9, True)
    assert code("revoke", "r1", "approve:c1", "--by", "bob") == 0
    assert _goes_on(asking) == "suspended"
    assert made == []
    assert asking("approvals", "list", "-o", "json").json[0]["id"] == "approve#2:c1"


def test_several_requests_are_named_and_a_doubt_is_sent_to_resolve(console: Console) -> None:
    app = App()

    @app.kind("board")
    async def board(run: Any, _: Any) -> None:
        import anyio

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run.ask, "one", "1?")
            tasks.start_soon(run.ask, "two", "2?")

    console.do(_called(app, "board"))
    said = console("approvals", "approve", "r1")
    assert (said.code, "ask:one, ask:two" in said.err) == (2, True)
    assert 'one: "1?"' in console("approvals", "list").out


def _called(app: App, kind: str) -> Callable[[Store], Any]:
    async def call(store: Store) -> None:
        async with Ledger(store) as ledger:
            if await store.load("r1") is None:
                await ledger.submit(kind, None, id="r1")
            lease = await ledger.claims.claim(ledger.claims.change("r1"))
            async with ledger.claims.under(lease) as held:
                await perform(app, ledger, held)

    return call


def test_a_signal_reaches_the_handler_that_waits_for_it(console: Console, tmp_path: Any) -> None:
    app, heard = App(), []

    @app.kind("listener")
    async def listener(run: Any, _: Any) -> None:
        heard.append(await run.wait_for("go"))
        heard.append(await run.wait_for("stop"))

    console.do(_called(app, "listener"))
    file = tmp_path / "said.json"
    file.write_text('{"n": 1}')
    assert console("signal", "r1", "og").out == "r1 has the signal og and is suspended, waiting for go\n"
    said = console("signal", "r1", "go", "--data", f"@{file}", "--id", "s1")
    assert (said.code, said.out) == (0, "r1 has the signal go and is queued\n")
    assert console("signal", "r1", "go", "--data", f"@{file}", "--id", "s1").code == 0
    assert console("signal", "r1", "go", "--data", "2", "--id", "s1").code == 9
    assert console("signal", "r1", "go", "--data", "{").code == 2
    assert console("signal", "nobody", "go").code == 3
    assert console("signal", "r1", "stop", "-o", "json").json["status"] == "queued"
    console.do(_called(app, "listener"))
    assert heard == [{"n": 1}, None]
    assert console("signal", "r1", "go").code == 9
