-- Migration 2, law 1: one plain commit by itself, as almost every statement of a worker is one.

-- Write a plain commit if its row can be had at once and the law admits it; else do nothing and leave it to change_1,
-- which waits for a row or says why not. p: as look_1, and step: the commit, as change_1 has them.
-- Returns 'landed <us>' or 'ask'.
--
-- The look at the namespace is that of look_1, in the statement that locks the run: each statement of a function costs
-- as much as what it does here.
CREATE FUNCTION tenure.step_1(p jsonb, body bytea) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    f tenure.facts_1;
    c jsonb := p -> 'step';
    r jsonb := c -> 'row';
    place tid;
    settings text;
BEGIN
    SELECT
        x.ctid, s.epoch,
        set_config('synchronous_commit', p ->> 'sync', true) || set_config('enable_seqscan', 'off', true)
        || set_config('plan_cache_mode', 'force_generic_plan', true)
    INTO place, f.epoch, settings
    FROM tenure.space s, tenure.run x
    WHERE s.name = p ->> 'space' AND x.space = s.number AND x.id = c ->> 'id'
        AND s.epoch = (p ->> 'native') || '.' || left(pg_walfile_name(pg_current_wal_lsn()), 8) || '.' || s.salt
        AND (date_part('epoch', pg_postmaster_start_time()) * 1000000)::bigint = (p ->> 'boot')::bigint
    FOR UPDATE OF x SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN 'ask';
    END IF;
    f.us := tenure.now_us_1((p ->> 'test_us')::bigint);
    f.ms := f.us / 1000;
    WITH moved AS (
        UPDATE tenure.run x SET
            last_seq = x.last_seq + 1, head = r ->> 'digest', version = x.version + 1, updated_ms = f.ms,
            step = x.step + (c -> 'step')::bigint,
            crashes = CASE c ->> 'step' WHEN '0' THEN x.crashes ELSE 0 END,
            lease_until_ms = f.ms + (c -> 'ttl_ms')::bigint
        WHERE x.ctid = place AND tenure.uncommittable_1(f, x, c) IS NULL
            AND (SELECT j.seq FROM tenure.journal j WHERE j.run = x.number AND j.seq = x.last_seq + 1) IS NULL
        RETURNING x.number, x.last_seq, x.token
    )
    INSERT INTO tenure.journal (run, seq, token, mark, digest, at_ms, body)
    SELECT m.number, m.last_seq, m.token, r ->> 'mark', r ->> 'digest', f.ms, step_1.body FROM moved m;
    RETURN CASE WHEN FOUND THEN 'landed ' || f.us ELSE 'ask' END;
END $$;
