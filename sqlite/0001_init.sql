CREATE TABLE IF NOT EXISTS {meta} (
  one      INTEGER PRIMARY KEY CHECK (one = 1),
  version  INTEGER NOT NULL,            -- of this schema
  min_code INTEGER NOT NULL,            -- oldest schema version whose code may run on it
  catalog  INTEGER NOT NULL DEFAULT 0   -- grows with each change of {queue}
)
-- next
CREATE TABLE {queue} (
  name        TEXT PRIMARY KEY NOT NULL,
  paused      INTEGER NOT NULL DEFAULT 0,
  shards      INTEGER NOT NULL DEFAULT -1,   -- -1 in these three: the options of each process decide
  keep        INTEGER NOT NULL DEFAULT -1,   -- 1: finished jobs go to the archive
  max_backlog INTEGER NOT NULL DEFAULT -1
) WITHOUT ROWID
-- next
CREATE TABLE {lane} (
  lane       INTEGER PRIMARY KEY CHECK (lane BETWEEN 1 AND 524287),
  queue      TEXT    NOT NULL,
  priority   INTEGER NOT NULL,
  shard      INTEGER NOT NULL,
  mark       INTEGER NOT NULL DEFAULT (abs(random() % 1000000000)),  -- tells it from one of the same number before a restore
  recheck_at INTEGER NOT NULL DEFAULT 0,  -- not before then; set by whoever rechecks
  cursor_id  INTEGER NOT NULL DEFAULT 0,  -- where somebody scanned: a new process starts here
  ready_seq  INTEGER NOT NULL DEFAULT 0 CHECK (ready_seq < 8796093022208),  -- the last number given to a job
  due_seq    INTEGER NOT NULL DEFAULT 0 CHECK (due_seq < 8796093022208),    -- pushed ready, and to a delayed one
  UNIQUE (queue, priority, shard)
)
-- next
CREATE TABLE {node} (
  id   INTEGER PRIMARY KEY,   -- random
  name TEXT NOT NULL UNIQUE
)
-- next
-- Live jobs only: its size is the backlog, and the 16 rows below. All times are
-- microseconds since the epoch. The id is lane << 43 | sequence, with bit 62 set
-- for jobs that were pushed with a due time, so that the ready jobs of a lane
-- lie together and in their order. A job keeps its id for ever; lane tells where
-- it is now: lane > 0 holds the ready side of a lane, -lane the due side.
-- Claiming changes no indexed column, and no width either: the four columns that
-- it sets are stored in as many bytes before and after (the defaults are "none"),
-- so that the row is overwritten in its place.
CREATE TABLE {job} (
  id           INTEGER PRIMARY KEY,
  lane         INTEGER NOT NULL,
  lease_until  INTEGER NOT NULL DEFAULT -4611686018427387904,
  token        INTEGER NOT NULL DEFAULT -4611686018427387904,
  node         INTEGER NOT NULL DEFAULT -1073741824,
  attempt      INTEGER NOT NULL DEFAULT 0,
  max_attempts INTEGER NOT NULL,
  created_at   INTEGER NOT NULL,
  lease_ms     INTEGER NOT NULL DEFAULT 0,   -- the job's own lease time; 0: none
  run_at       INTEGER,                      -- when it is due; set on the due side only
  kind         TEXT    NOT NULL,
  key_queue    TEXT,                         -- the job's queue, if it has a unique key
  unique_key   TEXT    NOT NULL DEFAULT '',
  headers      TEXT    NOT NULL DEFAULT '',  -- JSON object
  errors       TEXT    NOT NULL DEFAULT '',  -- JSON array, one entry per failed attempt
  payload      BLOB    NOT NULL,
  CHECK ((lane < 0) = (run_at IS NOT NULL)),
  CHECK ((key_queue IS NULL) = (unique_key = ''))
)
-- next
CREATE INDEX {schema}.{bare_job_due} ON {bare_job} (run_at, lane) WHERE run_at IS NOT NULL
-- next
CREATE INDEX {schema}.{bare_job_side} ON {bare_job} (lane) WHERE run_at IS NOT NULL
-- next
CREATE UNIQUE INDEX {schema}.{bare_job_key} ON {bare_job} (key_queue, unique_key) WHERE key_queue IS NOT NULL
-- next
-- Ballast, no jobs: when ANALYZE has recorded that a table holds fewer than ten
-- rows, SQLite reads the whole of it instead of seeking, also later, when it
-- holds a million.
INSERT INTO {job} (id, lane, max_attempts, created_at, kind, payload)
WITH RECURSIVE n (i) AS (SELECT -16 UNION ALL SELECT i + 1 FROM n WHERE i < -1)
SELECT i, 0, 0, 0, 'ballast', x'' FROM n
-- next
CREATE TABLE {push} (
  push_id    TEXT PRIMARY KEY NOT NULL,
  created_at INTEGER NOT NULL,
  digest     TEXT NOT NULL,
  result     TEXT NOT NULL
)
-- next
CREATE INDEX {schema}.{bare_push_created} ON {bare_push} (created_at)
-- next
CREATE TABLE {archive} (
  id           INTEGER PRIMARY KEY,
  finished_at  INTEGER NOT NULL,
  created_at   INTEGER NOT NULL,
  state        INTEGER NOT NULL CHECK (state IN (1, 2, 3)),  -- 1 done, 2 dead, 3 cancelled
  priority     INTEGER NOT NULL,
  attempt      INTEGER NOT NULL,
  max_attempts INTEGER NOT NULL,
  node         INTEGER NOT NULL,
  lease_ms     INTEGER NOT NULL,
  queue        TEXT    NOT NULL,
  kind         TEXT    NOT NULL,
  unique_key   TEXT    NOT NULL,
  headers      TEXT    NOT NULL,
  errors       TEXT    NOT NULL,
  payload      BLOB    NOT NULL
)
-- next
CREATE INDEX {schema}.{bare_archive_state} ON {bare_archive} (state, queue, finished_at)
-- next
CREATE INDEX {schema}.{bare_archive_age} ON {bare_archive} (finished_at)
