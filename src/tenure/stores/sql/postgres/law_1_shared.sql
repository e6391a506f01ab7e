-- Migration 2, law 1: what the functions of the law share. They restate core/rules.py in the same order; who changes
-- a rule makes a law 2 beside it, because workers of the version before go on calling theirs.

-- What the store knows in the deciding step. `patient` waits for a locked row, `test_us` is the clock of a test.
CREATE TYPE tenure.facts_1 AS (
    space integer,
    us bigint,
    ms bigint,
    epoch text,
    since_ms bigint,
    lossy boolean,
    max_ttl_ms bigint,
    floor bigint,
    patient boolean,
    test_us bigint
);

-- The store's time in microseconds. It is read after the run's row is locked: a statement's own time is that of its
-- begin, and a lease that ran out while it waited for the lock would be taken for live.
CREATE FUNCTION tenure.now_us_1(test_us bigint) RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT coalesce(test_us, (date_part('epoch', clock_timestamp()) * 1000000)::bigint)
$$;

-- What the store knows; `space` NULL if there is no such namespace, `us` NULL if the server is not the one that the
-- caller knows. p: space, native (the system's identifier), boot (when the server was started, in us), safe ('disk',
-- 'replicated' or ''), sync (what a commit waits for), patient, lock_ms, test_us.
CREATE FUNCTION tenure.look_1(p jsonb) RETURNS tenure.facts_1 LANGUAGE plpgsql AS $$
DECLARE
    f tenure.facts_1;
    found_epoch text;
    settings text;
BEGIN
    IF p ? 'lock_ms' THEN
        PERFORM set_config('lock_timeout', p ->> 'lock_ms', true);
    END IF;
    -- One statement, because each expression of a function is made ready once in every transaction. A promotion begins
    -- another timeline, which is the first part of the name of the file that is written now. A plan made while the table
    -- was small is kept until the next ANALYZE, so it must not look at every run; and none is made anew for the values
    -- of one call, which would cost more than the call.
    SELECT
        s.number, now.us, now.us / 1000, s.epoch, s.since_ms,
        NOT (p ->> 'safe' = 'replicated' OR (p ->> 'safe' = 'disk' AND NOT s.promoted)), s.max_ttl_ms, s.floor,
        p ? 'patient', (p ->> 'test_us')::bigint,
        (p ->> 'native') || '.' || left(pg_walfile_name(pg_current_wal_lsn()), 8) || '.' || s.salt,
        set_config('synchronous_commit', p ->> 'sync', true) || set_config('enable_seqscan', 'off', true)
        || set_config('plan_cache_mode', 'force_generic_plan', true)
    INTO
        f.space, f.us, f.ms, f.epoch, f.since_ms, f.lossy, f.max_ttl_ms, f.floor, f.patient, f.test_us, found_epoch,
        settings
    FROM tenure.space s
    LEFT JOIN LATERAL (SELECT tenure.now_us_1((p ->> 'test_us')::bigint) AS us) AS now
        ON (date_part('epoch', pg_postmaster_start_time()) * 1000000)::bigint = (p ->> 'boot')::bigint
    WHERE s.name = p ->> 'space';
    IF f.us IS NOT NULL AND f.epoch <> found_epoch THEN
        -- Another timeline, system or salt: acknowledged writes may be missing. A grace that still runs begins anew.
        UPDATE tenure.space s SET epoch = found_epoch, since_ms = f.ms, promoted = s.promoted OR s.epoch <> ''
        WHERE s.number = f.space AND s.epoch <> found_epoch;
        SELECT s.epoch, s.since_ms, NOT (p ->> 'safe' = 'replicated' OR (p ->> 'safe' = 'disk' AND NOT s.promoted))
        INTO f.epoch, f.since_ms, f.lossy FROM tenure.space s WHERE s.number = f.space;
    END IF;
    RETURN f;
END $$;

