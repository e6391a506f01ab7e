"""The planted faults: mistakes that people make in such code, each with the tests that must notice it."""

from dataclasses import replace

from faults.planting import MEMORY, POSTGRES, SQLITE, VALKEY, Fault
from faults.working import WORKING

RULES = "core/rules.py"
HEAD, LUA_LAW, COMMIT, CLAIM, REST = (f"stores/lua/{name}.lua" for name in ("head", "law", "commit", "claim", "rest"))
PG_SHARED, PG_COMMIT, PG_CLAIM, PG_REST, PG_CHANGE, PG_STEP = (
    f"stores/sql/postgres/law_1_{name}.sql" for name in ("shared", "commit", "claim", "rest", "change", "step")
)
CHANGE_SQL, FILE_SQL = "stores/sql/sqlite/change.sql", "stores/sql/sqlite/file.sql"

FENCE = "test_i01_only_the_recorded_grant_writes"
HISTORY = "test_i10_a_changed_history_stops"
MILLISECOND = "test_i01_a_lease_is_dead_in_the_very_millisecond"
NEXT = "test_i06_only_the_next_commit_lands"
UNREAD = "test_i15_a_suspension_that_has_not_read_everything"
FORFEIT = "test_i22_a_forfeited_run_stays_running"
DELETED = "test_i02_a_deleted_run_is_gone"
AGAIN = "test_i07_the_same_commit_again"
CRASHES = "test_i22_only_a_takeover_with_blame_counts"
FIRST_RULE = "test_claims_are_refused_by_the_first_rule"
WHOLE = "test_i08_a_commit_lands_whole"
INDEX = "test_i12_every_run_that_may_be_started"
WANTED = "test_i15_what_is_wanted_wakes"
THIRD = "test_i22_the_third_takeover"
HANDED_BACK = "test_i11_a_run_that_is_handed_back"
BOUND = "test_i15_a_decision_is_bound"
PLAIN = "test_i01_i06_the_plain_step_is_fenced"
STEPS = "test_i01_i07_steps_of_many_runs"

_law = Fault(name="", file=RULES, old="", new="", by=MEMORY, caught="")
_sql = replace(_law, file=CHANGE_SQL, by=SQLITE)
_pg = replace(_law, file=PG_CHANGE, by=POSTGRES)
_lua = replace(_law, file=LUA_LAW, by=VALKEY)

_HOLDS = "return (run.token, run.nonce, run.epoch) == (grant.token, grant.nonce, grant.epoch)"

