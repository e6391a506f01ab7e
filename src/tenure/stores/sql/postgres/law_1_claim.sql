-- Migration 2, law 1: claim, reattach and renew, the changes that give or keep a lease.

-- Why a claim does not land, NULL if it does. `crashes` is the count after it.
CREATE FUNCTION tenure.unclaimable_1(f tenure.facts_1, run tenure.run, c jsonb, crashes bigint) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT CASE
        WHEN run.nonce = c ->> 'nonce'
            THEN CASE WHEN run.lease_until_ms > f.ms AND run.epoch <> f.epoch THEN 'history' ELSE 'lost' END
        WHEN f.max_ttl_ms <> 0 AND (c ->> 'ttl_ms')::bigint > f.max_ttl_ms THEN 'ttl'
        WHEN run.status NOT IN ('queued', 'running', 'suspended') THEN tenure.status_why_1(run.status)
        WHEN run.status = 'running' AND run.lease_until_ms > f.ms THEN 'held'
        WHEN run.due_ms IS NULL OR run.due_ms > f.ms
            THEN CASE run.status WHEN 'suspended' THEN 'suspended' ELSE 'not_due' END
        WHEN (c ->> 'token')::bigint <> run.token THEN 'moved'
        WHEN run.epoch <> f.epoch AND f.lossy AND f.ms < f.since_ms + f.max_ttl_ms THEN 'grace'
        WHEN NOT coalesce(c -> 'kinds' ? run.kind, true)
            OR NOT coalesce(c -> 'code_versions' ? run.code_version, true)
            OR run.schema > (c ->> 'schema')::bigint THEN 'declined'
        WHEN NOT c ? 'alone' AND crashes > 0 THEN 'crowded'
    END
$$;

-- c: id, nonce, owner, ttl_ms, token (as found, or absent), kinds, code_versions (arrays, or absent for any),
-- code_version, schema, alone, blame (present for true), max_crashes.
CREATE FUNCTION tenure.claim_1(f tenure.facts_1, run tenure.run, c jsonb) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    why text;
    running boolean := run.status = 'running';
    blamed boolean := running AND c ? 'blame' AND run.epoch = f.epoch;
    crashes bigint := run.crashes + blamed::integer;
    max_crashes bigint := (c ->> 'max_crashes')::bigint;
BEGIN
    IF run.id IS NULL THEN
        RETURN tenure.refused_1('absent', f, NULL);
    END IF;
    IF NOT tenure.sound_1(run) THEN
        -- Out of the index, or every look would find it and it would crowd out runs that can be read.
        UPDATE tenure.run r SET entry_ms = NULL WHERE r.space = run.space AND r.id = run.id;
        RETURN tenure.refused_1('corrupt', f, NULL);
    END IF;
    IF run.nonce = c ->> 'nonce' AND run.epoch = f.epoch AND run.lease_until_ms > f.ms AND running THEN
        RETURN tenure.already_1(f, run);
    END IF;
    why := tenure.unclaimable_1(f, run, c, crashes);
    IF why = 'held' THEN
        -- The entry was early, because renewals do not move it; now it is moved, or every look would find it again.
        UPDATE tenure.run r SET entry_ms = tenure.due_index_1(run) WHERE r.space = run.space AND r.id = run.id;
    END IF;
    IF why IS NOT NULL THEN
        RETURN tenure.refused_1(why, f, run);
    END IF;
    run.grants := tenure.closed_1(run, f, 'expired', '""', '""');
    run.wants := '';
    run.crashes := crashes;
    IF blamed AND max_crashes > 0 AND crashes >= max_crashes THEN
        run.status := 'quarantined';
        run.due_ms := NULL;
        RETURN tenure.landed_1(f, tenure.ungranted_1(run, f));
    END IF;
    run.status := 'running';
    run.attempt := run.attempt + running::integer;
    run.code_version := CASE c ->> 'code_version' WHEN '' THEN run.code_version ELSE c ->> 'code_version' END;
    RETURN tenure.landed_1(f, tenure.granted_1(run, c ->> 'nonce', c ->> 'owner', (c ->> 'ttl_ms')::bigint, f));
END $$;

-- c: id, token, nonce, epoch, ttl_ms, new_nonce, seq, head, flying ('' for none).
CREATE FUNCTION tenure.reattach_1(f tenure.facts_1, run tenure.run, c jsonb) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    why text;
    seq bigint := (c ->> 'seq')::bigint;
