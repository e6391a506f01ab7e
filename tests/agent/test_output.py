"""What tools return: text, JSON, images and files, inline or beside the journal, whole or cut."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from agent.parts import call, events
from tenure import (
    Agent,
    CheckpointedAgent,
    CorruptRecord,
    InvalidContent,
    Ledger,
    Media,
    ModelRequest,
    Store,
    StoreTooNew,
    ToolMessage,
    ToolResult,
    open_store,
    tool,
)
from tenure.agent.output import INLINE_BYTES, MAX_MEDIA_BYTES, output_of
from tenure.core import canonical
from tenure.core.messages import assistant, from_json, media_from_json, to_json
from tenure.testing.models import FunctionModel

SMALL = b"\x89PNG small"
LARGE = b"\x89PNG" + bytes(range(256)) * 512
"""128 KiB: more than stands inline, and more than one write takes without staging on Redis."""


@pytest.fixture(params=["memory", "sqlite", "valkey9", "postgres"])
async def store(request: pytest.FixtureRequest, tmp_path: Path, namespace: str) -> AsyncIterator[Store]:
    url = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/tenure.db"}.get(request.param)
    if request.param == "postgres":
        url = str(request.getfixturevalue("postgres_url"))
    url = url or str(request.getfixturevalue(request.param).url)
    async with open_store(url, namespace=namespace) as opened:
        yield opened


@tool
async def draw() -> list[Any]:
    return [
        "two pictures",
        Media(media_type="image/png", data=SMALL),
        Media(media_type="image/png", data=LARGE, name="b"),
    ]


def shown(request: ModelRequest, index: int = 0) -> ToolResult:
    found = [message for message in request.messages if isinstance(message, ToolMessage)]
    return found[-1].parts[index]


async def test_b110_m_ck24_images_are_shown_whole_and_large_ones_stand_beside_the_journal(
    ledger: Ledger, store: Store
) -> None:
    trouble = [True]

    def answer(request: ModelRequest) -> Any:
        if request.step == 1:
            return assistant("", call("c1", "draw"))
        return RuntimeError("died") if trouble and trouble.pop() else "done"

    model = FunctionModel(answer)
    durable = CheckpointedAgent(Agent(model, name="painter", tools=[draw]), ledger)
    with pytest.raises(RuntimeError):
        await durable.run("go", id="w1")
    assert await durable.run("go", id="w1") == "done"
    first, replayed = model.asked[1], model.asked[2]
    assert shown(first) == shown(replayed), "I14: verbatim"
    assert [media.data for media in shown(first).media] == [SMALL, LARGE]
    assert shown(first).content == "two pictures"
    (record,) = [event for event in await events(ledger, "w1") if event["type"] == "record"]
    inline, beside = record["media"]
    assert (inline["size"], "blob" in inline, beside["size"], "data" in beside) == (
        len(SMALL),
        False,
        len(LARGE),
        False,
    )
    assert beside["blob"] == hashlib.sha256(LARGE).hexdigest()
    assert await store.blob("w1", beside["blob"]) == LARGE
    assert len(canonical.encode(record)) < 1000


async def test_m_ck24_a_fork_has_the_images_that_its_conversation_shows(ledger: Ledger) -> None:
    model = FunctionModel(lambda r: assistant("", call(f"c{r.step}", "draw")) if r.step < 3 else "done")
    agent = Agent(model, name="painter", tools=[draw])
    await CheckpointedAgent(agent, ledger).run("go", id="w1")
    handle = await ledger.fork("w1", at=1, id="w2")
    assert await CheckpointedAgent(agent, ledger).recover(handle.id) == "done"
    messages = [message for message in model.asked[-1].messages if isinstance(message, ToolMessage)]
    assert [media.data for message in messages for media in message.parts[0].media] == [SMALL, LARGE] * 2


async def test_a_url_stays_a_url_and_files_keep_their_names(ledger: Ledger) -> None:
    @tool
    async def fetch() -> Media:
        return Media(media_type="application/pdf", url="https://example.org/a.pdf", name="a.pdf")

    model = FunctionModel(lambda r: assistant("", call("c1", "fetch")) if r.step == 1 else "done")
    await CheckpointedAgent(Agent(model, name="reader", tools=[fetch]), ledger).run("go", id="w1")
    part = shown(model.asked[-1])
    assert part.content == "[application/pdf a.pdf, https://example.org/a.pdf]", "a model that reads none is told"
    assert part.media == (Media(media_type="application/pdf", url="https://example.org/a.pdf", name="a.pdf"),)


async def test_m_bu01_a_long_result_is_cut_and_the_whole_one_is_kept(ledger: Ledger, store: Store) -> None:
    @tool(max_output=10)
    async def text() -> str:
        return "0123456789" * 1000

    @tool
    async def rows() -> list[int]:
        return list(range(1000))

    @tool
    async def short() -> list[int]:
        return [1, 2]

    calls = [call(f"c-{name}", name) for name in ("text", "rows", "short")]
    model = FunctionModel(lambda r: assistant("", *calls) if r.step == 1 else "done")
    agent = Agent(model, name="reader", tools=[text, rows, short], max_output=20)
    await CheckpointedAgent(agent, ledger).run("go", id="w1")
    found = [shown(model.asked[-1], index).content for index in range(3)]
    assert found[0].startswith("0123456789\n[cut: 10,000 characters in all; the whole result is blob ")
    assert found[1].startswith("[0,1,2,3,4,5,6,7,8,9\n[cut: ")
    assert found[2] == [1, 2]
    kept: dict[str, Any] = {
        event["name"]: event.get("whole") for event in await events(ledger, "w1") if event["type"] == "record"
    }
    assert await store.blob("w1", kept["tool:c-text"]) == b"0123456789" * 1000
    assert await store.blob("w1", kept["tool:c-rows"]) == canonical.encode(list(range(1000)))
    assert kept["tool:c-short"] is None


async def test_b120_what_is_kept_beside_the_journal_is_redacted_too(store: Store) -> None:
    secret = "ghp_" + "S3cr3t0000" * 3

    @tool(max_output=5)
    async def look() -> list[Any]:
        return [f"a long text with {secret}", Media(media_type="text/plain", data=f"key {secret}".encode())]

    model = FunctionModel(lambda r: assistant("", call("c1")) if r.step == 1 else "done")
    async with Ledger(store, ttl=10, redact=True) as ledger:
        await CheckpointedAgent(Agent(model, name="reader", tools=[look]), ledger).run("go", id="w1")
        (record,) = [event for event in await events(ledger, "w1") if event["type"] == "record"]
    assert await store.blob("w1", record["whole"]) == b"a long text with [redacted]"
    assert shown(model.asked[-1]).media[0].data == b"key [redacted]"


async def test_b120_fields_of_a_cut_result_are_hidden_by_name_in_what_is_shown_and_in_the_blob(store: Store) -> None:
    @tool(max_output=40)
    async def look() -> dict[str, str]:
        return {"cookie": "sess-4711-0815", "pad": "x" * 100}

    model = FunctionModel(lambda r: assistant("", call("c1")) if r.step == 1 else "done")
    async with Ledger(store, ttl=10, redact=True) as ledger:
        await CheckpointedAgent(Agent(model, name="reader", tools=[look]), ledger).run("go", id="w1")
        (record,) = [event for event in await events(ledger, "w1") if event["type"] == "record"]
    whole = await store.blob("w1", record["whole"])
    assert whole == canonical.encode({"cookie": "[redacted]", "pad": "x" * 100})
    assert str(record["value"]).startswith('{"cookie":"[redacted]"')


async def test_i26_a_blob_that_is_not_what_was_written_is_not_shown(ledger: Ledger) -> None:
    await ledger.submit("k", None, id="r1")
    async with ledger.hold("r1") as lease:
        with pytest.raises(CorruptRecord, match="not what was written"):
            await lease.blob("0" * 64)


@pytest.mark.parametrize(
    "media,named",
    [
        (Media(media_type="image/png"), "either data or a url"),
        (Media(media_type="image/png", data=b"x", url="https://example.org/"), "either data or a url"),
        (Media(media_type="image/png", data=bytes(MAX_MEDIA_BYTES + 1)), "over the limit"),
    ],
    ids=["nothing", "both", "too large"],
)
def test_b110_media_that_cannot_be_kept_is_refused_by_name(media: Media, named: str) -> None:
    with pytest.raises(InvalidContent, match=named):
        output_of([media], limit=1000, cap=None, redacted=lambda value: value)


def test_what_stands_inline_is_bounded() -> None:
    def blobs(size: int) -> int:
        value = Media(media_type="image/png", data=bytes(size))
        return len(output_of(value, limit=1000, cap=None, redacted=lambda value: value).blobs)

    assert (blobs(INLINE_BYTES), blobs(INLINE_BYTES + 1)) == (0, 1)


def test_i26_a_message_says_a_newer_schema_only_where_it_has_media() -> None:
    plain = ToolMessage(parts=(ToolResult(call_id="c1", content="x"),))
    media = ToolMessage(
        parts=(
            ToolResult(call_id="c1", content="x", media=(Media(media_type="image/png", data=SMALL, size=len(SMALL)),)),
        )
    )
    assert (to_json(plain)["schema"], to_json(media)["schema"]) == (1, 2)
    for message in (plain, media):
        assert from_json(canonical.decode(canonical.encode(to_json(message)))) == message
    with pytest.raises(StoreTooNew):
        from_json({**to_json(media), "schema": 3})
    with pytest.raises(CorruptRecord):
        media_from_json([{"media_type": "image/png", "data": "not base64!"}])
