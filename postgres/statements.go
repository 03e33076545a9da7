package postgres

import (
	"database/sql"
	"fmt"
	"hash/fnv"

	"github.com/jmoiron/sqlx"
	"github.com/sqlqueue/queue/dialect"
)

// Columns of dialect.JobRow.
const (
	liveColumns = `j.lane, j.id, l.queue, l.priority, j.kind,
  CASE WHEN j.lease_until > statement_timestamp() THEN 'running' WHEN j.run_at > statement_timestamp() THEN 'delayed' ELSE 'ready' END AS state,
  j.attempt, j.max_attempts, coalesce(j.lease_ms, 0) AS lease_ms,
  {micros_1}(j.created_at) AS created_at, coalesce({micros_1}(j.run_at), 0) AS run_at,
  {micros_1}(j.lease_until) AS leased_until, 0 AS finished_at,
  coalesce((SELECT n.name FROM {node} AS n WHERE n.id = j.node), '') AS node,
  coalesce(j.unique_key, '') AS unique_key, coalesce(j.headers, '') AS headers, coalesce(j.errors, '') AS errors, j.payload`
	archivedColumns = `0 AS lane, a.id, a.queue, a.priority, a.kind,
  CASE a.state WHEN 1 THEN 'done' WHEN 2 THEN 'dead' ELSE 'cancelled' END AS state,
  a.attempt, a.max_attempts, coalesce(a.lease_ms, 0) AS lease_ms,
  {micros_1}(a.created_at) AS created_at, 0 AS run_at, 0 AS leased_until, {micros_1}(a.finished_at) AS finished_at,
  coalesce((SELECT n.name FROM {node} AS n WHERE n.id = a.node), '') AS node,
  coalesce(a.unique_key, '') AS unique_key, coalesce(a.headers, '') AS headers, coalesce(a.errors, '') AS errors, a.payload`
	// Both sides of every lane of the queue that :lane belongs to.
	find = `SELECT ` + liveColumns + `
FROM {job} AS j JOIN {lane} AS l ON l.lane = abs(j.lane)
WHERE j.lane = ANY (ARRAY(
    SELECT x.lane * side FROM {lane} AS x CROSS JOIN (VALUES (1), (-1)) AS sides (side)
    WHERE x.queue = (SELECT o.queue FROM {lane} AS o WHERE o.lane = :lane)))
  AND j.id = :id`
	micros = `timestamptz 'epoch' + CAST(%s AS bigint) * interval '1 microsecond'`

	findLane = `SELECT lane, queue, priority, shard, cursor_id FROM {lane}
WHERE queue = :queue AND priority = :priority AND shard = :shard`
)

func at(param string) string { return fmt.Sprintf(micros, param) }