BEGIN
    IF run.id IS NULL THEN
        RETURN tenure.refused_1('history_lost', f, NULL);
    END IF;
    IF run.nonce = c ->> 'new_nonce' AND run.epoch = f.epoch AND run.lease_until_ms > f.ms AND run.status = 'running' THEN
        RETURN tenure.already_1(f, run);
    END IF;
    why := CASE
        WHEN run.token <> (c ->> 'token')::bigint OR run.nonce <> c ->> 'nonce' OR run.epoch <> c ->> 'epoch'
            THEN CASE WHEN run.token < (c ->> 'token')::bigint THEN 'history_lost' ELSE 'lost' END
        WHEN run.status <> 'running' THEN tenure.status_why_1(run.status)
        WHEN run.lease_until_ms <= f.ms THEN 'expired'
        WHEN (run.last_seq = seq AND run.head = c ->> 'head')
            OR (c ->> 'flying' <> '' AND run.last_seq = seq + 1 AND run.head = c ->> 'flying') THEN NULL
        ELSE 'history_lost'
    END;
    IF why IS NULL AND NOT tenure.sound_1(run) THEN
        why := 'corrupt';
    END IF;
    IF why IS NOT NULL THEN
        RETURN tenure.refused_1(why, f, run);
    END IF;
    run.grants := tenure.closed_1(run, f, 'reattached', '""', '""');
    RETURN tenure.landed_1(f, tenure.granted_1(run, c ->> 'new_nonce', run.owner, (c ->> 'ttl_ms')::bigint, f));
END $$;

-- What a renewal that did not move its row is told: 'busy' where the row is somebody else's for now, or was when it was
-- looked for; 'landed' where the same grant was named twice, and moved the row at its other place.
CREATE FUNCTION tenure.unrenewed_1(f tenure.facts_1, g jsonb, ours boolean) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    run tenure.run;
    why text;
BEGIN
    SELECT * INTO run FROM tenure.run r WHERE r.space = f.space AND r.id = g ->> 'id';
    IF NOT FOUND THEN
        RETURN tenure.refused_1('absent', f, NULL);
    END IF;
    why := tenure.foreign_1(run, g, f);
    RETURN CASE WHEN NOT ours THEN 'busy' WHEN why IS NULL THEN 'landed ' || f.us ELSE tenure.refused_1(why, f, run) END;
END $$;

-- Extend the live leases of many runs to now + ttl. p: as look_1, and grants: id, token, nonce, epoch, ttl_ms of each. A
-- row that somebody else has locked is not waited for: one tool's open transaction must not stop the heartbeat of a whole
-- worker. All rows are locked, then the clock is read, then those are renewed whose leases are theirs and live.
-- Returns 'again ..', 'all <us>' if all landed, or a line for each grant in order: 'landed <us>', 'busy', or an answer.
CREATE FUNCTION tenure.renew_1(p jsonb) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    f tenure.facts_1 := tenure.look_1(p);
    grants jsonb := p -> 'grants';
    locked bigint[];
    places bigint[];
    rows tid[];
    ttls_ms bigint[];
    landed bigint[];
BEGIN
    IF f.us IS NULL THEN
        RETURN CASE WHEN f.space IS NULL THEN 'again space' ELSE 'again boot' END;
    END IF;
    -- OFFSET 0 keeps each look one by the key: joined in another way, a plan may look at every run instead.
    SELECT
        array_agg(g.place), array_agg(g.place) FILTER (WHERE fits), array_agg(r.row) FILTER (WHERE fits),
        array_agg(g.ttl_ms) FILTER (WHERE fits)
    INTO locked, places, rows, ttls_ms
    FROM ROWS FROM (
        jsonb_to_recordset(grants) AS (id text, token bigint, nonce text, epoch text, ttl_ms bigint)
    ) WITH ORDINALITY AS g (id, token, nonce, epoch, ttl_ms, place)
    CROSS JOIN LATERAL (
        SELECT x.ctid AS row, x.token, x.nonce, x.epoch, x.status
        FROM tenure.run x WHERE x.space = f.space AND x.id = g.id FOR UPDATE SKIP LOCKED OFFSET 0
    ) AS r
    CROSS JOIN LATERAL (
        SELECT r.token = g.token AND r.nonce = g.nonce AND r.epoch = g.epoch AND r.epoch = f.epoch
            AND r.status = 'running' AS fits
    ) AS judged;
    f.us := tenure.now_us_1(f.test_us);
    f.ms := f.us / 1000;
    WITH renewed AS (
        UPDATE tenure.run x SET lease_until_ms = f.ms + g.ttl_ms
        FROM unnest(places, rows, ttls_ms) AS g (place, row, ttl_ms)
        WHERE x.ctid = g.row AND x.lease_until_ms > f.ms
        RETURNING g.place
    )
    SELECT array_agg(place) INTO landed FROM renewed;
    IF cardinality(landed) = jsonb_array_length(grants) THEN
        RETURN 'all ' || f.us;
    END IF;
    RETURN (
        SELECT string_agg(
            CASE WHEN place = ANY (landed) THEN 'landed ' || f.us
            ELSE tenure.unrenewed_1(f, g, coalesce(place = ANY (locked), false)) END,
            E'\n' ORDER BY place
        )
        FROM jsonb_array_elements(grants) WITH ORDINALITY AS g (g, place)
    );
END $$;
