-- Migration 3: what the planner knows of the runs before the first of them is there.
--
-- Without statistics every index that begins with the namespace seems to find a run by its id at the same cost as the
-- primary key does, and the planner took `run_created`: each look read the entries of all runs of the namespace, until
-- the server analyzed the table by itself, a minute later or, with autovacuum off, never. So it sees some runs of every
-- status, kind and parent, due and not. The rows are gone before anybody can see them; what was learnt from them stays.
INSERT INTO tenure.run (
    space, id, kind, schema, code_version, status, token, epoch, last_seq, head, base_seq, inbox_seq, parent, priority,
    input_digest, created_ms, updated_ms, entry_ms
)
SELECT
    0, 'run-' || n, 'kind-' || n % 10, 1, '', status, n, '', 1, '', 1, 0,
    CASE n % 10 WHEN 0 THEN 'run-' || n - 1 ELSE '' END, 0, '', n, n,
    CASE WHEN status IN ('queued', 'running') THEN n END
FROM unnest(ARRAY['queued', 'running', 'suspended', 'quarantined', 'completed', 'failed', 'cancelled'])
    WITH ORDINALITY AS statuses (status, first)
CROSS JOIN LATERAL generate_series(first, 1000, 7) AS n;
ANALYZE tenure.run;
DELETE FROM tenure.run WHERE space = 0;