func statements(render func(string) string, ns dialect.Namespace) dialect.Statements {
	lock := fnv.New64a()
	fmt.Fprintf(lock, "sqlqueue migration %s.%s", ns.Schema, ns.Prefix)
	return dialect.Statements{
		TxOptions:     dialect.TxOptions{Isolation: sql.LevelReadCommitted},
		Bind:          sqlx.DOLLAR,
		LockMigration: fmt.Sprintf(`SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0; SELECT pg_advisory_xact_lock(%d)`, int64(lock.Sum64())),

		HasSchema: render(`SELECT count(*) AS n FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = '` + ns.Schema + `' AND c.relname = '` + ns.Prefix + `meta'`),
		Version: render(`SELECT version, min_code FROM {meta}`),
		SetVersion: render(`INSERT INTO {meta} (one, version, min_code) VALUES (1, :version, :min_code)
ON CONFLICT (one) DO UPDATE SET version = excluded.version, min_code = excluded.min_code`),

		CatalogState: render(`SELECT l.lanes, m.catalog + l.marks AS version
FROM {meta} AS m, (SELECT count(*) AS lanes, coalesce(sum(mark), 0) AS marks FROM {lane}) AS l`),
		BumpCatalog: render(`UPDATE {meta} SET catalog = catalog + 1`),
		Lanes:       render(`SELECT lane, queue, priority, shard, cursor_id FROM {lane}`),
		Queues:      render(`SELECT name, CAST(paused AS integer) AS paused, shards, keep, max_backlog FROM {queue}`),
		AddLane: render(`INSERT INTO {lane} (queue, priority, shard) VALUES (:queue, :priority, :shard)
ON CONFLICT (queue, priority, shard) DO NOTHING`),
		FindLane:    render(findLane),
		FindNewLane: render(findLane),
		AddQueue:    render(`INSERT INTO {queue} (name) VALUES (:name) ON CONFLICT (name) DO NOTHING`),
		SetQueue: render(`UPDATE {queue} SET
  paused = coalesce(CAST(:paused AS integer), CAST(paused AS integer)) = 1,
  shards = coalesce(CAST(:shards AS integer), shards),
  keep = coalesce(CAST(:keep AS integer), keep),
  max_backlog = coalesce(CAST(:max_backlog AS bigint), max_backlog)
WHERE name = :name`),
		AddNode:  render(`INSERT INTO {node} (id, name) VALUES (:id, :name) ON CONFLICT DO NOTHING`),
		FindNode: render(`SELECT id FROM {node} WHERE name = :name`),

		// A skip scan: one probe of the key per lane that holds rows.
		Occupied: render(`WITH RECURSIVE o AS (
  (SELECT lane FROM {job} WHERE lane > 0 ORDER BY lane LIMIT 1)
  UNION ALL
  SELECT (SELECT j.lane FROM {job} AS j WHERE j.lane > o.lane ORDER BY j.lane LIMIT 1) FROM o WHERE o.lane IS NOT NULL
), d AS (
  SELECT lane FROM {job} WHERE run_at <= statement_timestamp() AND lease_until <= statement_timestamp()
  ORDER BY run_at, lane, id LIMIT CAST(:limit AS bigint)
)
SELECT lane FROM o WHERE lane IS NOT NULL
UNION ALL
SELECT DISTINCT lane FROM d
UNION ALL
SELECT 0 WHERE (SELECT count(*) FROM d) >= CAST(:limit AS bigint)`),

		Find:         render(find),
		FindLocked:   render(find + ` FOR UPDATE OF j SKIP LOCKED`),
		FindArchived: render(`SELECT ` + archivedColumns + ` FROM {archive} AS a WHERE a.id = :id ORDER BY a.finished_at DESC LIMIT 1`),
		Page: render(`SELECT * FROM (
  SELECT ` + liveColumns + `
  FROM {job} AS j JOIN {lane} AS l ON l.lane = abs(j.lane)
  WHERE (j.lane, j.id) > (CAST(:after_lane AS integer), CAST(:after_id AS bigint))
    AND j.lane BETWEEN CAST(:lane_from AS integer) AND CAST(:lane_to AS integer)) AS page
WHERE (CAST(:state AS text) = '' OR state = :state) AND (CAST(:kind AS text) = '' OR kind = :kind)
ORDER BY lane, id LIMIT :limit`),
		PageArchive: render(`SELECT ` + archivedColumns + `
FROM {archive} AS a
WHERE (a.id, a.finished_at) > (CAST(:after_id AS bigint), ` + at(":after_at") + `)
  AND (CAST(:queue AS text) = '' OR a.queue = :queue) AND (CAST(:state AS integer) = 0 OR a.state = :state)
  AND (CAST(:kind AS text) = '' OR a.kind = :kind)
ORDER BY a.id, a.finished_at LIMIT :limit`),

		CountLane: render(`SELECT count(*) FILTER (WHERE state = 1) AS ready, count(*) FILTER (WHERE state = 2) AS delayed,
  count(*) FILTER (WHERE state = 3) AS running, CAST(coalesce(extract(epoch FROM statement_timestamp() - min(since) FILTER (WHERE state = 1)) * 1000000, 0) AS bigint) AS age
FROM (
  SELECT CASE WHEN lease_until > statement_timestamp() THEN 3 WHEN run_at > statement_timestamp() THEN 2 ELSE 1 END AS state,
    coalesce(run_at, created_at) AS since
  FROM {job} WHERE lane = :lane ORDER BY lane, id LIMIT :limit) AS rows`),
		// A sample of pages, about a thousand of them.
		EstimateLane: render(`SELECT CAST(count(*) * greatest(1, size.pages / 1000.0) AS bigint) AS n
FROM (SELECT pg_relation_size('{job}') / CAST(current_setting('block_size') AS integer) AS pages) AS size,
  {job} AS j TABLESAMPLE SYSTEM (100 * least(1, 1000.0 / greatest(1, (SELECT pg_relation_size('{job}') / CAST(current_setting('block_size') AS integer)))))
WHERE j.lane = :lane GROUP BY size.pages`),
		CountBacklog: render(`SELECT count(*) AS n FROM (SELECT 1 FROM {job} WHERE lane = :lane LIMIT :limit) AS rows`),
		CountArchive: render(`SELECT count(*) AS n FROM (SELECT 1 FROM {archive} WHERE state = :state AND queue = :queue LIMIT :limit) AS rows`),

		Move: render(`UPDATE {job} SET lane = :to_lane, lease_until = '-infinity', token = 0, node = 0,
  run_at = greatest(statement_timestamp(), CASE WHEN CAST(:run_at AS bigint) = 0
    THEN statement_timestamp() + CAST(:delay AS bigint) * interval '1 microsecond' ELSE ` + at(":run_at") + ` END)
WHERE lane = :lane AND id = :id`),
		Delete: render(`DELETE FROM {job} WHERE lane = :lane AND id = :id`),
		ToArchive: render(`INSERT INTO {archive} (id, finished_at, created_at, state, priority, attempt, max_attempts, node,
  lease_ms, queue, kind, unique_key, headers, errors, payload)
SELECT j.id, statement_timestamp(), j.created_at, :state, l.priority, j.attempt, j.max_attempts, j.node,
  j.lease_ms, l.queue, j.kind, j.unique_key, j.headers, coalesce(nullif(CAST(:errors AS text), ''), j.errors), j.payload
FROM {job} AS j JOIN {lane} AS l ON l.lane = abs(j.lane) WHERE j.lane = :lane AND j.id = :id`),
		FreeKey: render(`DELETE FROM {key} WHERE queue = :queue AND key = :key AND job_id = :id`),
		TakeKey: render(`INSERT INTO {key} (queue, key, job_id) VALUES (:queue, :key, :id) ON CONFLICT (queue, key) DO NOTHING`),

		NodeJobs: render(`SELECT lane, coalesce({micros_1}(run_at), 0) AS run_at, id, token, attempt FROM {job}
WHERE (lane, id) > (CAST(:after_lane AS integer), CAST(:after_id AS bigint))
  AND node = :node AND lease_until > statement_timestamp()
ORDER BY lane, id LIMIT :limit`),

		LockDead: render(`SELECT ` + archivedColumns + ` FROM {archive} AS a
WHERE a.state = 2 AND (CAST(:id AS bigint) = 0 OR a.id = :id) AND (CAST(:queue AS text) = '' OR a.queue = :queue)
  AND (CAST(:kind AS text) = '' OR a.kind = :kind)
  AND (a.queue, a.finished_at, a.id) > (CAST(:after_queue AS text), ` + at(":after_at") + `, CAST(:after_id AS bigint))
ORDER BY a.queue, a.finished_at, a.id LIMIT :limit FOR UPDATE OF a SKIP LOCKED`),
		Restore: render(`INSERT INTO {job} (lane, id, created_at, run_at, max_attempts, lease_ms, kind, unique_key, headers, errors, payload)
SELECT :lane, id, created_at, statement_timestamp(), max_attempts, lease_ms, kind, unique_key, headers, errors, payload
FROM {archive} WHERE id = :id AND finished_at = ` + at(":finished_at")),
		DropArchived: render(`DELETE FROM {archive} WHERE id = :id AND finished_at = ` + at(":finished_at")),
		Purge: render(`DELETE FROM {archive} WHERE ctid = ANY (ARRAY(
  SELECT ctid FROM {archive}
  WHERE finished_at < statement_timestamp() - CAST(:age AS bigint) * interval '1 microsecond'
    AND (CAST(:state AS integer) = 0 OR state = :state)
    AND (CAST(:queue AS text) = '' OR queue = :queue)
  ORDER BY finished_at LIMIT :limit FOR UPDATE SKIP LOCKED))`),

		AddPush:  render(`INSERT INTO {push} (push_id, digest, result) VALUES (:push_id, :digest, '') ON CONFLICT (push_id) DO NOTHING`),
		SetPush:  render(`UPDATE {push} SET result = :result WHERE push_id = :push_id`),
		FindPush: render(`SELECT digest, result FROM {push} WHERE push_id = :push_id`),
		PurgePushes: render(`DELETE FROM {push} WHERE ctid = ANY (ARRAY(
  SELECT ctid FROM {push} WHERE created_at < statement_timestamp() - CAST(:age AS bigint) * interval '1 microsecond'
  ORDER BY created_at LIMIT :limit FOR UPDATE SKIP LOCKED))`),
	}
}
