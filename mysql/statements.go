package mysql

import (
	"database/sql"
	"fmt"
	"strings"

	"github.com/jmoiron/sqlx"

	"github.com/sqlqueue/queue/dialect"
)

// Columns of dialect.JobRow. Other tables are looked up by scalar subqueries,
// which a locking read leaves unlocked.
const (
	jobState    = `CASE WHEN j.lease_until > {now} THEN 'running' WHEN j.run_at > {now} THEN 'delayed' ELSE 'ready' END`
	liveColumns = `j.lane, (j.born << 43) + j.id AS id, (SELECT l.queue FROM {lane} AS l WHERE l.lane = ABS(j.lane)) AS queue,
  (SELECT l.priority FROM {lane} AS l WHERE l.lane = ABS(j.lane)) AS priority, j.kind, ` + jobState + ` AS state,
  j.attempt, j.max_attempts, j.lease_ms, j.created_at, j.run_at, j.lease_until AS leased_until, 0 AS finished_at,
  COALESCE((SELECT n.name FROM {node} AS n WHERE n.id = j.node), '') AS node,
  j.unique_key, COALESCE(j.headers, '') AS headers, COALESCE(j.errors, '') AS errors, j.payload`
	archivedColumns = `0 AS lane, a.id, a.queue, a.priority, a.kind,
  CASE a.state WHEN 1 THEN 'done' WHEN 2 THEN 'dead' ELSE 'cancelled' END AS state,
  a.attempt, a.max_attempts, a.lease_ms, a.created_at, 0 AS run_at, 0 AS leased_until, a.finished_at,
  COALESCE((SELECT n.name FROM {node} AS n WHERE n.id = a.node), '') AS node,
  a.unique_key, COALESCE(a.headers, '') AS headers, COALESCE(a.errors, '') AS errors, a.payload`

	// The id finds a live job wherever it is.
	find = `SELECT ` + liveColumns + ` FROM {job} AS j FORCE INDEX (by_id) WHERE j.id = :id & 8796093022207 AND j.born = :id >> 43`

	findLane = `SELECT lane, queue, priority, shard, cursor_id FROM {lane}
WHERE queue = :queue AND priority = :priority AND shard = :shard`
)

// walkLive returns a statement that walks live jobs in the order of the primary key,
// after (:after_lane, :after_run_at, :after_id). It is in three parts, each one
// range of the key: over several at once MariaDB would sort what it finds, and a
// comparison of the three columns as a row is a range for neither server.
func walkLive(columns, filter string) string {
	const text = `SELECT {columns} FROM (
  (SELECT j.lane, j.run_at, j.id FROM {job} AS j FORCE INDEX (PRIMARY)
    WHERE j.lane = :after_lane AND j.run_at = :after_run_at AND j.id > :after_id & 8796093022207 AND {filter}
    ORDER BY j.id LIMIT :limit)
  UNION ALL
  (SELECT j.lane, j.run_at, j.id FROM {job} AS j FORCE INDEX (PRIMARY)
    WHERE j.lane = :after_lane AND j.run_at > :after_run_at AND {filter}
    ORDER BY j.run_at, j.id LIMIT :limit)
  UNION ALL
  (SELECT j.lane, j.run_at, j.id FROM {job} AS j FORCE INDEX (PRIMARY)
    WHERE j.lane > :after_lane AND {filter}
    ORDER BY j.lane, j.run_at, j.id LIMIT :limit)
  ORDER BY lane, run_at, id LIMIT :limit) AS p
STRAIGHT_JOIN {job} AS j FORCE INDEX (PRIMARY) ON j.lane = p.lane AND j.run_at = p.run_at AND j.id = p.id
ORDER BY p.lane, p.run_at, p.id`
	return strings.NewReplacer("{columns}", columns, "{filter}", filter).Replace(text)
}

