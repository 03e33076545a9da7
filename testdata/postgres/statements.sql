-- push
SELECT id, duplicate FROM "public"."queue_push_1"($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13);

-- claim
SELECT step, lane, id, run_at, created_at, lease_until, attempt, max_attempts, kind, unique_key, headers, errors, payload
FROM "public"."queue_claim_1"($1, $2, $3, $4, $5, $6, $7, $8, $9, $10);

-- ack
SELECT id, 1 FROM "public"."queue_ack_1"($1, $2, $3, $4) AS id;

-- archive
SELECT id, 1 FROM "public"."queue_archive_1"($1, $2, $3, $4, $5) AS id;

-- giveBack
SELECT id, 1 FROM "public"."queue_return_1"($1, $2, $3, $4, $5, $6) AS id;

-- extend
SELECT id, outcome FROM "public"."queue_extend_1"($1, $2, $3, $4);

-- LockMigration
SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0; SELECT pg_advisory_xact_lock(9156915141555949095);

-- HasSchema
SELECT count(*) AS n FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = 'public' AND c.relname = 'queue_meta';

-- Version
SELECT version, min_code FROM "public"."queue_meta";

-- SetVersion
INSERT INTO "public"."queue_meta" (one, version, min_code) VALUES (1, :version, :min_code)
ON CONFLICT (one) DO UPDATE SET version = excluded.version, min_code = excluded.min_code;

-- CatalogState
SELECT l.lanes, m.catalog + l.marks AS version
FROM "public"."queue_meta" AS m, (SELECT count(*) AS lanes, coalesce(sum(mark), 0) AS marks FROM "public"."queue_lane") AS l;

-- BumpCatalog
UPDATE "public"."queue_meta" SET catalog = catalog + 1;

-- Lanes
SELECT lane, queue, priority, shard, cursor_id FROM "public"."queue_lane";

-- Queues
SELECT name, CAST(paused AS integer) AS paused, shards, keep, max_backlog FROM "public"."queue_queue";

-- AddLane
INSERT INTO "public"."queue_lane" (queue, priority, shard) VALUES (:queue, :priority, :shard)
ON CONFLICT (queue, priority, shard) DO NOTHING;

-- FindLane
SELECT lane, queue, priority, shard, cursor_id FROM "public"."queue_lane"
WHERE queue = :queue AND priority = :priority AND shard = :shard;

-- FindNewLane
SELECT lane, queue, priority, shard, cursor_id FROM "public"."queue_lane"
WHERE queue = :queue AND priority = :priority AND shard = :shard;

-- AddQueue
INSERT INTO "public"."queue_queue" (name) VALUES (:name) ON CONFLICT (name) DO NOTHING;

-- SetQueue
UPDATE "public"."queue_queue" SET
  paused = coalesce(CAST(:paused AS integer), CAST(paused AS integer)) = 1,
  shards = coalesce(CAST(:shards AS integer), shards),
  keep = coalesce(CAST(:keep AS integer), keep),
  max_backlog = coalesce(CAST(:max_backlog AS bigint), max_backlog)
WHERE name = :name;

-- AddNode
INSERT INTO "public"."queue_node" (id, name) VALUES (:id, :name) ON CONFLICT DO NOTHING;

-- FindNode
SELECT id FROM "public"."queue_node" WHERE name = :name;

-- Occupied
WITH RECURSIVE o AS (
  (SELECT lane FROM "public"."queue_job" WHERE lane > 0 ORDER BY lane LIMIT 1)
  UNION ALL
  SELECT (SELECT j.lane FROM "public"."queue_job" AS j WHERE j.lane > o.lane ORDER BY j.lane LIMIT 1) FROM o WHERE o.lane IS NOT NULL
), d AS (
  SELECT lane FROM "public"."queue_job" WHERE run_at <= statement_timestamp() AND lease_until <= statement_timestamp()
  ORDER BY run_at, lane, id LIMIT CAST(:limit AS bigint)
)
SELECT lane FROM o WHERE lane IS NOT NULL
UNION ALL
SELECT DISTINCT lane FROM d
UNION ALL
SELECT 0 WHERE (SELECT count(*) FROM d) >= CAST(:limit AS bigint);