-- What the store knows, as JSON, after raising its longest ttl to `ttl_ms`.
CREATE FUNCTION tenure.know_1(p jsonb, ttl_ms bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    f tenure.facts_1 := tenure.look_1(p);
BEGIN
    IF f.us IS NOT NULL AND ttl_ms > f.max_ttl_ms THEN
        UPDATE tenure.space SET max_ttl_ms = greatest(max_ttl_ms, ttl_ms) WHERE number = f.space
        RETURNING max_ttl_ms INTO f.max_ttl_ms;
    END IF;
    RETURN row_to_json(f)::text;
END $$;

-- An answer as one line of JSON.
CREATE FUNCTION tenure.answer_1(verdict text, why text, us bigint, run tenure.run, item tenure.inbox) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT json_build_object(
        'verdict', verdict, 'why', why, 'us', us, 'run', row_to_json(run), 'item', row_to_json(item)
    )::text
$$;

CREATE FUNCTION tenure.refused_1(why text, f tenure.facts_1, run tenure.run) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT tenure.answer_1(CASE why WHEN 'history' THEN 'history' ELSE 'refused' END, why, f.us, run, NULL)
$$;

-- A request made again leaves a mark, so that waiting for standbys after it means something.
CREATE FUNCTION tenure.already_1(f tenure.facts_1, run tenure.run) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    UPDATE tenure.run r SET touch = r.touch + 1 WHERE r.space = run.space AND r.id = run.id
    RETURNING r.touch INTO run.touch;
    RETURN tenure.answer_1('already', '', f.us, run, NULL);
END $$;

CREATE FUNCTION tenure.status_why_1(status text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE
        WHEN status IN ('completed', 'failed', 'cancelled') THEN 'closed'
        WHEN status IN ('quarantined', 'suspended') THEN status
        ELSE 'status'
    END
$$;

-- Why a grant may not write, NULL if it may.
CREATE FUNCTION tenure.foreign_1(run tenure.run, c jsonb, f tenure.facts_1) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE
        WHEN run.token <> (c ->> 'token')::bigint OR run.nonce <> c ->> 'nonce' OR run.epoch <> c ->> 'epoch' THEN 'lost'
        WHEN run.epoch <> f.epoch THEN 'history'
        WHEN run.status <> 'running' THEN tenure.status_why_1(run.status)
        WHEN run.lease_until_ms <= f.ms THEN 'expired'
    END
$$;

-- Whether the parts of a record that are JSON can be read.
CREATE FUNCTION tenure.sound_1(run tenure.run) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN (run.requests = '' OR jsonb_typeof(run.requests::jsonb) = 'object')
        AND (run.wants = '' OR jsonb_typeof(run.wants::jsonb) = 'array')
        AND (run.tags = '' OR json_typeof(run.tags::json) = 'object')
        AND (run.outcome = '' OR json_typeof(run.outcome::json) = 'array')
        AND (run.grants = '' OR json_array_length(substring(run.grants FROM '[^\n]+$')::json) = 9);
EXCEPTION WHEN data_exception THEN
    RETURN false;
END $$;

-- The token after this one: ordered over restarts and failovers that lost writes, because it follows the clock.
CREATE FUNCTION tenure.later_1(token bigint, f tenure.facts_1) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT greatest(token + 1, f.us)
$$;

-- When the due index should name the run, NULL for not at all.
CREATE FUNCTION tenure.due_index_1(run tenure.run) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE
        WHEN left(run.id, 1) = '_' OR run.due_ms IS NULL THEN NULL
        WHEN run.status IN ('queued', 'suspended') THEN run.due_ms
        WHEN run.status = 'running' THEN greatest(run.due_ms, run.lease_until_ms)
    END
$$;

-- The parts of a line of the grant log, each still quoted as JSON quotes it: unquoted, U+0000 would be an error.
CREATE FUNCTION tenure.parts_1(line text) RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
    SELECT array(SELECT part::text FROM json_array_elements(line::json) AS part)
$$;

-- The grant log with its last line ended, or, if it had ended, with the reason added: evidence stays. `reason` and `by`
-- are quoted as JSON quotes them, and so are the parts of a line.
CREATE FUNCTION tenure.closed_1(run tenure.run, f tenure.facts_1, ended text, reason text, by text) RETURNS text
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    line text := substring(run.grants FROM '[^\n]+$');
    parts text[];
    added text;
BEGIN
    IF run.grants = '' THEN
        RETURN '';
    END IF;
    parts := tenure.parts_1(line);
    IF parts[6] = '""' THEN
        parts[5] := '"' || least(run.lease_until_ms, f.ms) || '"';
        parts[6] := '"' || ended || '"';
        parts[7] := '"' || run.step || '"';
        parts[8] := reason;
        parts[9] := by;
    ELSIF reason <> '""' OR by <> '""' THEN
        added := ended || ': ' || substring(reason FROM 2);
        parts[8] := CASE parts[8] WHEN '""' THEN '"' || added ELSE left(parts[8], -1) || '; ' || added END;
        parts[9] := CASE by WHEN '""' THEN parts[9] ELSE by END;
    END IF;
    RETURN left(run.grants, length(run.grants) - length(line)) || '[' || array_to_string(parts, ',') || ']';
END $$;

-- The run under a new grant. `owner` is escaped as JSON does it, like every name that people choose freely.
CREATE FUNCTION tenure.granted_1(run tenure.run, nonce text, owner text, ttl_ms bigint, f tenure.facts_1)
RETURNS tenure.run LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    lines text[] := string_to_array(run.grants, E'\n');
    ordinal bigint := 1;
BEGIN
    IF run.grants <> '' THEN
        ordinal := trim('"' FROM (tenure.parts_1(lines[cardinality(lines)]))[1])::bigint + 1;
    END IF;
    run.token := tenure.later_1(run.token, f);
    run.nonce := nonce;
    run.epoch := f.epoch;
    run.owner := owner;
    run.granted_ttl_ms := ttl_ms;
    run.lease_until_ms := f.ms + ttl_ms;
    lines := lines || format(
        '["%s","%s","%s","%s","0","","0","",""]', ordinal, run.token, owner, f.ms
    );
    run.grants := array_to_string(lines[greatest(1, cardinality(lines) - 31):], E'\n');
    RETURN run;
END $$;

-- The run without a grant.
CREATE FUNCTION tenure.ungranted_1(run tenure.run, f tenure.facts_1) RETURNS tenure.run LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    run.token := tenure.later_1(run.token, f);
    run.nonce := '';
    run.owner := '';
    run.lease_until_ms := least(run.lease_until_ms, f.ms);
    RETURN run;
END $$;

-- Write a record after a change other than a plain commit, with its place in the due index; returns the answer. since_ms:
-- when it was changed before, from a change that leaves the run to wait as it does; it is not set back then.
CREATE FUNCTION tenure.landed_1(f tenure.facts_1, run tenure.run, since_ms bigint DEFAULT 0) RETURNS text
LANGUAGE plpgsql AS $$
BEGIN
    run.version := run.version + 1;
    run.updated_ms := greatest(since_ms, f.ms);
    run.entry_ms := tenure.due_index_1(run);
    UPDATE tenure.run r SET
        code_version = run.code_version, status = run.status, version = run.version, attempt = run.attempt,
        crashes = run.crashes, failures = run.failures, token = run.token, nonce = run.nonce, epoch = run.epoch,
        owner = run.owner, granted_ttl_ms = run.granted_ttl_ms, lease_until_ms = run.lease_until_ms, step = run.step,
        last_seq = run.last_seq, head = run.head, base_seq = run.base_seq, inbox_seq = run.inbox_seq,
        requests = run.requests, wants = run.wants, cancel_by_ms = run.cancel_by_ms, due_ms = run.due_ms,
        tags = run.tags, outcome = run.outcome, updated_ms = run.updated_ms, grants = run.grants,
        entry_ms = run.entry_ms
    WHERE r.space = run.space AND r.id = run.id;
    RETURN tenure.answer_1('landed', '', f.us, run, NULL);
END $$;
