CREATE TABLE {meta} (
  one       smallint PRIMARY KEY CHECK (one = 1),
  version   integer NOT NULL,            -- of this schema
  min_code  integer NOT NULL,            -- oldest schema version whose code may run on it
  catalog   bigint  NOT NULL DEFAULT 0   -- grows with each change of {queue}
) WITH (fillfactor = 50)
-- next
CREATE SEQUENCE {seq} MAXVALUE 8796093022207
-- next
CREATE TABLE {queue} (
  name        text PRIMARY KEY,
  paused      boolean NOT NULL DEFAULT false,
  shards      integer NOT NULL DEFAULT -1,   -- -1 in these three: the options of each process decide
  keep        integer NOT NULL DEFAULT -1,   -- 1: finished jobs go to the archive
  max_backlog bigint  NOT NULL DEFAULT -1
)
-- next
CREATE TABLE {lane} (
  lane       integer PRIMARY KEY GENERATED ALWAYS AS IDENTITY (MAXVALUE 524287),
  queue      text     NOT NULL,
  priority   smallint NOT NULL,
  shard      smallint NOT NULL,
  mark       integer  NOT NULL DEFAULT CAST(random() * 1000000000 AS integer),  -- tells it from one of the same number before a restore
  recheck_at timestamptz NOT NULL DEFAULT '-infinity',  -- not before then; set by whoever rechecks
  cursor_id  bigint   NOT NULL DEFAULT 0,               -- where somebody scanned: a new process starts here
  UNIQUE (queue, priority, shard)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 200)
-- next
CREATE TABLE {node} (
  id   integer PRIMARY KEY,   -- random
  name text NOT NULL UNIQUE
)
-- next
-- Live jobs only: its size is the backlog. lane > 0 holds the ready side of a
-- lane, -lane the due side. Claiming changes none of the indexed columns, so
-- that the update stays within its page (HOT): fillfactor leaves it room.
CREATE TABLE {job} (
  lane         integer     NOT NULL,
  attempt      smallint    NOT NULL DEFAULT 0,
  max_attempts smallint    NOT NULL,
  id           bigint      NOT NULL,
  lease_until  timestamptz NOT NULL DEFAULT '-infinity',
  token        bigint      NOT NULL DEFAULT 0,
  created_at   timestamptz NOT NULL DEFAULT statement_timestamp(),
  node         integer     NOT NULL DEFAULT 0,
  lease_ms     integer,            -- the job's own lease time
  run_at       timestamptz,        -- when it is due; set on the due side only
  kind         text        NOT NULL,
  unique_key   text,
  headers      text,               -- JSON object
  errors       text,               -- JSON array, one entry per failed attempt
  payload      bytea       NOT NULL,
  PRIMARY KEY (lane, id),
  CHECK ((lane > 0) = (run_at IS NULL))
) WITH (fillfactor = 50, vacuum_truncate = off,
        autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 20000,
        autovacuum_vacuum_insert_scale_factor = 0.2,
        autovacuum_analyze_scale_factor = 0.2, autovacuum_analyze_threshold = 20000,
        autovacuum_vacuum_cost_delay = 0)