LAW = [
    replace(_law, name="token not compared", old=_HOLDS, caught=FENCE,
            new="return (run.nonce, run.epoch) == (grant.nonce, grant.epoch)"),
    replace(_law, name="nonce not compared", old=_HOLDS, caught=FENCE,
            new="return (run.token, run.epoch) == (grant.token, grant.epoch)"),
    replace(_law, name="epoch of the grant not compared", old=_HOLDS, caught=FENCE,
            new="return (run.token, run.nonce) == (grant.token, grant.nonce)"),
    replace(_law, name="epoch of the store not compared", by=SQLITE, caught=HISTORY,
            old="    if run.epoch != facts.epoch:\n        return Why.HISTORY\n", new=""),
    replace(_law, name="lease lives one millisecond longer", caught=MILLISECOND,
            old="return run.lease_until_ms > facts.now_ms", new="return run.lease_until_ms >= facts.now_ms"),
    replace(_law, name="attempt always bumped", caught=HANDED_BACK,
            old="attempt=run.attempt + _running(run)", new="attempt=run.attempt + 1"),
    replace(_law, name="step guard dropped", caught=NEXT,
            old="if (change.row.seq - 1, change.prev) != (run.last_seq, run.head):", new="if change.row.seq < 1:"),
    replace(_law, name="predecessor's digest not compared", caught=NEXT,
            old="if (change.row.seq - 1, change.prev) != (run.last_seq, run.head):",
            new="if change.row.seq - 1 != run.last_seq:"),
    replace(_law, name="inbox guard dropped", caught=UNREAD,
            old="if change.inbox_seq is not None and change.inbox_seq != run.inbox_seq:", new="if not run.id:"),
    replace(_law, name="forfeit queues", caught=FORFEIT,
            old="run = replace(run, due_ms=now_ms + back_off_ms(run.crashes))",
            new="run = replace(run, status=Status.QUEUED, due_ms=now_ms + back_off_ms(run.crashes))"),
    replace(_law, name="already judged after liveness", caught="test_i07_already_is_judged_before_liveness",
            old="    if already(change, found, facts):\n",
            new="    if already(change, found, facts) and (found.run is None or live(found.run, facts)):\n"),
    replace(_law, name="already leaves no mark", caught=AGAIN,
            old="touch=found.run.touch + 1", new="touch=found.run.touch"),
    replace(_law, name="crash counter not reset", caught=CRASHES,
            old="crashes=0 if change.step else run.crashes", new="crashes=run.crashes"),
    replace(_law, name="one death too many", caught=THIRD,
            old="crashes >= change.max_crashes", new="crashes > change.max_crashes"),
    replace(_law, name="longest ttl ignored", caught=FIRST_RULE,
            old="if facts.max_ttl_ms and change.ttl_ms > facts.max_ttl_ms:", new="if change.ttl_ms < 0:"),
    replace(_law, name="creation time overwritten", caught=WHOLE,
            old="        last_seq=change.row.seq,\n        head=change.row.digest,\n        base_seq",
            new="        last_seq=change.row.seq,\n        created_ms=now_ms,\n        head=change.row.digest,\n"
                "        base_seq"),
    replace(_law, name="token seen not compared by a claim", caught="test_i03_a_late_claim_makes_no_grant",
            old="if change.token is not None and change.token != run.token:", new="if change.ttl_ms < 0:"),
    replace(_law, name="dead claim granted again", caught="test_i07_a_claim_whose_grant_is_dead",
            old="    if run.nonce == change.nonce:\n", new="    if run.nonce == change.nonce != run.nonce:\n"),
    replace(_law, name="tokens count from one", caught="test_i02_a_claim_gives_a_grant",
            old="return max(token + 1, facts.now_us)", new="return token + 1"),
    replace(_law, name="wanted signal does not wake", caught=WANTED,
            old="(change.ask is Ask.CANCEL or change.name in run.wants)", new="change.ask is Ask.CANCEL"),
    replace(_law, name="decision not bound to what was shown", caught=BOUND,
            old="return None if request.digest == change.request else Why.STALE", new="return None"),
    replace(_law, name="stale entry in the index", file="stores/_index.py", caught=INDEX,
            old="not (isinstance(change, Commit) and run.status is before.status)",
            new="not isinstance(change, Commit)"),
    replace(_law, name="import below the floor", caught="test_i02_tokens_rise_through_an_import",
            old="later(max(run.token, facts.floor), facts)", new="run.token"),
    replace(_law, name="import counts as a takeover", caught="test_i04_an_import_drops_the_grant",
            old="status=Status.QUEUED, due_ms=facts.now_ms, updated_ms",
            new="due_ms=facts.now_ms, updated_ms"),
    replace(_law, name="deletion forgets the token", file="stores/memory.py", caught=DELETED,
            old="space.floor = max(space.floor, shelf.run.token)", new="shelf.rows.clear()"),
]  # fmt: skip

SQL = [
    replace(_sql, name="deletion forgets the token (SQL)", file=FILE_SQL, caught=DELETED,
            old="UPDATE space SET floor = max(floor, ?)", new="UPDATE space SET floor = max(floor, 0 * ?)"),
    replace(_sql, name="entry stays (SQL)", caught=INDEX,
            old="token = ?, priority = ?, entry_ms = ?",
            new="token = ?, priority = ?, entry_ms = coalesce(entry_ms, ?)"),
    replace(_sql, name="last event of a commit dropped (SQL)", caught=WHOLE,
            old="INSERT INTO journal (key, data) VALUES (?, ?)",
            new="INSERT INTO journal (key, data) VALUES (?, CAST(substr(?, 1, 200) AS BLOB))"),
    replace(_sql, name="consumed item kept (SQL)", caught="test_i15_a_consumed_item",
            old="UPDATE inbox SET data = ? WHERE run = ?",
            new="UPDATE inbox SET data = coalesce(data, ?) WHERE run = ?"),
    replace(_sql, name="decided by a record that was remembered", file="stores/_sqlite_record.py",
            caught="test_i18_a_takeover_through_another_handle",
            old="if kept is not None and kept[0] == data:", new="if kept is not None:"),
]  # fmt: skip

