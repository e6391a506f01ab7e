"""Store time of the SQLite store: bound to the boot, never back, whatever the wall clock does."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from stores.changes import claim, grant_of, step
from stores.test_sqlite_file import at, held, query
from tenure.clock import SystemClock
from tenure.core.run import Renew, Verdict, Why
from tenure.errors import StoreUnsafe
from tenure.stores._sqlite_host import Host, this_host
from tenure.stores.sqlite import SqliteStore

HOUR_MS = 3_600_000


@dataclass
class Hands(SystemClock):
    """A wall clock and a boot clock that are set apart from each other."""

    wall_ms: int = 1_700_000_000_000
    boot_ms: int = 5_000

    def now_ms(self) -> int:
        return self.wall_ms

    def boot_ns(self) -> int:
        return self.boot_ms * 1_000_000


def on(path: Path, boot: str, clock: Hands) -> SqliteStore:
    return at(path, clock=clock, host=Host(boot=boot, mounts=""))


async def test_another_boot_frees_every_lease_at_once_and_the_old_grant_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    clock = Hands()
    async with on(path, "boot-1", clock) as store:
        run = await held(store, ttl_ms=30_000)
        assert (await store.commit(claim("a"))).why is Why.HELD
    clock = Hands(wall_ms=clock.wall_ms + 2_000, boot_ms=10)
    async with on(path, "boot-2", clock) as store:
        assert (await store.commit(step(run))).verdict is Verdict.HISTORY
        assert (await store.commit(Renew(grant=grant_of(run)))).verdict is Verdict.HISTORY
        taken = await store.commit(claim("a"))
        assert taken.verdict is Verdict.LANDED
        assert taken.run is not None
        assert taken.run.token > run.token
        assert taken.run.epoch.startswith("boot-2.")
        assert (await store.commit(step(run))).why is Why.LOST


async def test_i02_store_time_and_tokens_do_not_go_back_when_the_wall_clock_was_set_back_over_a_reboot(
    tmp_path: Path,
) -> None:
    path = tmp_path / "t.db"
    clock = Hands()
    async with on(path, "boot-1", clock) as store:
        run = await held(store, ttl_ms=30_000)
        clock.boot_ms += HOUR_MS
        latest = (await store.commit(claim("a"))).now_us
    clock = Hands(wall_ms=clock.wall_ms - 24 * HOUR_MS, boot_ms=1)
    async with on(path, "boot-2", clock) as store:
        facts = await store.facts()
        assert latest <= facts.now_us <= latest + 2_000_000
        again = await held(store, "b", ttl_ms=30_000)
        assert again.token > run.token
        assert again.created_ms >= latest // 1000
        # And it does not stand still until the wall has caught up, or no lease would ever end.
        clock.boot_ms += 31_000
        assert (await store.commit(claim("b"))).verdict is Verdict.LANDED


async def test_store_time_follows_the_wall_over_a_reboot_and_goes_on_from_there(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    async with on(path, "boot-1", Hands()) as store:
        await held(store, ttl_ms=30_000)
    clock = Hands(wall_ms=Hands().wall_ms + HOUR_MS, boot_ms=77)
    async with on(path, "boot-2", clock) as store:
        assert (await store.facts()).now_ms == clock.wall_ms
        clock.boot_ms += 500
        assert (await store.facts()).now_ms == clock.wall_ms + 500


@pytest.mark.parametrize("jump_ms", [HOUR_MS, -HOUR_MS])
async def test_a_wall_clock_that_is_set_moves_no_lease_neither_here_nor_in_a_store_opened_later(
    tmp_path: Path, jump_ms: int
) -> None:
    path = tmp_path / "t.db"
    clock = Hands()
    async with on(path, "boot-1", clock) as store:
        run = await held(store, ttl_ms=30_000)
        clock.wall_ms += jump_ms
        clock.boot_ms += 29_000
        async with on(path, "boot-1", clock) as later:
            for each in (store, later):
                refused = await each.commit(claim("a"))
                assert (refused.why, refused.now_us) == (Why.HELD, run.lease_until_ms * 1000 - 1_000_000)
            clock.boot_ms += 1_000
            assert (await later.commit(claim("a"))).verdict is Verdict.LANDED


async def test_a_file_bound_to_another_boot_while_it_is_open_stops_this_process(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    async with on(path, "here", Hands()) as store:
        run = await held(store, ttl_ms=30_000)
        async with on(path, "elsewhere", Hands()):
            with pytest.raises(StoreUnsafe, match="another machine or sandbox"):
                await store.commit(step(run))
            with pytest.raises(StoreUnsafe, match="another machine or sandbox"):
                await store.facts()


async def test_without_a_boot_id_leases_end_by_time_only_and_time_does_not_go_back(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    clock = Hands()
    async with on(path, "", clock) as store:
        run = await held(store, ttl_ms=30_000)
        assert (await store.facts()).boot == ""
    # A reboot that nobody can tell from a restart: time since boot begins anew.
    clock = Hands(wall_ms=clock.wall_ms + 3_000, boot_ms=1)
    async with on(path, "", clock) as store:
        assert (await store.facts()).now_ms >= clock.wall_ms
        assert (await store.commit(claim("a"))).why is Why.HELD
        assert (await store.commit(step(run))).verdict is Verdict.LANDED
        clock.boot_ms += 31_000
        assert (await store.commit(claim("a"))).verdict is Verdict.LANDED


async def test_i10_a_new_salt_is_a_new_history_for_every_grant(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    async with on(path, "boot-1", Hands()) as store:
        run = await held(store, ttl_ms=30_000)
        query(path, "UPDATE file SET salt = 'other'")
        assert (await store.commit(step(run))).verdict is Verdict.HISTORY
        # The same boot: the holder may be alive, so its lease is not free.
        assert (await store.commit(claim("a"))).why is Why.HELD


async def test_on_this_machine_the_epoch_is_its_boot_and_the_files_salt(tmp_path: Path) -> None:
    async with at(tmp_path / "t.db") as one, at(tmp_path / "t.db", namespace="two") as two:
        facts = await one.facts()
        assert facts.epoch == (await two.facts()).epoch
        assert facts.epoch.startswith(facts.boot)
        assert facts.boot == f"{this_host().boot}."
        assert not facts.lossy
        assert abs(facts.now_ms - SystemClock().now_ms()) < 60_000


async def test_the_ceiling_costs_one_write_a_second_not_one_a_change(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    clock = Hands()
    async with on(path, "boot-1", clock) as store:
        await held(store, ttl_ms=30_000)
        ceilings = set()
        for _ in range(40):
            clock.boot_ms += 50
            await store.commit(claim("a"))
            ceilings.add(query(path, "SELECT ceiling_us FROM file")[0])
        assert 2 <= len(ceilings) <= 4
        now_us = (await store.facts()).now_us
        assert max(ceilings)[0] >= now_us
