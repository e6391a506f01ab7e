-- Migration 2, law 1: what is asked without a grant: post, end, delete and repair.

-- c: id, item and name (as JSON escapes them), ask, digest, request (digest decided on), grace_ms, body (its place).
CREATE FUNCTION tenure.post_1(f tenure.facts_1, run tenure.run, c jsonb, bodies bytea[]) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    found_item tenure.inbox;
    request jsonb;
    why text;
    by_ms bigint := f.ms + (c ->> 'grace_ms')::bigint;
    decides boolean := c ->> 'ask' IN ('decide', 'revoke');
BEGIN
    IF run.id IS NULL THEN
        RETURN tenure.refused_1('absent', f, NULL);
    END IF;
    SELECT * INTO found_item FROM tenure.inbox i WHERE i.run = run.number AND i.id = c ->> 'item';
    IF found_item.digest = c ->> 'digest' THEN
        RETURN tenure.already_1(f, run);
    END IF;
    IF NOT tenure.sound_1(run) THEN
        RETURN tenure.refused_1('corrupt', f, run);
    END IF;
    request := nullif(run.requests, '')::jsonb -> (c ->> 'name');
    why := CASE
        WHEN found_item.id IS NOT NULL THEN 'conflict'
        WHEN run.status NOT IN ('queued', 'running', 'suspended') THEN tenure.status_why_1(run.status)
        WHEN NOT decides THEN NULL
        WHEN request IS NULL OR nullif(request ->> 1, '')::bigint <= f.ms THEN 'request_closed'
        WHEN request ->> 0 <> c ->> 'request' THEN 'stale'
    END;
    IF why IS NOT NULL THEN
        RETURN tenure.answer_1('refused', why, f.us, run, CASE WHEN found_item.id IS NOT NULL THEN found_item END);
    END IF;
    run.inbox_seq := run.inbox_seq + 1;
    INSERT INTO tenure.inbox (run, seq, id, name, ask, digest, at_ms, body) VALUES (
        run.number, run.inbox_seq, c ->> 'item', c ->> 'name', c ->> 'ask', c ->> 'digest', f.ms,
        bodies[(c ->> 'body')::integer]
    );
    IF c ->> 'ask' = 'cancel' THEN
        run.cancel_by_ms := least(run.cancel_by_ms, by_ms);
    END IF;
    IF run.status = 'suspended' AND (c ->> 'ask' = 'cancel' OR nullif(run.wants, '')::jsonb ? (c ->> 'name')) THEN
        run.status := 'queued';
        run.due_ms := f.ms;
        run.wants := '';
    END IF;
    RETURN tenure.landed_1(f, run, run.updated_ms);
END $$;

-- c: id, how, token, nonce, reason and by (quoted as JSON quotes them), outcome (of a cancellation).
CREATE FUNCTION tenure.end_1(f tenure.facts_1, run tenure.run, c jsonb) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    how text := c ->> 'how';
    token bigint := (c ->> 'token')::bigint;
    makes text := CASE how
        WHEN 'cancel' THEN 'cancelled' WHEN 'quarantine' THEN 'quarantined' WHEN 'evict' THEN 'queued'
        WHEN 'release' THEN 'queued'
    END;
    stands boolean;
    why text;
