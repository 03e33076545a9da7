package sqlite

import (
	"strings"

	"github.com/jmoiron/sqlx"
	"github.com/sqlqueue/queue/dialect"
)

// Columns of dialect.JobRow. Other tables are looked up by scalar subqueries: a
// seek by key, whatever statistics say.
const (
	jobState    = `CASE WHEN j.lease_until >= {now} THEN 'running' WHEN j.run_at > {now} THEN 'delayed' ELSE 'ready' END`
	liveColumns = `j.lane, j.id, (SELECT l.queue FROM {lane} AS l WHERE l.lane = abs(j.lane)) AS queue,
    (SELECT l.priority FROM {lane} AS l WHERE l.lane = abs(j.lane)) AS priority, j.kind, ` + jobState + ` AS state,
    j.attempt, j.max_attempts, j.lease_ms, j.created_at, coalesce(j.run_at, 0) AS run_at,
    max(j.lease_until, 0) AS leased_until, 0 AS finished_at,
    coalesce((SELECT n.name FROM {node} AS n WHERE n.id = j.node), '') AS node,
    j.unique_key, j.headers, j.errors, j.payload`
	archivedColumns = `0 AS lane, a.id, a.queue, a.priority, a.kind,
  CASE a.state WHEN 1 THEN 'done' WHEN 2 THEN 'dead' ELSE 'cancelled' END AS state,
  a.attempt, a.max_attempts, a.lease_ms, a.created_at, 0 AS run_at, 0 AS leased_until, a.finished_at,
  coalesce((SELECT n.name FROM {node} AS n WHERE n.id = a.node), '') AS node,
  a.unique_key, a.headers, a.errors, a.payload`

	// The id finds a live job wherever it is.
	find = `SELECT ` + liveColumns + ` FROM {job} AS j WHERE j.id = :id AND j.lane <> 0`

	findLane = `SELECT lane, queue, priority, shard, cursor_id FROM {lane}
WHERE queue = :queue AND priority = :priority AND shard = :shard`
)

// live returns a statement that walks live jobs in the order of (lane, id), in
// three parts that each begin with a seek: the rest of the due side of the lane
// of :after_lane, the due sides of the lanes behind it, and the ready sides. A
// ready job has its lane in its id, so that those are one range of ids.
//
// from and to are the range of lanes. In the parts, a lane beyond 524287 (the
// highest there is) is taken for 524288, for a larger one has no ids.
func live(columns, from, to, filter string) string {
	const parts = `SELECT * FROM (
  SELECT * FROM (
    SELECT {columns} FROM {job} AS j INDEXED BY {bare_job_side}
    WHERE j.run_at IS NOT NULL AND j.lane = :after_lane AND j.id > :after_id AND j.lane BETWEEN {from} AND {to} AND {filter}
    ORDER BY j.id LIMIT :limit)
  UNION ALL
  SELECT * FROM (
    SELECT {columns} FROM {job} AS j INDEXED BY {bare_job_side}
    WHERE j.run_at IS NOT NULL AND j.lane >= max(:after_lane + 1, {from}) AND j.lane <= min({to}, -1) AND {filter}
    ORDER BY j.lane, j.id LIMIT :limit)
  UNION ALL
  SELECT * FROM (
    SELECT {columns} FROM {job} AS j NOT INDEXED
    WHERE j.id > max((min(max({from}, :after_lane, 1), 524288) << 43) - 1, iif(:after_lane > 0 AND :after_lane >= {from}, :after_id, 0))
      AND j.id < (max(min({to}, 524287), 0) + 1) << 43 AND j.lane > 0 AND {filter}
    ORDER BY j.id LIMIT :limit))
ORDER BY lane, id LIMIT :limit`
	return strings.NewReplacer("{columns}", columns, "{from}", from, "{to}", to, "{filter}", filter).Replace(parts)
}

