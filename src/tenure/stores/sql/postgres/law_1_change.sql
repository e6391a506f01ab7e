-- Migration 2, law 1: the one statement by which everything but a renewal is changed.

-- Decide changes of many runs, each alone, and write what they do. p: as look_1, and changes: an array of objects whose
-- `do` says which change; bodies: the payloads that they name by place. A row that somebody else has locked is not
-- waited for unless `patient`. Returns 'again space|boot' (nothing was written), or a line for each change in order:
-- 'landed <us>' (a plain commit), 'busy', or an answer.
--
-- The plain commit stands here whole, because every step of every run takes this road. Its c: id, token, nonce, epoch,
-- ttl_ms, prev, step, row: seq, digest, mark, body.
CREATE FUNCTION tenure.change_1(p jsonb, bodies bytea[]) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    f tenure.facts_1 := tenure.look_1(p);
    -- A step needs a few columns of its run; fetching all of them would take half as long again.
    brief record;
    run tenure.run;
    changes jsonb := p -> 'changes';
    c jsonb;
    r jsonb;
    said text := '';
BEGIN
    IF f.us IS NULL THEN
        RETURN CASE WHEN f.space IS NULL THEN 'again space' ELSE 'again boot' END;
    END IF;
    FOR i IN 0 .. jsonb_array_length(changes) - 1 LOOP
        c := changes -> i;
        IF f.patient THEN
            PERFORM FROM tenure.run x WHERE x.space = f.space AND x.id = c ->> 'id' FOR UPDATE;
        END IF;
        SELECT
            x.ctid AS place, x.number, x.token, x.nonce, x.epoch, x.status, x.lease_until_ms, x.last_seq, x.head, x.crashes
        INTO brief FROM tenure.run x WHERE x.space = f.space AND x.id = c ->> 'id' FOR UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            PERFORM FROM tenure.run x WHERE x.space = f.space AND x.id = c ->> 'id';
            IF FOUND THEN
                said := said || E'busy\n';
                CONTINUE;
            END IF;
        END IF;
        f.us := tenure.now_us_1(f.test_us);
        f.ms := f.us / 1000;
        r := c -> 'row';
        IF c ->> 'do' = 'plain' AND brief.token = (c ->> 'token')::bigint AND brief.nonce = c ->> 'nonce'
            AND brief.epoch = c ->> 'epoch' AND brief.epoch = f.epoch AND brief.status = 'running'
            AND brief.lease_until_ms > f.ms AND brief.last_seq = (r ->> 'seq')::bigint - 1 AND brief.head = c ->> 'prev'
        THEN
            INSERT INTO tenure.journal (run, seq, token, mark, digest, at_ms, body) VALUES (
                brief.number, brief.last_seq + 1, brief.token, r ->> 'mark', r ->> 'digest', f.ms,
                bodies[(r ->> 'body')::integer]
            ) ON CONFLICT DO NOTHING;
            IF FOUND THEN
                UPDATE tenure.run x SET
                    last_seq = x.last_seq + 1, head = r ->> 'digest', version = x.version + 1, updated_ms = f.ms,
                    step = x.step + (c ->> 'step')::bigint,
                    crashes = CASE WHEN c ->> 'step' = '0' THEN x.crashes ELSE 0 END,
                    lease_until_ms = f.ms + (c ->> 'ttl_ms')::bigint
                WHERE x.ctid = brief.place;
                said := said || 'landed ' || f.us || E'\n';
                CONTINUE;
            END IF;
        END IF;
        SELECT * INTO run FROM tenure.run x WHERE x.ctid = brief.place;
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
