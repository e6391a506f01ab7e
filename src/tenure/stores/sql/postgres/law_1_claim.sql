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

-- Why a renewal did not land: 'busy' where the row is somebody else's for now.
CREATE FUNCTION tenure.unrenewed_1(f tenure.facts_1, g jsonb, ours boolean) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    run tenure.run;
BEGIN
    SELECT * INTO run FROM tenure.run r WHERE r.space = f.space AND r.id = g ->> 'id';
    IF NOT FOUND THEN
        RETURN tenure.refused_1('absent', f, NULL);
    END IF;
    RETURN CASE WHEN ours THEN tenure.refused_1(tenure.foreign_1(run, g, f), f, run) ELSE 'busy' END;
END $$;

-- Extend the live leases of many runs to now + ttl. p: as look_1, and grants: id, token, nonce, epoch, ttl_ms of each. A
-- row that somebody else has locked is not waited for: one tool's open transaction must not stop the heartbeat of a whole
-- worker. Row by row, because each look is then by the key: joined with a list, a plan may look at every run instead.
-- Returns 'again ..', 'all <us>' if all landed, or a line for each grant in order: 'landed <us>', 'busy', or an answer.
CREATE FUNCTION tenure.renew_1(p jsonb) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    f tenure.facts_1 := tenure.look_1(p);
    run record;
    grants jsonb := p -> 'grants';
    g jsonb;
    said text[];
    whole boolean := true;
    line text;
BEGIN
    IF f.us IS NULL THEN
        RETURN CASE WHEN f.space IS NULL THEN 'again space' ELSE 'again boot' END;
    END IF;
    FOR i IN 0 .. jsonb_array_length(grants) - 1 LOOP
        g := grants -> i;
        SELECT r.ctid AS place, r.token, r.nonce, r.epoch, r.status, r.lease_until_ms INTO run
        FROM tenure.run r WHERE r.space = f.space AND r.id = g ->> 'id' FOR UPDATE SKIP LOCKED;
        f.us := tenure.now_us_1(f.test_us);
        f.ms := f.us / 1000;
        IF FOUND AND run.token = (g ->> 'token')::bigint AND run.nonce = g ->> 'nonce' AND run.epoch = g ->> 'epoch'
            AND run.epoch = f.epoch AND run.status = 'running' AND run.lease_until_ms > f.ms
        THEN
            UPDATE tenure.run r SET lease_until_ms = f.ms + (g ->> 'ttl_ms')::bigint WHERE r.ctid = run.place;
            line := 'landed ' || f.us;
        ELSE
            whole := false;
            line := tenure.unrenewed_1(f, g, run.place IS NOT NULL);
        END IF;
        said := said || line;
    END LOOP;
    RETURN CASE WHEN whole THEN 'all ' || f.us ELSE array_to_string(said, E'\n') END;
END $$;
