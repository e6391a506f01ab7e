-- Migration 2, law 1: create, commit and import, the changes that append to a journal.

-- Append a row; false where a row stands that the record does not know of.
CREATE FUNCTION tenure.append_1(run_number bigint, r jsonb, token bigint, at_ms bigint, bodies bytea[]) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO tenure.journal (run, seq, token, mark, digest, at_ms, body)
    VALUES (
        run_number, (r ->> 'seq')::bigint, token, r ->> 'mark', r ->> 'digest', at_ms, bodies[(r ->> 'body')::integer]
    ) ON CONFLICT DO NOTHING;
    RETURN FOUND;
END $$;

-- Keep the blobs of a change; a name is a digest, so what is there already is the same.
CREATE FUNCTION tenure.keep_1(run_number bigint, blobs jsonb, bodies bytea[]) RETURNS void LANGUAGE sql AS $$
    INSERT INTO tenure.blob (run, digest, data)
    SELECT run_number, b.key, bodies[b.value::integer] FROM jsonb_each_text(blobs) AS b
    ON CONFLICT DO NOTHING
$$;

-- c: id, kind, schema, code_version, parent, priority, tags, input_digest, due_in or due_at (ms), row (see append_1;
-- absent for ids of our own), blobs (digest to place in bodies).
CREATE FUNCTION tenure.create_1(f tenure.facts_1, run tenure.run, c jsonb, bodies bytea[]) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    seq bigint := coalesce((c #>> '{row,seq}')::bigint, 0);
    due_ms bigint := coalesce((c ->> 'due_at')::bigint, f.ms + (c ->> 'due_in')::bigint);
    floor bigint;
BEGIN
    IF run.id IS NOT NULL THEN
        IF run.kind = c ->> 'kind' AND run.input_digest = c ->> 'input_digest' THEN
            RETURN tenure.already_1(f, run);
        END IF;
        RETURN tenure.refused_1('conflict', f, run);
    END IF;
    INSERT INTO tenure.run (
        space, id, kind, schema, code_version, status, token, epoch, last_seq, head, base_seq, parent, due_ms, priority,
        tags, input_digest, created_ms, updated_ms, entry_ms
    ) VALUES (
        f.space, c ->> 'id', c ->> 'kind', (c ->> 'schema')::bigint, c ->> 'code_version', 'queued', f.floor, f.epoch,
        seq, coalesce(c #>> '{row,digest}', ''), seq, c ->> 'parent', due_ms, (c ->> 'priority')::bigint, c ->> 'tags',
        c ->> 'input_digest', f.ms, f.ms, CASE WHEN left(c ->> 'id', 1) <> '_' THEN due_ms END
    ) ON CONFLICT DO NOTHING RETURNING * INTO run;
    IF NOT FOUND THEN
        RETURN 'busy';
    END IF;
    -- Read after the id is ours: a run of this id may have lived and been deleted since the floor was read.
    SELECT s.floor INTO floor FROM tenure.space s WHERE s.number = f.space;
    IF floor <> run.token THEN
        UPDATE tenure.run r SET token = floor WHERE r.space = run.space AND r.id = run.id RETURNING * INTO run;
    END IF;
    IF c ? 'row' THEN
        PERFORM tenure.append_1(run.number, c -> 'row', 0, f.ms, bodies);
    END IF;
    PERFORM tenure.keep_1(run.number, c -> 'blobs', bodies);
    RETURN tenure.answer_1('landed', '', f.us, run, NULL);
END $$;

-- Whether this very commit has landed before; judged before everything else.
CREATE FUNCTION tenure.stands_1(run tenure.run, r jsonb) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (
        SELECT FROM tenure.journal j
        WHERE j.run = run.number AND j.seq = (r ->> 'seq')::bigint AND j.seq <= run.last_seq AND j.digest = r ->> 'digest'
    )
$$;

CREATE FUNCTION tenure.uncommittable_1(f tenure.facts_1, run tenure.run, c jsonb) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT coalesce(tenure.foreign_1(run, c, f), CASE
        WHEN (c #>> '{row,seq}')::bigint - 1 <> run.last_seq OR c ->> 'prev' <> run.head THEN 'sequence'
        WHEN (c ->> 'inbox_seq')::bigint <> run.inbox_seq THEN 'inbox'
    END)
$$;

-- A commit that does more than append (the plain one is in change_1). c: as there, and status, base, failures, consume,
-- inbox_seq, requests, wants, tags, due_in or due_at (ms), outcome, blobs (digest to place in bodies).
CREATE FUNCTION tenure.commit_1(f tenure.facts_1, run tenure.run, c jsonb, bodies bytea[]) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    why text;
    step bigint := (c ->> 'step')::bigint;
BEGIN
    IF run.id IS NULL THEN
        RETURN tenure.refused_1('absent', f, NULL);
    END IF;
    IF tenure.stands_1(run, c -> 'row') THEN
        RETURN tenure.already_1(f, run);
    END IF;
    why := tenure.uncommittable_1(f, run, c);
    IF why IS NULL AND NOT (
        tenure.sound_1(run) AND tenure.append_1(run.number, c -> 'row', run.token, f.ms, bodies)
    ) THEN
        why := 'corrupt';
    END IF;
    IF why IS NOT NULL THEN
        RETURN tenure.refused_1(why, f, run);
    END IF;
    PERFORM tenure.keep_1(run.number, c -> 'blobs', bodies);
    UPDATE tenure.inbox i SET consumed = true, body = ''
    WHERE i.run = run.number AND c -> 'consume' ? i.id AND NOT i.consumed;
    run.last_seq := (c #>> '{row,seq}')::bigint;
    run.head := c #>> '{row,digest}';
    run.base_seq := CASE WHEN c ? 'base' THEN run.last_seq ELSE run.base_seq END;
    run.step := run.step + step;
    run.crashes := CASE WHEN step > 0 THEN 0 ELSE run.crashes END;
    run.failures := coalesce((c ->> 'failures')::bigint, run.failures);
    run.requests := coalesce(c ->> 'requests', run.requests);
    run.wants := coalesce(c ->> 'wants', run.wants);
    run.tags := coalesce(c ->> 'tags', run.tags);
    run.outcome := coalesce(c ->> 'outcome', run.outcome);
    IF c ? 'status' THEN
        run.grants := tenure.closed_1(run, f, c ->> 'status', '""', '""');
        run.status := c ->> 'status';
        run.owner := '';
        run.lease_until_ms := least(run.lease_until_ms, f.ms);
        run.due_ms := coalesce((c ->> 'due_at')::bigint, f.ms + (c ->> 'due_in')::bigint);
    ELSE
        run.lease_until_ms := f.ms + (c ->> 'ttl_ms')::bigint;
    END IF;
    RETURN tenure.landed_1(f, run);
END $$;

-- Bring in a whole run, which nobody holds afterwards; the store gets another salt. c: id, record (as columns of a run),
-- digest, salt, rows (see append_1, and token, at_ms), items (as columns of the inbox, and body: its place), blobs.
CREATE FUNCTION tenure.import_1(f tenure.facts_1, run tenure.run, c jsonb, bodies bytea[]) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    digest text := '"' || (c ->> 'digest') || '"';
    known boolean;
BEGIN
    IF run.id IS NOT NULL THEN
        IF NOT tenure.sound_1(run) THEN
            RETURN tenure.refused_1('corrupt', f, run);
        END IF;
        known := EXISTS (
            SELECT FROM string_to_table(run.grants, E'\n') AS line, tenure.parts_1(line) AS part
            WHERE part[6] = '"imported"' AND part[8] = digest
        );
        RETURN CASE WHEN known THEN tenure.already_1(f, run) ELSE tenure.refused_1('conflict', f, run) END;
    END IF;
    run := jsonb_populate_record(NULL::tenure.run, c -> 'record');
    -- Whoever held it where it comes from holds nothing here, and nobody died: the same attempt, no crash.
    IF run.status = 'running' THEN
        run.status := 'queued';
        run.due_ms := f.ms;
        run.updated_ms := f.ms;
    END IF;
    run.space := f.space;
    run.number := nextval(pg_get_serial_sequence('tenure.run', 'number'));
    run.version := run.version + 1;
    -- Read under its lock: a deletion that was under way when the statement began may have raised it since.
    SELECT greatest(run.token, s.floor) INTO run.token FROM tenure.space s WHERE s.number = f.space FOR UPDATE;
    run.lease_until_ms := f.ms;
    run.grants := tenure.closed_1(run, f, 'imported', '""', '""');
    run := tenure.granted_1(run, '', '', 0, f);
    run.grants := tenure.closed_1(run, f, 'imported', digest, '""');
    run.entry_ms := tenure.due_index_1(run);
    INSERT INTO tenure.run OVERRIDING SYSTEM VALUE SELECT run.* ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN 'busy';
    END IF;
    INSERT INTO tenure.journal (run, seq, token, mark, digest, at_ms, body)
    SELECT run.number, r.seq, r.token, r.mark, r.digest, r.at_ms, bodies[r.body]
    FROM jsonb_to_recordset(c -> 'rows')
        AS r (seq bigint, token bigint, mark text, digest text, at_ms bigint, body integer);
    INSERT INTO tenure.inbox (run, seq, id, name, ask, digest, at_ms, consumed, body)
    SELECT run.number, i.seq, i.id, i.name, i.ask, i.digest, i.at_ms, i.consumed, bodies[i.body]
    FROM jsonb_to_recordset(c -> 'items')
        AS i (seq bigint, id text, name text, ask text, digest text, at_ms bigint, consumed boolean, body integer);
    PERFORM tenure.keep_1(run.number, c -> 'blobs', bodies);
    -- Another history that lost nothing: holders show that they may go on, and no stranger waits for it.
    UPDATE tenure.space s SET
        floor = greatest(s.floor, run.token), salt = c ->> 'salt',
        epoch = regexp_replace(s.epoch, '[^.]*$', c ->> 'salt')
    WHERE s.number = f.space;
    RETURN tenure.answer_1('landed', '', f.us, run, NULL);
END $$;
