-- Migration 3: what the planner knows of the runs before the first of them is there.
--
-- Without statistics every index that begins with the namespace seems to find a run by its id at the same cost as the
-- primary key does, and the planner took `run_created`: each look read the entries of all runs of the namespace, until
-- the server analyzed the table by itself, a minute later or, with autovacuum off, never. The rows are gone before
-- anybody can see them, what was learnt from them stays: that a namespace has many runs, and an id is one run's.
INSERT INTO tenure.run (
    space, id, kind, schema, code_version, status, token, epoch, last_seq, head, base_seq, inbox_seq, parent, priority,
    input_digest, created_ms, updated_ms
)
SELECT 0, 'run-' || n, '', 1, '', 'completed', 1, '', 1, '', 1, 0, '', 0, '', n, n FROM generate_series(1, 100) AS n;
ANALYZE tenure.run;
DELETE FROM tenure.run WHERE space = 0;