func (e *engine) allStatements() dialect.Statements {
	render := e.render
	schema := `DATABASE()`
	if e.ns.Schema != "" {
		schema = `'` + e.ns.Schema + `'` // letters, digits and _
	}
	lock := fmt.Sprintf(`SHA2(CONCAT('sqlqueue migration ', %s, '.%s'), 224)`, schema, e.ns.Prefix)
	return dialect.Statements{
		TxOptions: dialect.TxOptions{Isolation: sql.LevelReadCommitted},
		Bind:      sqlx.QUESTION,
		// DDL commits, so that a lock of the transaction's would not last. If the lock
		// cannot be had within a day this is an error, for its last part has two rows.
		LockMigration:   `SELECT CASE WHEN GET_LOCK(` + lock + `, 86400) = 1 THEN 1 ELSE (SELECT 1 UNION ALL SELECT 2) END`,
		UnlockMigration: `SELECT RELEASE_LOCK(` + lock + `)`,

		HasSchema: `SELECT COUNT(*) AS n FROM information_schema.TABLES WHERE TABLE_SCHEMA = ` + schema + ` AND TABLE_NAME = '` + e.ns.Prefix + `meta'`,
		Version:   render(`SELECT version, min_code FROM {meta}`),
		SetVersion: render(`INSERT INTO {meta} (one, version, min_code) VALUES (1, :version, :min_code)
ON DUPLICATE KEY UPDATE version = VALUES(version), min_code = VALUES(min_code)`),

		CatalogState: render(`SELECT l.lanes, CAST(m.catalog + l.marks AS SIGNED) AS version
FROM {meta} AS m, (SELECT COUNT(*) AS lanes, COALESCE(SUM(mark), 0) AS marks FROM {lane}) AS l`),
		BumpCatalog: render(`UPDATE {meta} SET catalog = catalog + 1 WHERE one = 1`),
		Lanes:       render(`SELECT lane, queue, priority, shard, cursor_id FROM {lane}`),
		Queues:      render(`SELECT name, paused, shards, keep, max_backlog FROM {queue}`),
		AddLane: render(`INSERT IGNORE INTO {lane} (queue, priority, shard, mark)
VALUES (:queue, :priority, :shard, FLOOR(RAND() * 1000000000))`),
		FindLane:    render(findLane),
		FindNewLane: render(findLane + ` LOCK IN SHARE MODE`),
		AddQueue:    render(`INSERT IGNORE INTO {queue} (name) VALUES (:name)`),
		SetQueue: render(`UPDATE {queue} SET paused = COALESCE(:paused, paused), shards = COALESCE(:shards, shards),
  keep = COALESCE(:keep, keep), max_backlog = COALESCE(:max_backlog, max_backlog)
WHERE name = :name`),
		AddNode:  render(`INSERT IGNORE INTO {node} (id, name) VALUES (:id, :name)`),
		FindNode: render(`SELECT id FROM {node} WHERE name = :name`),

		// A skip scan ("Using index for group-by"): two seeks per lane that holds
		// rows. A due side whose first row is to come is left out.
		Occupied: render(`SELECT o.lane FROM (
  SELECT lane, MIN(run_at) AS first_at FROM {job} FORCE INDEX (PRIMARY) GROUP BY lane) AS o
WHERE o.first_at <= {now}`),

		Find:       render(find),
		FindLocked: render(find + ` FOR UPDATE SKIP LOCKED`),
		FindArchived: render(`SELECT ` + archivedColumns + ` FROM {archive} AS a
WHERE a.id = :id ORDER BY a.finished_at DESC LIMIT 1`),
		Page: render(walkLive(liveColumns,
			`j.lane BETWEEN :lane_from AND :lane_to AND (:state = '' OR `+jobState+` = :state) AND (:kind = '' OR j.kind = :kind)`)),
		PageArchive: render(`SELECT ` + archivedColumns + ` FROM {archive} AS a FORCE INDEX (PRIMARY)
WHERE (a.id > :after_id OR a.id = :after_id AND a.finished_at > :after_at)
  AND (:queue = '' OR a.queue = :queue) AND (:state = 0 OR a.state = :state) AND (:kind = '' OR a.kind = :kind)
ORDER BY a.id, a.finished_at LIMIT :limit`),

		CountLane: render(`SELECT CAST(COALESCE(SUM(state = 1), 0) AS SIGNED) AS ` + "`ready`" + `, CAST(COALESCE(SUM(state = 2), 0) AS SIGNED) AS ` + "`delayed`" + `,
  CAST(COALESCE(SUM(state = 3), 0) AS SIGNED) AS ` + "`running`" + `, COALESCE({now} - MIN(CASE WHEN state = 1 THEN since END), 0) AS age
FROM (
  SELECT CASE WHEN lease_until > {now} THEN 3 WHEN run_at > {now} THEN 2 ELSE 1 END AS state,
    IF(run_at = 0, created_at, run_at) AS since
  FROM {job} FORCE INDEX (PRIMARY) WHERE lane = :lane ORDER BY run_at, id LIMIT :limit) AS counted`),
		// The optimizer looks into the index at both ends of the range.
		EstimateLane: render(`EXPLAIN SELECT id FROM {job} FORCE INDEX (PRIMARY) WHERE lane = :lane`),
		CountBacklog: render(`SELECT COUNT(*) AS n FROM (SELECT 1 FROM {job} FORCE INDEX (PRIMARY) WHERE lane = :lane LIMIT :limit) AS counted`),
		CountArchive: render(`SELECT COUNT(*) AS n FROM (
  SELECT 1 FROM {archive} FORCE INDEX (by_state) WHERE state = :state AND queue = :queue LIMIT :limit) AS counted`),

		Move: render(`UPDATE {job} FORCE INDEX (by_id) SET lane = :to_lane, lease_until = 0, token = 0, node = 0,
  run_at = GREATEST({now}, IF(:run_at = 0, {now} + :delay, :run_at))
WHERE id = :id & 8796093022207 AND born = :id >> 43 AND lane = :lane`),
		Delete: render(`DELETE j FROM {job} AS j FORCE INDEX (by_id)
WHERE j.id = :id & 8796093022207 AND j.born = :id >> 43 AND j.lane = :lane`),
		ToArchive: render(`INSERT INTO {archive} (` + archiveColumns + `)
SELECT (j.born << 43) + j.id, {now}, j.created_at, :state, l.priority, j.attempt, j.max_attempts, j.node,
  j.lease_ms, l.queue, j.kind, j.unique_key, j.headers, IF(:errors = '', j.errors, :errors), j.payload
FROM {job} AS j FORCE INDEX (by_id) STRAIGHT_JOIN {lane} AS l ON l.lane = ABS(j.lane)
WHERE j.id = :id & 8796093022207 AND j.born = :id >> 43 AND j.lane = :lane`),
		FreeKey: render(`DELETE FROM {key} WHERE queue = :queue AND unique_key = :key AND job_id = :id`),
		TakeKey: render(`INSERT IGNORE INTO {key} (queue, unique_key, job_id) VALUES (:queue, :key, :id)`),

		NodeJobs: render(walkLive(`j.lane, j.run_at, (j.born << 43) + j.id AS id, j.token, j.attempt`, `j.node = :node AND j.lease_until > {now}`)),

		LockDead: render(`SELECT ` + archivedColumns + ` FROM {archive} AS a FORCE INDEX (by_state)
WHERE a.state = 2 AND (a.queue > :after_queue
    OR a.queue = :after_queue AND a.finished_at > :after_at
    OR a.queue = :after_queue AND a.finished_at = :after_at AND a.id > :after_id)
  AND (:id = 0 OR a.id = :id) AND (:queue = '' OR a.queue = :queue) AND (:kind = '' OR a.kind = :kind)
ORDER BY a.queue, a.finished_at, a.id LIMIT :limit FOR UPDATE SKIP LOCKED`),
		Restore: render(`INSERT INTO {job} (lane, run_at, id, born, created_at, max_attempts, lease_ms, kind, unique_key, headers, errors, payload)
SELECT :lane, {now}, a.id & 8796093022207, a.id >> 43, a.created_at, a.max_attempts, a.lease_ms, a.kind, a.unique_key, a.headers, a.errors, a.payload
FROM {archive} AS a WHERE a.id = :id AND a.finished_at = :finished_at`),
		DropArchived: render(`DELETE FROM {archive} WHERE id = :id AND finished_at = :finished_at`),
		Purge: render(`DELETE a FROM (
  SELECT id, finished_at FROM {archive} FORCE INDEX (by_age)
  WHERE finished_at <= {now} - :age AND (:state = 0 OR state = :state) AND (:queue = '' OR queue = :queue)
  ORDER BY finished_at LIMIT :limit FOR UPDATE SKIP LOCKED) AS old
STRAIGHT_JOIN {archive} AS a FORCE INDEX (PRIMARY) ON a.id = old.id AND a.finished_at = old.finished_at`),

		AddPush: render(`INSERT IGNORE INTO {push} (push_id, created_at, digest, result) VALUES (:push_id, {now}, :digest, '')`),
		SetPush: render(`UPDATE {push} SET result = :result WHERE push_id = :push_id`),
		// Latest, not as of the snapshot: it is asked after AddPush waited for its end.
		FindPush: render(`SELECT digest, result FROM {push} WHERE push_id = :push_id LOCK IN SHARE MODE`),
		PurgePushes: render(`DELETE p FROM (
  SELECT push_id FROM {push} FORCE INDEX (by_age) WHERE created_at <= {now} - :age
  ORDER BY created_at LIMIT :limit FOR UPDATE SKIP LOCKED) AS old
STRAIGHT_JOIN {push} AS p FORCE INDEX (PRIMARY) ON p.push_id = old.push_id`),
	}
}