-- Find
SELECT j.lane, j.id, l.queue, l.priority, j.kind,
  CASE WHEN j.lease_until > statement_timestamp() THEN 'running' WHEN j.run_at > statement_timestamp() THEN 'delayed' ELSE 'ready' END AS state,
  j.attempt, j.max_attempts, coalesce(j.lease_ms, 0) AS lease_ms,
  "public"."queue_micros_1"(j.created_at) AS created_at, coalesce("public"."queue_micros_1"(j.run_at), 0) AS run_at,
  "public"."queue_micros_1"(j.lease_until) AS leased_until, 0 AS finished_at,
  coalesce((SELECT n.name FROM "public"."queue_node" AS n WHERE n.id = j.node), '') AS node,
  coalesce(j.unique_key, '') AS unique_key, coalesce(j.headers, '') AS headers, coalesce(j.errors, '') AS errors, j.payload
FROM "public"."queue_job" AS j JOIN "public"."queue_lane" AS l ON l.lane = abs(j.lane)
WHERE j.lane = ANY (ARRAY(
    SELECT x.lane * side FROM "public"."queue_lane" AS x CROSS JOIN (VALUES (1), (-1)) AS sides (side)
    WHERE x.queue = (SELECT o.queue FROM "public"."queue_lane" AS o WHERE o.lane = :lane)))
  AND j.id = :id;

-- FindLocked
SELECT j.lane, j.id, l.queue, l.priority, j.kind,
  CASE WHEN j.lease_until > statement_timestamp() THEN 'running' WHEN j.run_at > statement_timestamp() THEN 'delayed' ELSE 'ready' END AS state,
  j.attempt, j.max_attempts, coalesce(j.lease_ms, 0) AS lease_ms,
  "public"."queue_micros_1"(j.created_at) AS created_at, coalesce("public"."queue_micros_1"(j.run_at), 0) AS run_at,
  "public"."queue_micros_1"(j.lease_until) AS leased_until, 0 AS finished_at,
  coalesce((SELECT n.name FROM "public"."queue_node" AS n WHERE n.id = j.node), '') AS node,
  coalesce(j.unique_key, '') AS unique_key, coalesce(j.headers, '') AS headers, coalesce(j.errors, '') AS errors, j.payload
FROM "public"."queue_job" AS j JOIN "public"."queue_lane" AS l ON l.lane = abs(j.lane)
WHERE j.lane = ANY (ARRAY(
    SELECT x.lane * side FROM "public"."queue_lane" AS x CROSS JOIN (VALUES (1), (-1)) AS sides (side)
    WHERE x.queue = (SELECT o.queue FROM "public"."queue_lane" AS o WHERE o.lane = :lane)))
  AND j.id = :id FOR UPDATE OF j SKIP LOCKED;

-- FindArchived
SELECT 0 AS lane, a.id, a.queue, a.priority, a.kind,
  CASE a.state WHEN 1 THEN 'done' WHEN 2 THEN 'dead' ELSE 'cancelled' END AS state,
  a.attempt, a.max_attempts, coalesce(a.lease_ms, 0) AS lease_ms,
  "public"."queue_micros_1"(a.created_at) AS created_at, 0 AS run_at, 0 AS leased_until, "public"."queue_micros_1"(a.finished_at) AS finished_at,
  coalesce((SELECT n.name FROM "public"."queue_node" AS n WHERE n.id = a.node), '') AS node,
  coalesce(a.unique_key, '') AS unique_key, coalesce(a.headers, '') AS headers, coalesce(a.errors, '') AS errors, a.payload FROM "public"."queue_archive" AS a WHERE a.id = :id ORDER BY a.finished_at DESC LIMIT 1;

-- Page
SELECT * FROM (
  SELECT j.lane, j.id, l.queue, l.priority, j.kind,
  CASE WHEN j.lease_until > statement_timestamp() THEN 'running' WHEN j.run_at > statement_timestamp() THEN 'delayed' ELSE 'ready' END AS state,
  j.attempt, j.max_attempts, coalesce(j.lease_ms, 0) AS lease_ms,
  "public"."queue_micros_1"(j.created_at) AS created_at, coalesce("public"."queue_micros_1"(j.run_at), 0) AS run_at,
  "public"."queue_micros_1"(j.lease_until) AS leased_until, 0 AS finished_at,
  coalesce((SELECT n.name FROM "public"."queue_node" AS n WHERE n.id = j.node), '') AS node,
  coalesce(j.unique_key, '') AS unique_key, coalesce(j.headers, '') AS headers, coalesce(j.errors, '') AS errors, j.payload
  FROM "public"."queue_job" AS j JOIN "public"."queue_lane" AS l ON l.lane = abs(j.lane)
  WHERE (j.lane, j.id) > (CAST(:after_lane AS integer), CAST(:after_id AS bigint))
    AND j.lane BETWEEN CAST(:lane_from AS integer) AND CAST(:lane_to AS integer)) AS page
