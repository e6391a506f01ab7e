"""What anybody may say to a run: decide, revoke, signal; and what runs ask people.

What is said is an item in the run's inbox. The first decision about a request stands; the same again is no error.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from tenure.codec import to_json_value
from tenure.core import approvals, build, canonical, ids, journal
from tenure.core.approvals import Choice, Decision, Standing
from tenure.core.run import Ask, Change, Post, Run, Status
from tenure.core.text import printable, shown
from tenure.errors import InvalidContent, NotAllowed, RequestClosed, StaleDecision
from tenure.store import ALL, Store, Where

_PAGE = 50

Asking = Callable[[Change], Awaitable[Run]]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRequest:
    """One open request of a run: what is decided on, and its digest, which a decision names.

    `content` is None where the run's own code keeps it elsewhere. `before` is what was asked before about the same
    tool or key, if that was something else. `standing` is `decided` or `void` between the post and the next commit of
    the run, `expired` until the run has taken note.
    """

    run_id: str
    id: str
    digest: str
    expires_ms: int | None = None
    opened_ms: int = 0
    content: Any = None
    before: Any = None
    standing: Standing = Standing.OPEN
    decision: Decision | None = None


async def open_requests(store: Store, run: Run, /, *, history: bool = False) -> list[OpenRequest]:
    """Return the open requests of a run in the order in which they were asked; `before` only with `history`."""
    if not run.requests:
        return []
    events = [found async for found in _opened(store, run, history=history)]
    items, now_ms = await store.inbox(run.id), (await store.facts()).now_ms
    found: dict[str, OpenRequest] = {}
    for name in (*(str(event["request"]) for _, event in events), *run.requests):
        if name not in run.requests or name in found:
            continue
        asked = run.requests[name]
        reading = approvals.read(name, asked, [item for item in items if not item.consumed], now_ms=now_ms)
        at_ms, event = next(
            ((at, e) for at, e in events if (e["request"], e["digest"]) == (name, asked.digest)), (0, {})
        )
        content = event.get("content")
        found[name] = OpenRequest(
            run_id=run.id,
            id=name,
            digest=asked.digest,
            expires_ms=asked.expires_ms,
            opened_ms=at_ms,
            content=content,
            before=_before(content, [e.get("content") for at, e in events if at <= at_ms]) if history else None,
            standing=reading.standing,
            decision=reading.decision,
        )
    return list(found.values())


async def _opened(store: Store, run: Run, *, history: bool) -> AsyncIterator[tuple[int, dict[str, Any]]]:
    """Each request as it was opened, with the time; without `history` only the part of the journal that tells."""
    wanted = {(name, asked.digest) for name, asked in run.requests.items()}
    pages: list[list[tuple[int, dict[str, Any]]]] = []
    start = 0 if history else max(0, run.last_seq - _PAGE)
    end = run.last_seq
    while True:
        page: list[tuple[int, dict[str, Any]]] = []
        after = start
        while after < end and (rows := await store.tail(run.id, after=after, limit=min(_PAGE, end - after))):
            for row in rows:
                events = (event for event in journal.events_of(row) if event["type"] == journal.REQUEST_OPENED)
                page += [(row.at_ms, {"request": "", "digest": "", **event}) for event in events]
            after = rows[-1].seq
        pages.insert(0, page)
        wanted -= {(event["request"], event["digest"]) for _, event in page}
        if start == 0 or not wanted:
            break
        start, end = max(0, start - _PAGE), start
    for page in pages:
        for found in page:
            yield found


def _before(content: Any, earlier: list[Any]) -> Any:
    """What was asked before about the same thing, if it was something else."""
    if not isinstance(content, dict):
        return None
    same = [e for e in earlier if isinstance(e, dict) and e.get("name") == content.get("name") and e != content]
    return same[-1] if same else None


async def asking(store: Store, where: Where = ALL, /) -> AsyncIterator[OpenRequest]:
    """Yield what open runs ask people, the newest run first; a run whose record cannot be read is passed over."""
    cursor: str | None = None
    where = replace(where, status=where.status or (Status.QUEUED, Status.RUNNING, Status.SUSPENDED))
    while True:
        page = await store.find(where, cursor=cursor, limit=_PAGE * 2)
        for run in page.runs:
            for found in await open_requests(store, run):
                yield found
        cursor = page.cursor
        if cursor is None:
            return


async def decisions(store: Store, run_id: str, /) -> list[Decision]:
    """Return what was decided and taken note of, in order: from the journal, which is the authority."""
    return [found async for _, found in _consumed(store, run_id)]


async def _consumed(store: Store, run_id: str) -> AsyncIterator[tuple[int, Decision]]:
    after = 0
    while rows := await store.tail(run_id, after=after, limit=_PAGE):
        after = rows[-1].seq
        for row in rows:
            for event in journal.events_of(row):
                if event["type"] == journal.REQUEST_DECIDED:
                    yield row.at_ms, Decision.from_json(event)


async def decision(
    store: Store,
    run: Run,
    request: str | OpenRequest,
    how: Choice | str,
    /,
    *,
    by: str,
    reason: str = "",
    digest: str | None = None,
) -> Post:
    """Return the post of a decision, bound to the content that was shown: `digest`, or what the request shows now."""
    if how not in (Choice.APPROVE, Choice.REJECT):
        message = f"a decision is 'approve' or 'reject', not {shown(how)}; a result or any other value is none"
        raise NotAllowed(message, run=run)
    name, seen = await _named(store, run, request, digest)
    value = {"how": Choice(how).value, "reason": canonical.plain(reason, 1000), "by": ids.label(by, "who decides")}
    return build.post(run=run.id, item=name, name=name, ask=Ask.DECIDE, value=value, request=seen)


async def revocation(store: Store, run: Run, request: str | OpenRequest, /, *, by: str, reason: str = "") -> Post:
    """Return the post that takes a decision back; RequestClosed if there is none that the run has not consumed."""
    name, seen = await _named(store, run, request, None)
    decided = [i for i in await store.inbox(run.id) if i.id == name and i.ask is Ask.DECIDE]
    if not decided:
        message = f"nobody has decided about {name!r} of run {run.id}; decide, or leave it open"
        raise RequestClosed(message, run=run)
    value = {"reason": canonical.plain(reason, 1000), "by": ids.label(by, "who revokes")}
    item = f"{approvals.REVOKE}{name}"
    return build.post(run=run.id, item=item, name=name, ask=Ask.REVOKE, value=value, request=seen)


async def _named(store: Store, run: Run, request: str | OpenRequest, digest: str | None) -> tuple[str, str]:
    """The id of a request, and the digest of what was seen of it."""
    name = request if isinstance(request, str) else request.id
    if approvals.about(name)[0] == approvals.RESOLVE:
        message = f"{name!r} asks how a call ended, which is no decision; say so with `tenure resolve {run.id} CALL`"
        raise NotAllowed(message, run=run)
    if not isinstance(request, str):
        return name, digest or request.digest
    if digest is None and name in run.requests:
        return name, run.requests[name].digest
    if digest is None:
        # Not open any more: the same decision again is no error, and is the same only with the same digest.
        opened = [event["digest"] async for _, event in _opened(store, run, history=True) if event["request"] == name]
        return name, opened[-1] if opened else ""
    return name, digest


def signal(run_id: str, name: str, value: Any = None, /, *, id: str | None = None) -> Post:
    """Return the post of a signal; the same id again is the same signal."""
    item = f"{approvals.SIGNAL}{ids.label(id, 'signal id') if id is not None else secrets.token_hex(8)}"
    name = ids.label(name, "signal name")
    return build.post(run=run_id, item=item, name=name, ask=Ask.SIGNAL, value=to_json_value(value))


async def say(store: Store, ask: Asking, post: Post, /) -> Run:
    """Return the run after a post, and wake whoever goes on with it; a refusal is raised."""
    try:
        run = await ask(post)
    except RequestClosed as error:
        raise await _by_the_journal(store, post, error) from None
    await store.wake("due")
    await store.wake("run:" + post.run)
    return run


async def _by_the_journal(store: Store, post: Post, error: RequestClosed) -> RequestClosed:
    """What is to be said about a request that the run has taken note of; only the journal knows what was decided."""
    found: tuple[int, Decision] | None = None
    async for at_ms, one in _consumed(store, post.run):
        found = (at_ms, one) if one.request == post.name else found
    if found is not None:
        message = f"request {post.name!r} of run {post.run} {_how(*found)}: see `tenure show {post.run} --events`"
        return RequestClosed(message, run=error.run, run_id=post.run)
    there = error.run.requests if error.run is not None else {}
    if isinstance(error, StaleDecision) and post.name in there:
        is_, was = (digest[:12] for digest in (there[post.name].digest, post.request))
        look = f"read it again (`tenure approvals show {post.run} {post.name}`) and decide on that"
        message = f"request {post.name!r} of run {post.run} shows other content now ({is_}, not {was}); {look}"
        return StaleDecision(message, run=error.run, run_id=post.run)
    return error if post.name in there else not_open(post.name, post.run, error.run)


def not_open(request: str, run_id: str, run: Run | None, /) -> RequestClosed:
    """Return the error for a request that is not there, with those that are."""
    names = list(run.requests) if run is not None else []
    asks = f"it asks {', '.join(names[:5])}{' and more' if len(names) > 5 else ''}; " if names else ""
    message = f"run {run_id} does not ask {request!r}; {asks}`tenure show {run_id}` has what it waits for"
    return RequestClosed(message, run=run, run_id=run_id)


async def nothing_asked(store: Store, run: Run, /) -> RequestClosed:
    """Return the error for a run that asks for no decision; it says what became of its last request, if it had one."""
    last: tuple[int, Decision] | None = None
    async for at_ms, one in _consumed(store, run.id):
        last = last if approvals.about(one.request)[0] == approvals.RESOLVE else (at_ms, one)
    before = f"; its last request {last[1].request!r} {_how(*last)}" if last is not None else ""
    message = f"run {run.id} does not ask anything{before}; `tenure approvals list` shows what is open"
    return RequestClosed(message, run=run)


def _how(at_ms: int, one: Decision) -> str:
    """How a request was decided that the run has taken note of, and when it did."""
    how = "approved" if one.approved else "rejected"
    why = f" ({printable(one.reason)[:200]})" if one.reason else ""
    first = f"was decided first, by {printable(one.by)[:200] or 'somebody'}: {how}{why}"
    what = "expired before anybody decided, which counts as rejected" if one.expired else first
    at = f"{datetime.fromtimestamp(at_ms // 1000, UTC):%Y-%m-%d %H:%M:%SZ}"
    return f"{what}; the run took note of it at {at} and that stands"


def told(content: Any) -> str:
    """Return one line about what is asked, for lists: the tool with its arguments, the question, the call in doubt."""
    if not isinstance(content, dict):
        return ""
    found = str(content.get("name", ""))
    what = content.get("arguments", content.get("question"))
    if what is not None:
        with suppress(InvalidContent):
            found += f"{'' if 'arguments' in content else ': '}{canonical.encode(what).decode()}"
    return f"how did {found} end?" if content.get("boundary") == "doubt" else found
