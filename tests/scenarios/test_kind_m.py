"""Security of what is stored: nothing is revived, and what is to be hidden is in no sink."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from stores.postgres_kit import rows_of
from tenure import (
    ActiveRun,
    Agent,
    App,
    CheckpointedAgent,
    InvalidContent,
    Ledger,
    NotAllowed,
    Request,
    RunFailed,
    Status,
    StepFailed,
    Store,
    Worker,
    tool,
)
from tenure.core import build, journal
from tenure.core.messages import ToolCall, assistant
from tenure.core.run import Ask
from tenure.core.verify import verify_run
from tenure.stores.memory import MemoryStore
from tenure.testing.models import FunctionModel

SECRET = "ghp_" + "S3cr3t0000" * 3
"""In two pieces, so that no scanner takes this file for a leak."""


@dataclass
class Login:
    token: int


REVIVING = [
    {"lc": 1, "type": "constructor", "id": ["os", "system"], "kwargs": {"command": "true"}},
    {"__class__": "builtins.eval", "args": ["1"]},
    {"$type": "System.Diagnostics.Process"},
    "!!python/object/apply:os.system ['true']",
    "cos\nsystem\n(S'true'\ntR.",
]


async def test_b118_what_looks_like_an_object_stays_plain_data(store: Store) -> None:
    app = App()

    @app.kind("echo")
    async def echo(run: ActiveRun[Any], input: Any) -> Any:
        async def again() -> Any:
            return input

        return await run.step("again", again)

    async with Ledger(store, ttl=10) as ledger, Worker(app, ledger, drain=1):
        for index, value in enumerate(REVIVING):
            handle = await ledger.submit(echo, value, id=f"r{index}")
            assert await handle.result(timeout=30) == value
            found = [event async for _, event in handle.events()]
            assert [event["value"] for event in found if event["type"] == "record"] == [value]


async def raw(store: Store, store_url: str, namespace: str) -> bytes:
    """Every byte that the store keeps of a namespace."""
    if isinstance(store, MemoryStore):
        return repr(store._space).encode()
    if store_url.startswith("sqlite"):
        return b"".join(path.read_bytes() for path in _files(store_url.removeprefix("sqlite:///")))
    if store_url.startswith("postgres"):
        number = f"(SELECT number FROM tenure.space WHERE name = '{namespace}')"
        runs = f"(SELECT number FROM tenure.run WHERE space = {number})"
        wheres = {"run": f"space = {number}", "beat": f"space = {number}", "refused": f"space = {number}"}
        wheres |= dict.fromkeys(("journal", "inbox", "blob"), f"run IN {runs}")
        kept = [
            await rows_of(store_url, f"SELECT * FROM tenure.{table} WHERE {where}") for table, where in wheres.items()
        ]
        assert kept[0]
        return repr(kept).encode()
    client: Any = Redis.from_url(store_url)
    read: dict[Any, Any] = {
        b"string": client.get,
        b"hash": client.hgetall,
        b"list": lambda key: client.lrange(key, 0, -1),
        b"set": client.smembers,
        b"zset": lambda key: client.zrange(key, 0, -1, withscores=True),
    }
    keys = client.scan_iter(match=f"*{namespace}*", count=1000)
    found = [(key, await read[await client.type(key)](key)) async for key in keys]
    await client.aclose()
    return repr(found).encode()


def _files(path: str) -> list[Path]:
    return sorted(Path(path).parent.glob("tenure.db*"))


def leaking_agent(seen: list[Any]) -> Agent[str]:
    """An agent that gets, says and uses the secret; `seen` is what its model is shown in the end."""

    @tool
    async def look(path: str) -> dict[str, str]:
        return {"path": path, "content": f"export GITHUB={SECRET}"}

    def answers(request: Any) -> Any:
        if request.step > 1:
            seen.extend(request.messages[1:])  # instructions are the program's, not the store's
            return f"the secret is {SECRET}"
        calls = (
            ToolCall(id="c1", name="look", arguments={"path": "/etc"}),
            ToolCall(id="c2", name="look", arguments={"path": SECRET}),
        )
        return assistant(f"I will use {SECRET}", *calls)

    return Agent(FunctionModel(answers), name="walker", tools=[look], instructions=f"Use {SECRET}.")


@pytest.mark.parametrize("redact", [True, None])
async def test_b120_m_sm02_m_sm04_no_sink_holds_a_secret_when_redaction_is_on(
    store: Store, store_url: str, namespace: str, redact: bool | None
) -> None:
    app = App(redact=redact)
    seen: list[Any] = []

    async def leak() -> str:
        return f"the step found {SECRET}"

    async def burst() -> None:
        message = f"could not log in with {SECRET}"
        raise ValueError(message)

    @app.kind("leaky")
    async def leaky(run: ActiveRun[Any], input: Any) -> str:
        seen.extend([input, await run.step("leak", leak)])
        with pytest.raises(StepFailed) as failed:
            await run.step("burst", burst)
        seen.append(failed.value.detail)
        return f"result with {SECRET}"

    @app.kind("failing")
    async def failing(run: ActiveRun[Any], input: Any) -> None:
        raise ValueError(SECRET)

    agent = leaking_agent(seen)
    async with Ledger(store, ttl=10, redact=redact) as ledger:
        async with Worker(app, ledger, drain=1):
            one = await ledger.submit(leaky, {"password": SECRET, "url": f"https://u:{SECRET}@h/"}, id="one")
            two = await ledger.submit("failing", None, id="two")
            seen.append(await one.result(timeout=30))
            with pytest.raises(RunFailed):
                await two.result(timeout=30)
        seen.append(await CheckpointedAgent(agent, ledger).run(f"log in as {SECRET}", id="three"))
        await ledger.submit("waiting", None, id="four")
        async with ledger.hold("four") as lease:
            await lease.checkpoint({"token": SECRET})
            await lease.suspend(signals=["go"])
        await ledger.ask(build.post(run="four", item="i1", name="go", ask=Ask.SIGNAL, value={"note": SECRET}))
        await ledger.cancel("four", reason=f"it used {SECRET}", by=f"somebody {SECRET}")
        for run_id in ("one", "two", "three", "four"):
            verified = verify_run(await ledger.load(run_id), await store.tail(run_id))
            assert verified.ok, "what is hashed is what is stored"
    kept = await raw(store, store_url, namespace)
    assert b"walker" in kept, "this is where it is stored"
    assert (SECRET.encode() in kept) is (redact is None)
    assert (SECRET in repr(seen)) is (redact is None), "a first run sees what a replay will see"


async def test_i25_what_was_seen_first_is_what_a_replay_sees(store: Store) -> None:
    async def find() -> dict[str, str]:
        return {"api_key": "abc", "n": "1"}

    async with Ledger(store, ttl=10, redact=True) as ledger:
        await ledger.submit("k", {"token": "abc"}, id="r1")
        lived: list[Any] = []
        for _ in range(2):
            async with ledger.hold("r1") as lease:
                run = ActiveRun(ledger, lease, input=lease.state.input)
                lived.append((run.input, await run.step("find", find)))
        assert lived[0] == lived[1] == ({"token": "[redacted]"}, {"api_key": "[redacted]", "n": "1"})


async def test_i25_a_value_whose_type_has_no_place_for_the_marker_is_refused(store: Store) -> None:
    async def log_in() -> Login:
        return Login(token=1234)

    async with Ledger(store, ttl=10, redact=True) as ledger:
        await ledger.submit("k", None, id="r1")
        with pytest.raises(InvalidContent):
            async with ledger.hold("r1") as lease:
                await ActiveRun(ledger, lease, input=None).step("log-in", log_in)
        assert "1234" not in repr(await store.tail("r1"))


async def test_b120_a_call_that_holds_a_secret_is_not_made_and_its_model_is_told(store: Store) -> None:
    made: list[str] = []

    @tool(consequential=True)
    async def send(text: str) -> str:
        made.append(text)
        return "sent"

    calls = (
        ToolCall(id="c1", name="send", arguments={"text": f"here: {SECRET}"}),
        ToolCall(id="c2", name="send", arguments={"text": "hello"}),
    )
    model = FunctionModel(lambda request: assistant("", *calls) if request.step == 1 else "done")
    async with Ledger(store, ttl=10, redact=True) as ledger:
        await CheckpointedAgent(Agent(model, name="sender", tools=[send]), ledger).run("go", id="r1")
    assert made == ["hello"]
    first, second = model.asked[-1].messages[-1].parts
    assert (first.is_error, second.is_error) == (True, False)  # type: ignore[union-attr]
    assert str(first.content).startswith("Redacted: ")  # type: ignore[union-attr]


async def test_i25_a_request_that_redaction_would_change_is_not_suspended_on(store: Store) -> None:
    async with Ledger(store, ttl=10, redact=True) as ledger:
        await ledger.submit("k", None, id="r1")
        with pytest.raises(InvalidContent, match="as it is or not at all"):
            async with ledger.hold("r1") as lease:
                content = {"command": f"login {SECRET}"}
                opened = journal.event(journal.REQUEST_OPENED, request="ask:a", digest="d" * 64, content=content)
                await lease.commit(
                    [opened], status=Status.SUSPENDED, wants=("ask:a",), opened={"ask:a": Request(digest="d" * 64)}
                )
        run = await ledger.load("r1")
        assert (run.status, dict(run.requests)) == (Status.QUEUED, {}), "nothing of it landed"


async def test_b120_names_are_refused_before_anything_is_written(store: Store) -> None:
    async with Ledger(store, ttl=10, redact=True) as ledger:
        for submit in ({"id": SECRET}, {"tags": {"of": SECRET}}):
            with pytest.raises(InvalidContent, match="a name is not redacted"):
                await ledger.submit("k", None, **submit)
        assert [run async for run in ledger.find()] == []
        await ledger.submit("k", None, id="r1")
        with pytest.raises(InvalidContent, match="step key"):
            async with ledger.hold("r1") as lease:
                await ActiveRun(ledger, lease, input=None).step(SECRET, lambda: 1)
        with pytest.raises(InvalidContent, match="signal's name"):
            await ledger.ask(build.post(run="r1", item="i1", name=SECRET, ask=Ask.SIGNAL))


async def test_a_worker_whose_app_redacts_takes_no_ledger_that_does_not(store: Store) -> None:
    app = App(redact=True)

    @app.kind("k")
    async def k(run: ActiveRun[Any], input: Any) -> None: ...

    async with Ledger(store, ttl=10) as ledger:
        with pytest.raises(NotAllowed, match="the ledger it was given does not"):
            Worker(app, ledger)


async def test_b120_a_secret_on_the_edge_of_what_is_cut_is_hidden_before_it_is_cut(store: Store) -> None:
    @tool(max_output=30)
    async def look() -> str:
        return "x" * 20 + " " + SECRET

    @tool
    async def fail() -> str:
        message = "x" * 15_990 + " " + SECRET
        raise ValueError(message)

    calls = [ToolCall(id=name, name=name, arguments={}) for name in ("look", "fail")]
    model = FunctionModel(lambda request: assistant("", *calls) if request.step == 1 else "done")
    async with Ledger(store, ttl=10, redact=True) as ledger:
        await CheckpointedAgent(Agent(model, name="looker", tools=[look, fail]), ledger).run("go", id="r1")
        await ledger.submit("k", None, id="r2")
        async with ledger.hold("r2") as lease:
            await lease.settle("failed", code="X", message="x" * 1015 + " " + SECRET)
        assert SECRET[:6] not in repr([await store.tail("r1"), await store.tail("r2"), await store.load("r2")])