-- next
CREATE INDEX {bare_job_due} ON {job} (run_at, lane, id) WHERE run_at IS NOT NULL
-- next
CREATE TABLE {key} (
  queue  text   NOT NULL,
  key    text   NOT NULL,
  job_id bigint NOT NULL,
  PRIMARY KEY (queue, key)
)
-- next
CREATE TABLE {push} (
  push_id    text PRIMARY KEY,
  created_at timestamptz NOT NULL DEFAULT statement_timestamp(),
  digest     text NOT NULL,
  result     text NOT NULL
)
-- next
CREATE INDEX {bare_push_created} ON {push} (created_at)
-- next
CREATE TABLE {archive} (
  id           bigint      NOT NULL,
  finished_at  timestamptz NOT NULL,
  created_at   timestamptz NOT NULL,
  state        smallint    NOT NULL CHECK (state IN (1, 2, 3)),  -- 1 done, 2 dead, 3 cancelled
  priority     smallint    NOT NULL,
  attempt      smallint    NOT NULL,
  max_attempts smallint    NOT NULL,
  node         integer     NOT NULL,
  lease_ms     integer,
  queue        text        NOT NULL,
  kind         text        NOT NULL,
  unique_key   text,
  headers      text,
  errors       text,
  payload      bytea       NOT NULL,
  PRIMARY KEY (id, finished_at)
)
-- next
CREATE INDEX {bare_archive_state} ON {archive} (state, queue, finished_at, id)
-- next
CREATE INDEX {bare_archive_age} ON {archive} (finished_at)
-- next
CREATE FUNCTION {micros_1}(t timestamptz) RETURNS bigint LANGUAGE sql STABLE PARALLEL SAFE
AS 'SELECT CASE WHEN isfinite(t) THEN CAST(extract(epoch FROM t) * 1000000 AS bigint) ELSE 0 END'
-- next
-- What the planner must not choose is switched off for these functions alone:
-- nothing leaks into the session that calls them. A plan made while the table
-- was empty, full or all leased is therefore the same plan.
CREATE FUNCTION {push_1}(
  p_lanes text, p_queues text,                      -- int[], text[]: the distinct lanes, and whose they are
  p_lane text, p_kind text, p_offset text, p_length text,
  p_delay text, p_at text,                          -- bigint[]: microseconds, 0 = none
  p_max text, p_lease text, p_headers text,         -- '' = none
  p_key text,                                       -- text[], '' = none; null when no row has one
  p_payload bytea)
RETURNS TABLE (id bigint, duplicate integer)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET search_path = pg_catalog, pg_temp
AS $body$
#variable_conflict use_column
DECLARE
  t      timestamptz := statement_timestamp();
  n      integer;
  ids    bigint[];
  lanes  integer[] := CAST(p_lane AS integer[]);
  keys   text[];
  queues text[];
  held   bigint;
  i      integer;
BEGIN
  PERFORM 1 FROM unnest(CAST(p_lanes AS integer[]), CAST(p_queues AS text[])) AS u (lane, queue)
    WHERE NOT EXISTS (SELECT 1 FROM {lane} AS l WHERE l.lane = u.lane AND l.queue = u.queue);
  IF FOUND THEN RETURN; END IF;

  n := cardinality(lanes);
  IF p_key IS NULL THEN
    RETURN QUERY
      INSERT INTO {job} AS j (lane, id, created_at, run_at, max_attempts, lease_ms, kind, headers, payload)
      SELECT CASE WHEN u.due > t THEN -u.lane ELSE u.lane END,
             CAST(u.lane AS bigint) << 43 | nextval('{seq}'),
             t, CASE WHEN u.due > t THEN u.due END,
             u.max, nullif(u.lease, 0), u.kind, nullif(u.headers, ''),
             substring(p_payload FROM u.off + 1 FOR u.len)
      FROM (SELECT x.*,
                   CASE WHEN x.at <> 0 THEN timestamptz 'epoch' + x.at * interval '1 microsecond'
                        ELSE t + x.delay * interval '1 microsecond' END AS due
            FROM unnest(lanes, CAST(p_kind AS text[]), CAST(p_offset AS integer[]), CAST(p_length AS integer[]),
                        CAST(p_delay AS bigint[]), CAST(p_at AS bigint[]), CAST(p_max AS smallint[]),
                        CAST(p_lease AS integer[]), CAST(p_headers AS text[]))
                 WITH ORDINALITY AS x (lane, kind, off, len, delay, at, max, lease, headers, ord)
            ORDER BY x.ord) AS u
      RETURNING j.id, 0;
    RETURN;
  END IF;

  -- With unique keys, ids come first: a key's row names the job that holds it.
  -- Keys are taken in their order, so that two pushes cannot wait for each other.
  keys := CAST(p_key AS text[]);
  SELECT array_agg(CAST(u.lane AS bigint) << 43 | nextval('{seq}') ORDER BY u.ord),
         array_agg(l.queue ORDER BY u.ord)
    INTO ids, queues
    FROM unnest(lanes) WITH ORDINALITY AS u (lane, ord) JOIN {lane} AS l ON l.lane = u.lane;
  FOR i IN SELECT u.ord FROM unnest(queues, keys) WITH ORDINALITY AS u (queue, key, ord)
           WHERE u.key <> '' ORDER BY u.queue, u.key, u.ord LOOP
    LOOP
      INSERT INTO {key} (queue, key, job_id) VALUES (queues[i], keys[i], ids[i]) ON CONFLICT DO NOTHING;
      EXIT WHEN FOUND;
      SELECT k.job_id INTO held FROM {key} AS k WHERE k.queue = queues[i] AND k.key = keys[i];
      IF FOUND THEN
        ids[i] := -held;   -- a duplicate: nothing will be stored
        EXIT;
      END IF;              -- else it was freed just now: try again
    END LOOP;
  END LOOP;
  INSERT INTO {job} AS j (lane, id, created_at, run_at, max_attempts, lease_ms, kind, unique_key, headers, payload)
    SELECT CASE WHEN u.due > t THEN -u.lane ELSE u.lane END, u.id,
           t, CASE WHEN u.due > t THEN u.due END,
           u.max, nullif(u.lease, 0), u.kind, nullif(u.key, ''), nullif(u.headers, ''),
           substring(p_payload FROM u.off + 1 FOR u.len)
    FROM (SELECT x.*,
                 CASE WHEN x.at <> 0 THEN timestamptz 'epoch' + x.at * interval '1 microsecond'
                      ELSE t + x.delay * interval '1 microsecond' END AS due
          FROM unnest(lanes, CAST(p_kind AS text[]), CAST(p_offset AS integer[]), CAST(p_length AS integer[]),
                      CAST(p_delay AS bigint[]), CAST(p_at AS bigint[]), CAST(p_max AS smallint[]),
                      CAST(p_lease AS integer[]), CAST(p_headers AS text[]), keys, ids)
               WITH ORDINALITY AS x (lane, kind, off, len, delay, at, max, lease, headers, key, id, ord)
          WHERE x.id > 0
          ORDER BY x.ord) AS u;
  RETURN QUERY SELECT abs(u.id), CAST(u.id < 0 AS integer) FROM unnest(ids) WITH ORDINALITY AS u (id, ord) ORDER BY u.ord;