WHERE (CAST(:state AS text) = '' OR state = :state) AND (CAST(:kind AS text) = '' OR kind = :kind)
ORDER BY lane, id LIMIT :limit;

-- PageArchive
SELECT 0 AS lane, a.id, a.queue, a.priority, a.kind,
  CASE a.state WHEN 1 THEN 'done' WHEN 2 THEN 'dead' ELSE 'cancelled' END AS state,
  a.attempt, a.max_attempts, coalesce(a.lease_ms, 0) AS lease_ms,
  "public"."queue_micros_1"(a.created_at) AS created_at, 0 AS run_at, 0 AS leased_until, "public"."queue_micros_1"(a.finished_at) AS finished_at,
  coalesce((SELECT n.name FROM "public"."queue_node" AS n WHERE n.id = a.node), '') AS node,
  coalesce(a.unique_key, '') AS unique_key, coalesce(a.headers, '') AS headers, coalesce(a.errors, '') AS errors, a.payload
FROM "public"."queue_archive" AS a
WHERE (a.id, a.finished_at) > (CAST(:after_id AS bigint), timestamptz 'epoch' + CAST(:after_at AS bigint) * interval '1 microsecond')
  AND (CAST(:queue AS text) = '' OR a.queue = :queue) AND (CAST(:state AS integer) = 0 OR a.state = :state)
  AND (CAST(:kind AS text) = '' OR a.kind = :kind)
ORDER BY a.id, a.finished_at LIMIT :limit;

-- CountLane
SELECT count(*) FILTER (WHERE state = 1) AS ready, count(*) FILTER (WHERE state = 2) AS delayed,
  count(*) FILTER (WHERE state = 3) AS running, CAST(coalesce(extract(epoch FROM statement_timestamp() - min(since) FILTER (WHERE state = 1)) * 1000000, 0) AS bigint) AS age
FROM (
  SELECT CASE WHEN lease_until > statement_timestamp() THEN 3 WHEN run_at > statement_timestamp() THEN 2 ELSE 1 END AS state,
    coalesce(run_at, created_at) AS since
  FROM "public"."queue_job" WHERE lane = :lane ORDER BY lane, id LIMIT :limit) AS rows;

-- EstimateLane
SELECT CAST(count(*) * greatest(1, size.pages / 1000.0) AS bigint) AS n
FROM (SELECT pg_relation_size('"public"."queue_job"') / CAST(current_setting('block_size') AS integer) AS pages) AS size,
  "public"."queue_job" AS j TABLESAMPLE SYSTEM (100 * least(1, 1000.0 / greatest(1, (SELECT pg_relation_size('"public"."queue_job"') / CAST(current_setting('block_size') AS integer)))))
WHERE j.lane = :lane GROUP BY size.pages;

-- CountBacklog
SELECT count(*) AS n FROM (SELECT 1 FROM "public"."queue_job" WHERE lane = :lane LIMIT :limit) AS rows;

-- CountArchive
SELECT count(*) AS n FROM (SELECT 1 FROM "public"."queue_archive" WHERE state = :state AND queue = :queue LIMIT :limit) AS rows;

-- Move
UPDATE "public"."queue_job" SET lane = :to_lane, lease_until = '-infinity', token = 0, node = 0,
  run_at = greatest(statement_timestamp(), CASE WHEN CAST(:run_at AS bigint) = 0
    THEN statement_timestamp() + CAST(:delay AS bigint) * interval '1 microsecond' ELSE timestamptz 'epoch' + CAST(:run_at AS bigint) * interval '1 microsecond' END)
WHERE lane = :lane AND id = :id;

-- Delete
DELETE FROM "public"."queue_job" WHERE lane = :lane AND id = :id;

-- ToArchive
INSERT INTO "public"."queue_archive" (id, finished_at, created_at, state, priority, attempt, max_attempts, node,
  lease_ms, queue, kind, unique_key, headers, errors, payload)