LUA = [
    replace(_lua, name="token not compared (Lua)", caught=FENCE,
            old="return run.token == token and run.nonce == nonce", new="return run.nonce == nonce"),
    replace(_lua, name="token not compared at a glance (Lua)", file=COMMIT, caught=PLAIN,
            old="got[2] == ARGV[5] and got[3]", new="got[3]"),
    replace(_lua, name="token not compared at a glance by a renewal (Lua)", file="stores/lua/renew.lua", caught=FENCE,
            old="and got[2] == A[at] and", new="and"),
    replace(_lua, name="lease not looked at at a glance (Lua)", file=COMMIT, caught=PLAIN,
            old="and tonumber(got[9]) > ms", new="and tonumber(got[9]) >= ms"),
    replace(_lua, name="nonce not compared (Lua)", caught=FENCE,
            old="return run.token == token and run.nonce == nonce", new="return run.token == token"),
    replace(_lua, name="epoch of the store not compared (Lua)", caught=HISTORY,
            old="  if run.epoch ~= f.epoch then return 'history' end\n", new=""),
    replace(_lua, name="lease lives one millisecond longer (Lua)", caught=MILLISECOND,
            old="return tonumber(run.lease_until_ms) > f.ms", new="return tonumber(run.lease_until_ms) >= f.ms"),
    replace(_lua, name="numbers printed as Lua does", file=HEAD, caught="test_i02_a_claim_gives_a_grant",
            old="return format('%.0f', number)", new="return tostring(number)"),
    replace(_lua, name="already leaves no mark (Lua)", caught=AGAIN,
            old="local touch = text(run.touch + 1)", new="local touch = run.touch"),
    replace(_lua, name="creation time overwritten (Lua)", caught=WHOLE,
            old="  after.updated_ms = text(f.ms)\n",
            new="  after.updated_ms = text(f.ms)\n  after.created_ms = text(f.ms)\n"),
    replace(_lua, name="stale entry in the index (Lua)", caught=INDEX,
            old="if old ~= new or not at then call('ZREM', due_key, old) end",
            new="if old ~= new then call('ZREM', due_key, old) end"),
    replace(_lua, name="large payload keeps its expiry", caught="test_nothing_of_a_live_run_expires",
            old="call('PERSIST', KEYS[at + 1])", new="call('EXISTS', KEYS[at + 1])"),
    replace(_lua, name="step guard dropped (Lua)", file=COMMIT, caught=NEXT,
            old="(text(seq - 1) ~= run.last_seq or ARGV[13] ~= run.head)", new="seq < 1"),
    replace(_lua, name="inbox guard dropped (Lua)", file=COMMIT, caught=UNREAD,
            old="rest.inbox_seq ~= run.inbox_seq then", new="run.id == '' then"),
    replace(_lua, name="crash counter not reset (Lua)", file=COMMIT, caught=CRASHES,
            old="text(run.step + ARGV[14]), '0'", new="text(run.step + ARGV[14]), run.crashes"),
    replace(_lua, name="attempt always bumped (Lua)", file=CLAIM, caught=HANDED_BACK,
            old="text(run.attempt + (running and 1 or 0))", new="text(run.attempt + 1)"),
    replace(_lua, name="longest ttl ignored (Lua)", file=CLAIM, caught=FIRST_RULE,
            old="if f.max_ttl_ms ~= 0 and", new="if f.max_ttl_ms < 0 and"),
    replace(_lua, name="forfeit queues (Lua)", file=REST, caught=FORFEIT,
            old="if how == 'forfeit' then after.due_ms",
            new="if how == 'forfeit' then after.status = 'queued' after.due_ms"),
    replace(_lua, name="imported journal keeps its expiry", file="stores/lua/import.lua",
            caught="test_nothing_of_a_run_that_was_imported_expires", old="call('PERSIST', name)",
            new="call('EXISTS', name)"),
    replace(_lua, name="import of half a journal", file="stores/lua/import.lua",
            caught="test_an_import_waits_for_all_its_parts",
            old="text(read('LLEN', KEYS[11]) or -1) == ARGV[8]", new="true"),
    replace(_lua, name="deletion forgets the token (Lua)", file="stores/lua/delete.lua", caught=DELETED,
            old="text(max(f.floor, run.token))", new="f.floor"),
]  # fmt: skip