END
$body$
-- next
-- The time, in a row without an id, and then one row for each job claimed.
CREATE FUNCTION {claim_1}(
  p_lane text, p_mode text, p_id text, p_at text,   -- int[], int[] (0 ready, 1 due, 2 recheck, 3 only this job), bigint[], bigint[]
  p_n integer, p_token bigint, p_node integer,
  p_lease bigint, p_interval bigint, p_cost integer)  -- milliseconds; shortest time between rechecks; and times their cost
RETURNS TABLE (step integer, lane integer, id bigint, run_at bigint, created_at bigint, lease_until bigint,
               attempt integer, max_attempts integer, kind text, unique_key text, headers text, errors text, payload bytea)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_incremental_sort = off
SET plan_cache_mode = force_generic_plan SET jit = off
SET search_path = pg_catalog, pg_temp
AS $body$
#variable_conflict use_column
DECLARE
  t       timestamptz := statement_timestamp();
  lanes   integer[] := CAST(p_lane AS integer[]);
  modes   integer[] := CAST(p_mode AS integer[]);
  ids     bigint[]  := CAST(p_id AS bigint[]);
  ats     bigint[]  := CAST(p_at AS bigint[]);
  want    integer   := p_n;
  tids    tid[];
  l       integer;
  started timestamptz;