BEGIN
    IF run.id IS NULL THEN
        RETURN tenure.refused_1('absent', f, NULL);
    END IF;
    IF NOT tenure.sound_1(run) THEN
        RETURN tenure.refused_1('corrupt', f, run);
    END IF;
    stands := CASE
        WHEN makes IS NOT NULL THEN run.status = makes
        ELSE EXISTS (
            SELECT FROM string_to_table(run.grants, E'\n') AS line, tenure.parts_1(line) AS part
            WHERE part[2] = '"' || token || '"' AND part[6] = '"' || how || '"'
        )
    END;
    IF stands THEN
        RETURN tenure.already_1(f, run);
    END IF;
    why := CASE
        WHEN how = 'cancel'
            THEN CASE WHEN run.status IN ('completed', 'failed', 'cancelled') THEN 'closed' END
        WHEN how IN ('evict', 'release') AND token <> run.token THEN 'moved'
        WHEN run.status <> CASE how WHEN 'release' THEN 'quarantined' ELSE 'running' END
            THEN tenure.status_why_1(run.status)
        WHEN how IN ('forfeit', 'yield', 'quarantine') AND (token <> run.token OR c ->> 'nonce' <> run.nonce) THEN 'lost'
    END;
    IF why IS NOT NULL THEN
        RETURN tenure.refused_1(why, f, run);
    END IF;
    -- The reason of a cancellation is the run's outcome; all others are evidence about the grant.
    run.grants := CASE how
        WHEN 'cancel' THEN tenure.closed_1(run, f, how, '""', '""')
        ELSE tenure.closed_1(run, f, how, c ->> 'reason', c ->> 'by')
    END;
    run.outcome := CASE how WHEN 'cancel' THEN c ->> 'outcome' ELSE run.outcome END;
    run.wants := CASE how WHEN 'cancel' THEN '' ELSE run.wants END;
    run.due_ms := CASE
        WHEN how IN ('cancel', 'quarantine') THEN NULL
        -- It stays running: the next claim is a takeover and counts.
        WHEN how = 'forfeit' THEN f.ms + ('{0, 1000, 4000, 16000, 60000}'::bigint[])[least(run.crashes, 4) + 1]
        ELSE f.ms
    END;
    run.status := coalesce(makes, CASE how WHEN 'yield' THEN 'queued' ELSE run.status END);
    run.crashes := CASE how WHEN 'release' THEN 0 ELSE run.crashes END;
    RETURN tenure.landed_1(f, tenure.ungranted_1(run, f));
END $$;

-- A run that has ended may go even if its record cannot be read: nobody could still use what it holds.
CREATE FUNCTION tenure.delete_1(f tenure.facts_1, run tenure.run) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    IF run.id IS NULL THEN
        UPDATE tenure.space s SET touch = f.us WHERE s.number = f.space;
        RETURN tenure.answer_1('already', '', f.us, NULL, NULL);
    END IF;
    IF run.status NOT IN ('completed', 'failed', 'cancelled') THEN
        RETURN tenure.refused_1('status', f, run);
    END IF;
    DELETE FROM tenure.journal j WHERE j.run = run.number;
    DELETE FROM tenure.inbox i WHERE i.run = run.number;
    DELETE FROM tenure.blob b WHERE b.run = run.number;
    DELETE FROM tenure.run r WHERE r.space = run.space AND r.id = run.id;
    UPDATE tenure.space s SET floor = greatest(s.floor, run.token) WHERE s.number = f.space;
    RETURN tenure.answer_1('landed', '', f.us, NULL, NULL);
END $$;

-- c: id, stray (present if an entry was found that should not be there).
CREATE FUNCTION tenure.repair_1(f tenure.facts_1, run tenure.run, c jsonb) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    stretched boolean := run.status = 'running' AND run.lease_until_ms - f.ms > run.granted_ttl_ms;
    -- Not due, though it has been due before: the clock was set back.
    postponed boolean := run.due_ms > f.ms AND CASE
        WHEN run.status = 'running' THEN run.due_ms - f.ms > CASE WHEN run.nonce = '' THEN 60000 ELSE 0 END
        ELSE run.due_ms <= run.updated_ms END;
BEGIN
    IF run.id IS NULL THEN
        RETURN tenure.answer_1('landed', '', f.us, NULL, NULL);
    END IF;
    IF NOT tenure.sound_1(run) THEN
        RETURN tenure.refused_1('corrupt', f, run);
    END IF;
    IF NOT stretched AND postponed IS NOT TRUE AND NOT c ? 'stray' AND run.entry_ms IS NOT DISTINCT FROM tenure.due_index_1(run) THEN
        RETURN tenure.already_1(f, run);
    END IF;
    IF stretched THEN
        run.lease_until_ms := f.ms + run.granted_ttl_ms;
    END IF;
    IF postponed THEN
        run.due_ms := f.ms;
    END IF;
    RETURN tenure.landed_1(f, run, run.updated_ms);
END $$;