func (e *engine) allStatements() dialect.Statements {
	render := e.render
	createMeta, _, _ := strings.Cut(init1, "\n-- next\n")
	return dialect.Statements{
		// It changes nothing, but takes the write lock at once: a transaction that
		// read first would be refused if another one wrote in between.
		TxOptions: dialect.TxOptions{First: render(`UPDATE {meta} SET one = one WHERE one = 0`)},
		Bind:      sqlx.QUESTION,
		// The first process creates the table and with that takes the write lock. For
		// those that find it this is a read. If they then have something to migrate,
		// and another one was faster, they are refused and begin again.
		LockMigration: render(createMeta),

		HasSchema: render(`SELECT count(*) AS n FROM {schema}.sqlite_master WHERE type = 'table' AND name = '` + e.ns.Prefix + `meta'`),
		Version:   render(`SELECT version, min_code FROM {meta}`),
		SetVersion: render(`INSERT INTO {meta} (one, version, min_code) VALUES (1, :version, :min_code)
ON CONFLICT (one) DO UPDATE SET version = excluded.version, min_code = excluded.min_code`),

		CatalogState: render(`SELECT l.lanes, m.catalog + l.marks AS version
FROM {meta} AS m, (SELECT count(*) AS lanes, coalesce(sum(mark), 0) AS marks FROM {lane}) AS l`),
		BumpCatalog: render(`UPDATE {meta} SET catalog = catalog + 1`),
		Lanes:       render(`SELECT lane, queue, priority, shard, cursor_id FROM {lane}`),
		Queues:      render(`SELECT name, paused, shards, keep, max_backlog FROM {queue}`),
		AddLane: render(`INSERT INTO {lane} (queue, priority, shard) VALUES (:queue, :priority, :shard)
ON CONFLICT (queue, priority, shard) DO NOTHING`),
		FindLane:    render(findLane),
		FindNewLane: render(findLane),
		AddQueue:    render(`INSERT INTO {queue} (name) VALUES (:name) ON CONFLICT (name) DO NOTHING`),
		SetQueue: render(`UPDATE {queue} SET paused = coalesce(:paused, paused), shards = coalesce(:shards, shards),
  keep = coalesce(:keep, keep), max_backlog = coalesce(:max_backlog, max_backlog)
WHERE name = :name`),
		AddNode:  render(`INSERT INTO {node} (id, name) VALUES (:id, :name) ON CONFLICT DO NOTHING`),
		FindNode: render(`SELECT id FROM {node} WHERE name = :name`),

		// A skip scan: one seek per lane that has ids in its range. Those may all be
		// of jobs that came back and lie on the due side: if the first few are, and
		// there are no others, the lane is left out.
		Occupied: render(`WITH RECURSIVE o (lane) AS (
  SELECT (SELECT j.id FROM {job} AS j NOT INDEXED WHERE j.id > 0 AND j.id < 4611686018427387904 ORDER BY j.id LIMIT 1) >> 43
  UNION ALL
  SELECT (SELECT j.id FROM {job} AS j NOT INDEXED WHERE j.id >= (o.lane + 1) << 43 AND j.id < 4611686018427387904 ORDER BY j.id LIMIT 1) >> 43
  FROM o WHERE o.lane IS NOT NULL
), d (lane) AS MATERIALIZED (
  SELECT j.lane FROM {job} AS j INDEXED BY {bare_job_due} WHERE j.run_at <= {now} AND j.lease_until < {now}
  ORDER BY j.run_at, j.lane, j.id LIMIT :limit
)
SELECT o.lane FROM o
WHERE o.lane IS NOT NULL AND (SELECT max(few.lane) > 0 OR count(*) = 64 FROM (
  SELECT j.lane FROM {job} AS j NOT INDEXED WHERE j.id >= o.lane << 43 AND j.id < (o.lane + 1) << 43 ORDER BY j.id LIMIT 64) AS few)
UNION ALL
SELECT DISTINCT d.lane FROM d
UNION ALL
SELECT 0 WHERE (SELECT count(*) FROM d) >= :limit`),

		Find:         render(find),
		FindLocked:   render(find),
		FindArchived: render(`SELECT ` + archivedColumns + ` FROM {archive} AS a WHERE a.id = :id`),
		Page: render(live(liveColumns, ":lane_from", ":lane_to",
			`(:state = '' OR `+jobState+` = :state) AND (:kind = '' OR j.kind = :kind)`)),
		PageArchive: render(`SELECT ` + archivedColumns + `
FROM {archive} AS a NOT INDEXED
WHERE a.id >= :after_id AND (a.id > :after_id OR a.finished_at > :after_at)
  AND (:queue = '' OR a.queue = :queue) AND (:state = 0 OR a.state = :state) AND (:kind = '' OR a.kind = :kind)
ORDER BY a.id LIMIT :limit`),

		CountLane: render(`SELECT count(*) FILTER (WHERE state = 1) AS ready, count(*) FILTER (WHERE state = 2) AS delayed,
  count(*) FILTER (WHERE state = 3) AS running, coalesce({now} - min(since) FILTER (WHERE state = 1), 0) AS age
FROM (
  SELECT CASE WHEN lease_until >= {now} THEN 3 WHEN run_at > {now} THEN 2 ELSE 1 END AS state, coalesce(run_at, created_at) AS since
  FROM (
    SELECT * FROM (
      SELECT lease_until, run_at, created_at FROM {job} NOT INDEXED
      WHERE :lane > 0 AND id >= :lane << 43 AND id < (:lane + 1) << 43 AND lane > 0 ORDER BY id LIMIT :limit)
    UNION ALL
    SELECT * FROM (
      SELECT lease_until, run_at, created_at FROM {job} INDEXED BY {bare_job_side}
      WHERE :lane < 0 AND run_at IS NOT NULL AND lane = :lane ORDER BY id LIMIT :limit)))`),
		// Sequences have no gaps where nothing was taken out yet. So: the first
		// 10,000 rows, and then the ids from there on, in the range of the lane's
		// ready jobs, and on the due side in that of its delayed ones, too.
		EstimateLane: render(`WITH nth (id) AS (
  SELECT * FROM (SELECT id FROM {job} NOT INDEXED
    WHERE :lane > 0 AND id >= :lane << 43 AND id < (:lane + 1) << 43 AND lane > 0 ORDER BY id LIMIT 1 OFFSET 9999)
  UNION ALL
  SELECT * FROM (SELECT id FROM {job} INDEXED BY {bare_job_side}
    WHERE :lane < 0 AND run_at IS NOT NULL AND lane = :lane ORDER BY id LIMIT 1 OFFSET 9999)
), span (least, most) AS (
  VALUES (abs(:lane) << 43, (abs(:lane) + 1) << 43), ((abs(:lane) << 43) + 4611686018427387904, ((abs(:lane) + 1) << 43) + 4611686018427387904)
)
SELECT 10000 + coalesce(sum(last - first + 1), 0) AS n FROM (
  SELECT (SELECT min(id) FROM {job} NOT INDEXED WHERE id > nth.id AND id >= span.least AND id < span.most) AS first,
    (SELECT max(id) FROM {job} NOT INDEXED WHERE id > nth.id AND id >= span.least AND id < span.most) AS last
  FROM nth CROSS JOIN span WHERE :lane > 0 AND span.least < 4611686018427387904
  UNION ALL
  SELECT (SELECT min(id) FROM {job} INDEXED BY {bare_job_side}
      WHERE run_at IS NOT NULL AND lane = :lane AND id > nth.id AND id >= span.least AND id < span.most),
    (SELECT max(id) FROM {job} INDEXED BY {bare_job_side}
      WHERE run_at IS NOT NULL AND lane = :lane AND id > nth.id AND id >= span.least AND id < span.most)
  FROM nth CROSS JOIN span WHERE :lane < 0)`),
		CountBacklog: render(`SELECT count(*) AS n FROM (
  SELECT * FROM (SELECT 1 FROM {job} NOT INDEXED
    WHERE :lane > 0 AND id >= :lane << 43 AND id < (:lane + 1) << 43 AND lane > 0 LIMIT :limit)
  UNION ALL
  SELECT * FROM (SELECT 1 FROM {job} INDEXED BY {bare_job_side} WHERE :lane < 0 AND run_at IS NOT NULL AND lane = :lane LIMIT :limit))`),
		CountArchive: render(`SELECT count(*) AS n FROM (
  SELECT 1 FROM {archive} INDEXED BY {bare_archive_state} WHERE state = :state AND queue = :queue LIMIT :limit)`),

		Move: render(`UPDATE {job} SET lane = :to_lane, ` + unleased + `,
  run_at = iif(:run_at = 0, {now} + :delay, max(:run_at, {now}))
WHERE id = :id AND lane = :lane`),
		Delete: render(`DELETE FROM {job} WHERE id = :id AND lane = :lane`),
		ToArchive: render(`INSERT OR REPLACE INTO {archive} (` + archiveColumns + `)
SELECT ` + archiveValues(":state", ":errors") + ` FROM {job} AS j WHERE j.id = :id AND j.lane = :lane`),
		// A unique key is the job's own, by a unique index, and so ends with it: there
		// is nothing to take but to see that the key is free, in a transaction that
		// stores the job next.
		FreeKey: render(`UPDATE {job} SET key_queue = NULL, unique_key = '' WHERE id = :id AND key_queue = :queue AND unique_key = :key`),
		TakeKey: render(`UPDATE {meta} SET one = one WHERE one = 1 AND NOT EXISTS (
  SELECT 1 FROM {job} INDEXED BY {bare_job_key} WHERE key_queue = :queue AND unique_key = :key)`),

		NodeJobs: render(live(`j.lane, coalesce(j.run_at, 0) AS run_at, j.id, j.token, j.attempt`, "-524288", "524287", `j.node = :node AND j.lease_until >= {now}`)),

		// In two parts: one job, or a walk over the index. A blob sorts after every
		// text.
		LockDead: render(`SELECT * FROM (
  SELECT ` + archivedColumns + ` FROM {archive} AS a
  WHERE :id <> 0 AND a.id = :id AND a.state = 2 AND (:queue = '' OR a.queue = :queue) AND (:kind = '' OR a.kind = :kind)
    AND (a.queue, a.finished_at, a.id) > (:after_queue, :after_at, :after_id))
UNION ALL
SELECT * FROM (
  SELECT ` + archivedColumns + ` FROM {archive} AS a INDEXED BY {bare_archive_state}
  WHERE :id = 0 AND a.state = 2 AND (a.queue, a.finished_at, a.id) > (max(:after_queue, :queue), :after_at, :after_id)
    AND a.queue <= iif(:queue = '', x'', :queue) AND (:kind = '' OR a.kind = :kind)
  ORDER BY a.queue, a.finished_at, a.id LIMIT :limit)`),
		Restore: render(`INSERT INTO {job} (id, lane, created_at, run_at, max_attempts, lease_ms, kind, key_queue, unique_key, headers, errors, payload)
SELECT id, :lane, created_at, {now}, max_attempts, lease_ms, kind, iif(unique_key = '', NULL, queue), unique_key, headers, errors, payload
FROM {archive} WHERE id = :id AND finished_at = :finished_at`),
		DropArchived: render(`DELETE FROM {archive} WHERE id = :id AND finished_at = :finished_at`),
		Purge: render(`DELETE FROM {archive} WHERE id IN (
  SELECT a.id FROM {archive} AS a INDEXED BY {bare_archive_age}
  WHERE a.finished_at <= {now} - :age AND (:state = 0 OR a.state = :state) AND (:queue = '' OR a.queue = :queue)
  ORDER BY a.finished_at LIMIT :limit)`),

		AddPush: render(`INSERT INTO {push} (push_id, created_at, digest, result) VALUES (:push_id, {now}, :digest, '')
ON CONFLICT (push_id) DO NOTHING`),
		SetPush:  render(`UPDATE {push} SET result = :result WHERE push_id = :push_id`),
		FindPush: render(`SELECT digest, result FROM {push} WHERE push_id = :push_id`),
		PurgePushes: render(`DELETE FROM {push} WHERE push_id IN (
  SELECT p.push_id FROM {push} AS p INDEXED BY {bare_push_created} WHERE p.created_at <= {now} - :age
  ORDER BY p.created_at LIMIT :limit)`),
	}
}
