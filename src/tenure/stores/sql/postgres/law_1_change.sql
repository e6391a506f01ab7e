-- Migration 2, law 1: the one statement by which everything but a renewal is changed.

-- Decide changes of many runs, each alone, and write what they do. p: as look_1, and changes: an array of objects whose
-- `do` says which change, and apart, if no two are of one run; bodies: the payloads that they name by place. A row that
-- somebody else has locked is not waited for unless `patient`. Returns 'again space|boot' (nothing was written),
-- 'all <us>' if all are plain commits that landed, or a line for each change in order: 'landed <us>' (a plain commit),
-- 'busy', or an answer.
--
-- Plain commits are written here, all that land in two statements, because every step of every run takes this road: the
-- rows are locked, then the clock is read, then those are written that the law admits. What it does not is left to
-- commit_1, which says why. Their c: id, token, nonce, epoch, ttl_ms, prev, step, row: seq, digest, mark, body.
CREATE FUNCTION tenure.change_1(p jsonb, bodies bytea[]) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    f tenure.facts_1 := tenure.look_1(p);
    changes jsonb := p -> 'changes';
    places bigint[];
    rows tid[];
    plain jsonb[];
    landed bigint[];
    landed_us bigint;
    run tenure.run;
    c jsonb;
    said text := '';
BEGIN
    IF f.us IS NULL THEN
        RETURN CASE WHEN f.space IS NULL THEN 'again space' ELSE 'again boot' END;
    END IF;
    IF p ? 'apart' THEN
        -- OFFSET 0 keeps each look one by the key: joined in another way, a plan may look at every run instead.
        SELECT array_agg(s.place), array_agg(x.at), array_agg(s.c) INTO places, rows, plain
        FROM jsonb_array_elements(changes) WITH ORDINALITY AS s (c, place)
        CROSS JOIN LATERAL (
            SELECT r.ctid AS at FROM tenure.run r
            WHERE r.space = f.space AND r.id = s.c ->> 'id' FOR UPDATE SKIP LOCKED OFFSET 0
        ) AS x
        WHERE s.c ->> 'do' = 'plain';
        f.us := tenure.now_us_1(f.test_us);
        f.ms := f.us / 1000;
        -- Found by its place, a row is the version that was locked, which no other can have changed.
        WITH moved AS (
            UPDATE tenure.run x SET
                last_seq = x.last_seq + 1, head = s.c -> 'row' ->> 'digest', version = x.version + 1, updated_ms = f.ms,
                step = x.step + (s.c -> 'step')::bigint,
                crashes = CASE s.c ->> 'step' WHEN '0' THEN x.crashes ELSE 0 END,
                lease_until_ms = f.ms + (s.c -> 'ttl_ms')::bigint
            FROM unnest(places, rows, plain) AS s (place, at, c)
            WHERE x.ctid = s.at AND tenure.uncommittable_1(f, x, s.c) IS NULL
                AND (SELECT j.seq FROM tenure.journal j WHERE j.run = x.number AND j.seq = x.last_seq + 1) IS NULL
            RETURNING s.place, x.number, x.last_seq, x.token, s.c -> 'row' AS row
        ), kept AS (
            INSERT INTO tenure.journal (run, seq, token, mark, digest, at_ms, body)
            SELECT
                m.number, m.last_seq, m.token, m.row ->> 'mark', m.row ->> 'digest', f.ms,
                bodies[(m.row -> 'body')::integer]
            FROM moved m
        )
        SELECT array_agg(m.place) INTO landed FROM moved m;
        IF cardinality(landed) = jsonb_array_length(changes) THEN
            RETURN 'all ' || f.us;
        END IF;
        landed_us := f.us;
    END IF;
    FOR i IN 1 .. jsonb_array_length(changes) LOOP
        IF i = ANY (landed) THEN
            said := said || 'landed ' || landed_us || E'\n';
            CONTINUE;
        END IF;
        c := changes -> i - 1;
        IF f.patient THEN
            PERFORM FROM tenure.run x WHERE x.space = f.space AND x.id = c ->> 'id' FOR UPDATE;
        END IF;
        SELECT * INTO run FROM tenure.run x WHERE x.space = f.space AND x.id = c ->> 'id' FOR UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            PERFORM FROM tenure.run x WHERE x.space = f.space AND x.id = c ->> 'id';
            IF FOUND THEN
                said := said || E'busy\n';
                CONTINUE;
            END IF;
        END IF;
        f.us := tenure.now_us_1(f.test_us);
        f.ms := f.us / 1000;
        said := said || CASE c ->> 'do'
            WHEN 'plain' THEN tenure.commit_1(f, run, c, bodies)
            WHEN 'commit' THEN tenure.commit_1(f, run, c, bodies)
            WHEN 'create' THEN tenure.create_1(f, run, c, bodies)
            WHEN 'claim' THEN tenure.claim_1(f, run, c)
            WHEN 'reattach' THEN tenure.reattach_1(f, run, c)
            WHEN 'post' THEN tenure.post_1(f, run, c, bodies)
            WHEN 'end' THEN tenure.end_1(f, run, c)
            WHEN 'delete' THEN tenure.delete_1(f, run)
            WHEN 'repair' THEN tenure.repair_1(f, run, c)
            WHEN 'import' THEN tenure.import_1(f, run, c, bodies)
        END || E'\n';
        IF c ->> 'do' IN ('import', 'delete') THEN
            f := tenure.look_1(p);  -- another salt or floor
        END IF;
    END LOOP;
    RETURN said;
END $$;
