"""Never run, only checked: input and result types flow from the handler through submit to the result."""

from datetime import date
from typing import Any, assert_type

from tenure import ActiveRun, App, Handle, Kind, Ledger, Retry
from tenure.active import Effect

app = App(version="1")


@app.kind("count", retries=2, timeout=5)
async def count(run: ActiveRun[list[int]], input: list[int]) -> int:
    """Async handler."""
    assert_type(run.input, list[int])
    one = await run.step("one", len, input)
    assert_type(one, int)

    async def fetch(day: date, deep: bool) -> dict[str, int]:
        return {day.isoformat(): int(deep)}

    found = await run.step("fetch", fetch, date(2024, 1, 1), True, retry=Retry(attempts=3), timeout=3)
    assert_type(found, dict[str, int])
    wrong: Effect = "sometimes"  # type: ignore[assignment]
    await run.step("fetch", fetch, date(2024, 1, 1), True, effect=wrong)
    child = await run.submit("child", shout, "x")
    assert_type(child, Handle[str])
    await run.submit("child", shout, 3)  # type: ignore[misc]
    assert_type(await child.result(), str)
    return one


@app.kind("shout")
def shout(run: ActiveRun[str], input: str) -> str:
    """Plain handler."""
    return input.upper()


class Clerk:
    """An agent, as far as an app cares."""

    name = "clerk"

    async def drive(self, active: ActiveRun[str], /) -> date:
        """Answer."""
        return date.fromisoformat(active.input)


clerk = app.agent(Clerk())

assert_type(count, Kind[list[int], int])
assert_type(shout, Kind[str, str])
assert_type(clerk, Kind[str, date])


async def use(ledger: Ledger) -> None:
    """Submit each of them."""
    assert_type(await ledger.submit(count, [1]), Handle[int])
    assert_type(await (await ledger.submit(shout, "x")).result(timeout=3), str)
    assert_type(await (await ledger.submit(clerk, "x")).result(), date)
    assert_type(await ledger.submit("count", [1]), Handle[Any])
    assert_type(ledger.handle("id", count), Handle[int])
    await ledger.submit(count, ["x"])  # type: ignore[misc]
    await ledger.submit(shout, 3)  # type: ignore[misc]