SELECT j.id, statement_timestamp(), j.created_at, :state, l.priority, j.attempt, j.max_attempts, j.node,
  j.lease_ms, l.queue, j.kind, j.unique_key, j.headers, coalesce(nullif(CAST(:errors AS text), ''), j.errors), j.payload
FROM "public"."queue_job" AS j JOIN "public"."queue_lane" AS l ON l.lane = abs(j.lane) WHERE j.lane = :lane AND j.id = :id;

-- FreeKey
DELETE FROM "public"."queue_key" WHERE queue = :queue AND key = :key AND job_id = :id;

-- TakeKey
INSERT INTO "public"."queue_key" (queue, key, job_id) VALUES (:queue, :key, :id) ON CONFLICT (queue, key) DO NOTHING;

-- NodeJobs
SELECT lane, coalesce("public"."queue_micros_1"(run_at), 0) AS run_at, id, token, attempt FROM "public"."queue_job"
WHERE (lane, id) > (CAST(:after_lane AS integer), CAST(:after_id AS bigint))
  AND node = :node AND lease_until > statement_timestamp()
ORDER BY lane, id LIMIT :limit;

-- LockDead
SELECT 0 AS lane, a.id, a.queue, a.priority, a.kind,
  CASE a.state WHEN 1 THEN 'done' WHEN 2 THEN 'dead' ELSE 'cancelled' END AS state,
  a.attempt, a.max_attempts, coalesce(a.lease_ms, 0) AS lease_ms,
  "public"."queue_micros_1"(a.created_at) AS created_at, 0 AS run_at, 0 AS leased_until, "public"."queue_micros_1"(a.finished_at) AS finished_at,
  coalesce((SELECT n.name FROM "public"."queue_node" AS n WHERE n.id = a.node), '') AS node,
  coalesce(a.unique_key, '') AS unique_key, coalesce(a.headers, '') AS headers, coalesce(a.errors, '') AS errors, a.payload FROM "public"."queue_archive" AS a
WHERE a.state = 2 AND (CAST(:id AS bigint) = 0 OR a.id = :id) AND (CAST(:queue AS text) = '' OR a.queue = :queue)
  AND (CAST(:kind AS text) = '' OR a.kind = :kind)
  AND (a.queue, a.finished_at, a.id) > (CAST(:after_queue AS text), timestamptz 'epoch' + CAST(:after_at AS bigint) * interval '1 microsecond', CAST(:after_id AS bigint))
ORDER BY a.queue, a.finished_at, a.id LIMIT :limit FOR UPDATE OF a SKIP LOCKED;

-- Restore
INSERT INTO "public"."queue_job" (lane, id, created_at, run_at, max_attempts, lease_ms, kind, unique_key, headers, errors, payload)
SELECT :lane, id, created_at, statement_timestamp(), max_attempts, lease_ms, kind, unique_key, headers, errors, payload
FROM "public"."queue_archive" WHERE id = :id AND finished_at = timestamptz 'epoch' + CAST(:finished_at AS bigint) * interval '1 microsecond';

-- DropArchived
DELETE FROM "public"."queue_archive" WHERE id = :id AND finished_at = timestamptz 'epoch' + CAST(:finished_at AS bigint) * interval '1 microsecond';

-- Purge
DELETE FROM "public"."queue_archive" WHERE ctid = ANY (ARRAY(
  SELECT ctid FROM "public"."queue_archive"
  WHERE finished_at < statement_timestamp() - CAST(:age AS bigint) * interval '1 microsecond'
    AND (CAST(:state AS integer) = 0 OR state = :state)
    AND (CAST(:queue AS text) = '' OR queue = :queue)
  ORDER BY finished_at LIMIT :limit FOR UPDATE SKIP LOCKED));

-- AddPush
INSERT INTO "public"."queue_push" (push_id, digest, result) VALUES (:push_id, :digest, '') ON CONFLICT (push_id) DO NOTHING;

-- SetPush
UPDATE "public"."queue_push" SET result = :result WHERE push_id = :push_id;

-- FindPush
SELECT digest, result FROM "public"."queue_push" WHERE push_id = :push_id;

-- PurgePushes
DELETE FROM "public"."queue_push" WHERE ctid = ANY (ARRAY(
  SELECT ctid FROM "public"."queue_push" WHERE created_at < statement_timestamp() - CAST(:age AS bigint) * interval '1 microsecond'
  ORDER BY created_at LIMIT :limit FOR UPDATE SKIP LOCKED));

