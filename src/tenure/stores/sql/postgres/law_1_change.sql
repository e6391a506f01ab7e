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
    run tenure.run;
    c jsonb;
    r jsonb;
    said text := '';
BEGIN
    IF f.us IS NULL THEN
        RETURN CASE WHEN f.space IS NULL THEN 'again space' ELSE 'again boot' END;
    END IF;
    FOR c IN SELECT jsonb_array_elements(p -> 'changes') LOOP
        IF f.patient THEN
            SELECT * INTO run FROM tenure.run x WHERE x.space = f.space AND x.id = c ->> 'id' FOR UPDATE;
        ELSE
            SELECT * INTO run FROM tenure.run x WHERE x.space = f.space AND x.id = c ->> 'id' FOR UPDATE SKIP LOCKED;
            IF NOT FOUND AND EXISTS (SELECT FROM tenure.run x WHERE x.space = f.space AND x.id = c ->> 'id') THEN
                said := said || E'busy\n';
                CONTINUE;
            END IF;
        END IF;
        f.us := tenure.now_us_1(f.test_us);
        f.ms := f.us / 1000;
        IF c ->> 'do' = 'plain' AND run.token = (c ->> 'token')::bigint AND run.nonce = c ->> 'nonce'
            AND run.epoch = c ->> 'epoch' AND run.epoch = f.epoch AND run.status = 'running'
            AND run.lease_until_ms > f.ms AND run.last_seq = (c #>> '{row,seq}')::bigint - 1 AND run.head = c ->> 'prev'
        THEN
            r := c -> 'row';
            INSERT INTO tenure.journal (run, seq, token, mark, digest, at_ms, body) VALUES (
                run.number, run.last_seq + 1, run.token, r ->> 'mark', r ->> 'digest', f.ms,
                bodies[(r ->> 'body')::integer]
            ) ON CONFLICT DO NOTHING;
            IF FOUND THEN
                UPDATE tenure.run x SET
                    last_seq = run.last_seq + 1, head = r ->> 'digest', version = run.version + 1, updated_ms = f.ms,
                    step = run.step + (c ->> 'step')::bigint,
                    crashes = CASE WHEN c ->> 'step' = '0' THEN run.crashes ELSE 0 END,
                    lease_until_ms = f.ms + (c ->> 'ttl_ms')::bigint
                WHERE x.space = run.space AND x.id = run.id;
                said := said || 'landed ' || f.us || E'\n';
            ELSE
                said := said || tenure.refused_1('corrupt', f, run) || E'\n';
            END IF;
            CONTINUE;
        END IF;
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
        END || E'\n';
    END LOOP;
    RETURN said;
END $$;