BEGIN
  RETURN QUERY SELECT -1, 0, CAST(NULL AS bigint), 0::bigint, {micros_1}(t), 0::bigint, 0, 0, '', '', '', '', ''::bytea;
  FOR s IN 1 .. cardinality(lanes) LOOP
    l := lanes[s];
    IF modes[s] = 0 THEN
      tids := ARRAY(
        SELECT c.ctid FROM {job} AS c
        WHERE c.lane = l AND c.id >= ids[s] AND c.lease_until <= t
        ORDER BY c.lane, c.id LIMIT want FOR UPDATE SKIP LOCKED);
    ELSIF modes[s] = 1 THEN
      tids := ARRAY(
        SELECT c.ctid FROM {job} AS c
        WHERE (c.run_at, c.lane, c.id) > (timestamptz 'epoch' + ats[s] * interval '1 microsecond', -l, ids[s])
          AND c.run_at <= t AND c.lane = -l AND c.lease_until <= t
        ORDER BY c.run_at, c.lane, c.id LIMIT want FOR UPDATE SKIP LOCKED);
    ELSIF modes[s] = 3 THEN
      tids := ARRAY(
        SELECT c.ctid FROM {job} AS c
        WHERE c.lane = l AND c.id = ids[s] AND c.lease_until <= t FOR UPDATE SKIP LOCKED);
    ELSE
      PERFORM 1 FROM {lane} AS x WHERE x.lane = l AND x.recheck_at <= t;
      CONTINUE WHEN NOT FOUND;
      -- An empty lane is not written to: an idle queue costs reads only.
      started := clock_timestamp();
      PERFORM 1 FROM {job} AS c WHERE c.lane = l LIMIT 1;
      IF NOT FOUND THEN
        PERFORM 1 FROM {job} AS c WHERE c.lane = -l LIMIT 1;
        CONTINUE WHEN NOT FOUND AND clock_timestamp() < started + interval '5 ms';
      END IF;
      PERFORM 1 FROM {lane} AS x WHERE x.lane = l AND x.recheck_at <= t FOR UPDATE SKIP LOCKED;
      CONTINUE WHEN NOT FOUND;
      tids := ARRAY(
        SELECT c.ctid FROM {job} AS c
        WHERE c.lane = l AND c.id < ids[s] AND c.lease_until <= t
        ORDER BY c.lane, c.id LIMIT want FOR UPDATE SKIP LOCKED);
      tids := tids || ARRAY(
        SELECT c.ctid FROM {job} AS c
        WHERE c.run_at <= t AND c.lane = -l AND c.lease_until <= t
        ORDER BY c.run_at, c.lane, c.id LIMIT want - cardinality(tids) FOR UPDATE SKIP LOCKED);
      UPDATE {lane} AS x SET cursor_id = ids[s],
             recheck_at = t + greatest(p_interval * interval '1 millisecond', p_cost * (clock_timestamp() - started))
      WHERE x.lane = l;
    END IF;
    CONTINUE WHEN cardinality(tids) = 0;
    RETURN QUERY
      UPDATE {job} AS j SET lease_until = t + coalesce(j.lease_ms, p_lease) * interval '1 millisecond',
                            token = p_token, node = p_node, attempt = j.attempt + 1
      WHERE j.ctid = ANY (tids) AND j.lease_until <= t
      RETURNING s - 1, j.lane, j.id, coalesce({micros_1}(j.run_at), 0), {micros_1}(j.created_at), {micros_1}(j.lease_until),
                CAST(j.attempt AS integer), CAST(j.max_attempts AS integer), j.kind, coalesce(j.unique_key, ''),
                coalesce(j.headers, ''), coalesce(j.errors, ''), j.payload;
    want := want - cardinality(tids);
    EXIT WHEN want <= 0;
  END LOOP;
END
$body$
-- next
-- In this function and the next ones p_lane names each lane once, and p_id the
-- jobs in any of them: ids are unique over lanes.
CREATE FUNCTION {ack_1}(p_token bigint, p_lane text, p_id text, p_keyed boolean)   -- int[], bigint[] -> the ids deleted
RETURNS SETOF bigint
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan SET jit = off
SET search_path = pg_catalog, pg_temp
AS $body$
DECLARE
  ids bigint[] := CAST(p_id AS bigint[]);
  l   integer;
  r   record;
BEGIN
  FOREACH l IN ARRAY CAST(p_lane AS integer[]) LOOP
    IF NOT p_keyed THEN
      RETURN QUERY DELETE FROM {job} AS j WHERE j.lane = l AND j.id = ANY (ids) AND j.token = p_token RETURNING j.id;
      CONTINUE;
    END IF;
    FOR r IN DELETE FROM {job} AS j WHERE j.lane = l AND j.id = ANY (ids) AND j.token = p_token
             RETURNING j.id, j.unique_key LOOP
      IF r.unique_key IS NOT NULL THEN
        DELETE FROM {key} AS k USING {lane} AS x
        WHERE x.lane = abs(l) AND k.queue = x.queue AND k.key = r.unique_key AND k.job_id = r.id;
      END IF;
      RETURN NEXT r.id;
    END LOOP;
  END LOOP;