_PG_HOLDS = """WHEN run.token <> (c ->> 'token')::bigint OR run.nonce <> c ->> 'nonce' OR"""
_PG_CRASHES = "c ->> 'step' WHEN '0' THEN x.crashes ELSE 0 END"

PLPGSQL = [
    replace(_pg, name="token not compared (PostgreSQL)", file=PG_SHARED, old=_PG_HOLDS, caught=PLAIN,
            new="WHEN run.nonce <> c ->> 'nonce' OR"),
    replace(_pg, name="nonce not compared (PostgreSQL)", file=PG_SHARED, old=_PG_HOLDS, caught=PLAIN,
            new="WHEN run.token <> (c ->> 'token')::bigint OR"),
    replace(_pg, name="epoch of the store not compared (PostgreSQL)", file=PG_SHARED, caught=HISTORY,
            old="WHEN run.epoch <> f.epoch THEN 'history'", new="WHEN run.epoch = '' THEN 'history'"),
    replace(_pg, name="lease lives one millisecond longer (PostgreSQL)", file=PG_SHARED, caught=PLAIN,
            old="WHEN run.lease_until_ms <= f.ms THEN", new="WHEN run.lease_until_ms < f.ms THEN"),
    replace(_pg, name="step guard dropped (PostgreSQL)", file=PG_COMMIT, caught=PLAIN,
            old="WHEN (c #>> '{row,seq}')::bigint - 1 <> run.last_seq OR c ->> 'prev' <> run.head THEN 'sequence'",
            new="WHEN run.last_seq < 0 THEN 'sequence'"),
    replace(_pg, name="the law not asked about a step (PostgreSQL)", file=PG_STEP, caught=PLAIN,
            old="AND tenure.uncommittable_1(f, x, c) IS NULL", new=""),
    replace(_pg, name="the law not asked about steps (PostgreSQL)", caught=STEPS,
            old="AND tenure.uncommittable_1(f, x, s.c) IS NULL", new=""),
    replace(_pg, name="crash counter not reset (PostgreSQL)", file=PG_STEP, caught=CRASHES,
            old=f"CASE {_PG_CRASHES}", new="x.crashes"),
    replace(_pg, name="crash counter not reset by many (PostgreSQL)", caught=STEPS,
            old=f"CASE s.{_PG_CRASHES}", new="x.crashes"),
    replace(_pg, name="a renewal of another grant lands (PostgreSQL)", file=PG_CLAIM, caught=FENCE,
            old="r.token = g.token AND r.nonce = g.nonce AND r.epoch = g", new="r.epoch = g"),
    replace(_pg, name="inbox guard dropped (PostgreSQL)", file=PG_COMMIT, caught=UNREAD,
            old="WHEN (c ->> 'inbox_seq')::bigint <> run.inbox_seq THEN 'inbox'",
            new="WHEN (c ->> 'inbox_seq')::bigint < 0 THEN 'inbox'"),
    replace(_pg, name="already leaves no mark (PostgreSQL)", file=PG_SHARED, caught=AGAIN,
            old="SET touch = r.touch + 1", new="SET touch = r.touch"),
    replace(_pg, name="tokens count from one (PostgreSQL)", file=PG_SHARED, caught="test_i02_a_claim_gives_a_grant",
            old="SELECT greatest(token + 1, f.us)", new="SELECT token + 1"),
    replace(_pg, name="forfeit queues (PostgreSQL)", file=PG_REST, caught=FORFEIT,
            old="CASE how WHEN 'yield' THEN 'queued' ELSE run.status END",
            new="CASE WHEN how IN ('yield', 'forfeit') THEN 'queued' ELSE run.status END"),
    replace(_pg, name="deletion forgets the token (PostgreSQL)", file=PG_REST, caught=DELETED,
            old="greatest(s.floor, run.token) WHERE s.number = f.space;\n    RETURN tenure.answer_1('landed'",
            new="s.floor WHERE s.number = f.space;\n    RETURN tenure.answer_1('landed'"),
]  # fmt: skip

FAULTS = [*LAW, *SQL, *PLPGSQL, *LUA, *WORKING]