END
$body$
-- next
CREATE FUNCTION {archive_1}(p_token bigint, p_lane text, p_id text, p_state text, p_errors text)
RETURNS SETOF bigint
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET jit = off
SET search_path = pg_catalog, pg_temp
AS $body$
DECLARE
  ids    bigint[]   := CAST(p_id AS bigint[]);
  states smallint[] := CAST(p_state AS smallint[]);
  errs   text[]     := CAST(p_errors AS text[]);
  l      integer;
BEGIN
  FOREACH l IN ARRAY CAST(p_lane AS integer[]) LOOP
    RETURN QUERY
      WITH gone AS (
        DELETE FROM {job} AS j WHERE j.lane = l AND j.id = ANY (ids) AND j.token = p_token RETURNING j.*
      ), freed AS (
        DELETE FROM {key} AS k USING gone AS g, {lane} AS x
        WHERE g.unique_key IS NOT NULL AND x.lane = abs(l)
          AND k.queue = x.queue AND k.key = g.unique_key AND k.job_id = g.id
      )
      INSERT INTO {archive} AS a (id, finished_at, created_at, state, priority, attempt, max_attempts, node,
                                  lease_ms, queue, kind, unique_key, headers, errors, payload)
      SELECT g.id, statement_timestamp(), g.created_at, states[array_position(ids, g.id)], x.priority,
             least(g.attempt, g.max_attempts), g.max_attempts, g.node, g.lease_ms, x.queue, g.kind, g.unique_key, g.headers,
             coalesce(nullif(errs[array_position(ids, g.id)], ''), g.errors), g.payload
      FROM gone AS g, {lane} AS x WHERE x.lane = abs(l)
      RETURNING a.id;
  END LOOP;
END
$body$
-- next
-- Jobs that come back lie behind the cursors, so they take the due side.
CREATE FUNCTION {return_1}(p_token bigint, p_lane text, p_id text, p_delay text, p_attempt text, p_errors text)
RETURNS SETOF bigint
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan SET jit = off
SET search_path = pg_catalog, pg_temp
AS $body$
DECLARE
  ids      bigint[]   := CAST(p_id AS bigint[]);
  delays   bigint[]   := CAST(p_delay AS bigint[]);
  attempts smallint[] := CAST(p_attempt AS smallint[]);
  errs     text[]     := CAST(p_errors AS text[]);
  l        integer;
BEGIN
  FOREACH l IN ARRAY CAST(p_lane AS integer[]) LOOP
    RETURN QUERY
      UPDATE {job} AS j
      SET lane = -abs(l), lease_until = '-infinity', token = 0, node = 0,
          run_at = statement_timestamp() + delays[array_position(ids, j.id)] * interval '1 microsecond',
          attempt = attempts[array_position(ids, j.id)],
          errors = coalesce(nullif(errs[array_position(ids, j.id)], ''), j.errors)
      WHERE j.lane = l AND j.id = ANY (ids) AND j.token = p_token
      RETURNING j.id;
  END LOOP;
END
$body$
-- next
-- A row that somebody has locked, as a handler does that acks in its own open
-- transaction, must not hold up the others: it is passed over and told apart (2).
CREATE FUNCTION {extend_1}(p_token bigint, p_lane text, p_id text, p_delay text)
RETURNS TABLE (id bigint, outcome integer)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET plan_cache_mode = force_generic_plan SET jit = off
SET search_path = pg_catalog, pg_temp
AS $body$
#variable_conflict use_column
DECLARE
  ids    bigint[] := CAST(p_id AS bigint[]);
  delays bigint[] := CAST(p_delay AS bigint[]);
  mine   bigint[];
  l      integer;
BEGIN
  FOREACH l IN ARRAY CAST(p_lane AS integer[]) LOOP
    mine := ARRAY(SELECT j.id FROM {job} AS j WHERE j.lane = l AND j.id = ANY (ids) AND j.token = p_token
                  FOR UPDATE SKIP LOCKED);
    RETURN QUERY SELECT j.id, 2 FROM {job} AS j
      WHERE j.lane = l AND j.id = ANY (ids) AND j.token = p_token AND j.id <> ALL (mine);
    RETURN QUERY
      UPDATE {job} AS j
      SET lease_until = statement_timestamp() + delays[array_position(ids, j.id)] * interval '1 microsecond'
      WHERE j.lane = l AND j.id = ANY (mine)
      RETURNING j.id, 1;
  END LOOP;
END
$body$
