-- probeNow
SELECT -1 AS step, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) AS run_at, 0 AS id;

-- probeReady
(SELECT %[1]d, run_at, id FROM `queue_job` FORCE INDEX (PRIMARY)
  WHERE lane = %[2]d AND run_at = 0 AND id >= %[3]d AND lease_until <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) ORDER BY id LIMIT 1);

-- probeDue
(SELECT %[1]d, run_at, id FROM `queue_job` FORCE INDEX (PRIMARY)
  WHERE lane = %[2]d AND (run_at = %[4]d AND id > %[3]d OR run_at > %[4]d) AND run_at <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) AND lease_until <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
  ORDER BY run_at, id LIMIT 1);

-- probeBehind
(SELECT %[1]d, j.run_at, j.id FROM `queue_lane` AS l STRAIGHT_JOIN `queue_job` AS j FORCE INDEX (PRIMARY)
  WHERE l.lane = %[2]d AND l.recheck_at <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) AND j.lane = %[2]d AND j.run_at = 0 AND j.id < %[3]d AND j.lease_until <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
  ORDER BY j.id LIMIT 1)
UNION ALL
(SELECT %[1]d, j.run_at, j.id FROM `queue_lane` AS l STRAIGHT_JOIN `queue_job` AS j FORCE INDEX (PRIMARY)
  WHERE l.lane = %[2]d AND l.recheck_at <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) AND j.lane = -%[2]d AND j.run_at <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) AND j.lease_until <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
  ORDER BY j.run_at, j.id LIMIT 1);

-- probeOnly
(SELECT %[1]d, run_at, id FROM `queue_job` FORCE INDEX (by_id)
  WHERE id = %[3]d AND lane = %[2]d AND lease_until <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)));

-- behindReady
SELECT run_at, id FROM `queue_job` FORCE INDEX (PRIMARY)
WHERE lane = ? AND run_at = 0 AND id < ? AND lease_until <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) ORDER BY id LIMIT ?;

-- behindDue
SELECT run_at, id FROM `queue_job` FORCE INDEX (PRIMARY)
WHERE lane = ? AND run_at <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) AND lease_until <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) ORDER BY run_at, id LIMIT ?;

-- leaseReady
UPDATE (SELECT lane, run_at, id FROM `queue_job` FORCE INDEX (PRIMARY)
  WHERE lane = ? AND run_at = 0 AND id >= ? AND lease_until <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) ORDER BY id LIMIT ? FOR UPDATE SKIP LOCKED) AS c
STRAIGHT_JOIN `queue_job` AS j FORCE INDEX (PRIMARY) ON j.lane = c.lane AND j.run_at = c.run_at AND j.id = c.id
SET j.lease_until = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + IF(j.lease_ms = 0, ?, j.lease_ms) * 1000, j.token = ?, j.node = ?, j.attempt = j.attempt + 1
WHERE j.lease_until <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));

-- leaseDue
UPDATE (SELECT lane, run_at, id FROM `queue_job` FORCE INDEX (PRIMARY)
  WHERE lane = ? AND (run_at = ? AND id > ? OR run_at > ?) AND run_at <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) AND lease_until <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
  ORDER BY run_at, id LIMIT ? FOR UPDATE SKIP LOCKED) AS c
STRAIGHT_JOIN `queue_job` AS j FORCE INDEX (PRIMARY) ON j.lane = c.lane AND j.run_at = c.run_at AND j.id = c.id
SET j.lease_until = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + IF(j.lease_ms = 0, ?, j.lease_ms) * 1000, j.token = ?, j.node = ?, j.attempt = j.attempt + 1
WHERE j.lease_until <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));

-- leaseOnly
UPDATE (SELECT lane, run_at, id FROM `queue_job` FORCE INDEX (by_id)
  WHERE lane = ? AND id = ? AND lease_until <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) LIMIT ? FOR UPDATE SKIP LOCKED) AS c
STRAIGHT_JOIN `queue_job` AS j FORCE INDEX (PRIMARY) ON j.lane = c.lane AND j.run_at = c.run_at AND j.id = c.id
SET j.lease_until = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + IF(j.lease_ms = 0, ?, j.lease_ms) * 1000, j.token = ?, j.node = ?, j.attempt = j.attempt + 1
WHERE j.lease_until <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));

-- leaseKeys
UPDATE (SELECT j.lane, j.run_at, j.id FROM (SELECT t.run_at, t.id FROM JSON_TABLE(?, '$[*]' COLUMNS (run_at BIGINT PATH '$[0]', id BIGINT PATH '$[1]')) AS t LIMIT 1000000) AS u
STRAIGHT_JOIN `queue_job` AS j FORCE INDEX (PRIMARY) ON j.lane = ? AND j.run_at = u.run_at AND j.id = u.id WHERE j.lease_until <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) FOR UPDATE SKIP LOCKED) AS c
STRAIGHT_JOIN `queue_job` AS j FORCE INDEX (PRIMARY) ON j.lane = c.lane AND j.run_at = c.run_at AND j.id = c.id
SET j.lease_until = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + IF(j.lease_ms = 0, ?, j.lease_ms) * 1000, j.token = ?, j.node = ?, j.attempt = j.attempt + 1
WHERE j.lease_until <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));

-- takeReady
SELECT j.lane, j.born, j.id, j.run_at, j.created_at, j.lease_until, j.attempt, j.max_attempts,
  j.kind, j.unique_key, COALESCE(j.headers, ''), COALESCE(j.errors, ''), j.payload FROM `queue_job` AS j FORCE INDEX (PRIMARY) WHERE j.lane = ? AND j.run_at = 0 AND j.id >= ? AND j.token = ? ORDER BY j.id LIMIT ?;

-- takeDue
SELECT j.lane, j.born, j.id, j.run_at, j.created_at, j.lease_until, j.attempt, j.max_attempts,
  j.kind, j.unique_key, COALESCE(j.headers, ''), COALESCE(j.errors, ''), j.payload FROM `queue_job` AS j FORCE INDEX (PRIMARY)
WHERE j.lane = ? AND (j.run_at = ? AND j.id >= ? OR j.run_at > ?) AND j.token = ? ORDER BY j.run_at, j.id LIMIT ?;

-- takeKeys
SELECT j.lane, j.born, j.id, j.run_at, j.created_at, j.lease_until, j.attempt, j.max_attempts,
  j.kind, j.unique_key, COALESCE(j.headers, ''), COALESCE(j.errors, ''), j.payload FROM (SELECT t.run_at, t.id FROM JSON_TABLE(?, '$[*]' COLUMNS (run_at BIGINT PATH '$[0]', id BIGINT PATH '$[1]')) AS t LIMIT 1000000) AS u
STRAIGHT_JOIN `queue_job` AS j FORCE INDEX (PRIMARY) ON j.lane = ? AND j.run_at = u.run_at AND j.id = u.id WHERE j.token = ?;

-- putOff
UPDATE (SELECT l.lane, u.cursor_id
  FROM (SELECT t.lane, t.cursor_id FROM JSON_TABLE(?, '$[*]' COLUMNS (lane INT PATH '$[0]', cursor_id BIGINT PATH '$[1]')) AS t LIMIT 1000000) AS u
  STRAIGHT_JOIN `queue_lane` AS l ON l.lane = u.lane WHERE l.recheck_at <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) FOR UPDATE SKIP LOCKED) AS c
STRAIGHT_JOIN `queue_lane` AS l FORCE INDEX (PRIMARY) ON l.lane = c.lane
SET l.recheck_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + ?, l.cursor_id = c.cursor_id;

-- lanes
SELECT l.lane, l.queue, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
FROM (SELECT t.lane FROM JSON_TABLE(?, '$[*]' COLUMNS (lane INT PATH '$')) AS t LIMIT 1000000) AS u
STRAIGHT_JOIN `queue_lane` AS l ON l.lane = u.lane;

-- lanesLatest
SELECT l.lane, l.queue, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
FROM (SELECT t.lane FROM JSON_TABLE(?, '$[*]' COLUMNS (lane INT PATH '$')) AS t LIMIT 1000000) AS u
STRAIGHT_JOIN `queue_lane` AS l ON l.lane = u.lane LOCK IN SHARE MODE;

-- takeKeys
INSERT IGNORE INTO `queue_key` (queue, unique_key, job_id) SELECT u.queue, u.unique_key, u.id FROM (SELECT CAST(t.queue AS BINARY) AS queue, CAST(t.unique_key AS BINARY) AS unique_key, t.id
  FROM JSON_TABLE(CONVERT(CAST(? AS BINARY) USING utf8mb4), '$[*]' COLUMNS (
    queue VARCHAR(128) CHARACTER SET utf8mb4 PATH '$[0]', unique_key VARCHAR(255) CHARACTER SET utf8mb4 PATH '$[1]', id BIGINT PATH '$[2]')) AS t
  LIMIT 1000000) AS u;

-- heldKeys
SELECT u.id, k.job_id FROM (SELECT CAST(t.queue AS BINARY) AS queue, CAST(t.unique_key AS BINARY) AS unique_key, t.id
  FROM JSON_TABLE(CONVERT(CAST(? AS BINARY) USING utf8mb4), '$[*]' COLUMNS (
    queue VARCHAR(128) CHARACTER SET utf8mb4 PATH '$[0]', unique_key VARCHAR(255) CHARACTER SET utf8mb4 PATH '$[1]', id BIGINT PATH '$[2]')) AS t
  LIMIT 1000000) AS u
STRAIGHT_JOIN `queue_key` AS k FORCE INDEX (PRIMARY) ON k.queue = u.queue AND k.unique_key = u.unique_key LOCK IN SHARE MODE;

-- nameKeys
UPDATE (SELECT CAST(t.queue AS BINARY) AS queue, CAST(t.unique_key AS BINARY) AS unique_key, t.id
  FROM JSON_TABLE(CONVERT(CAST(? AS BINARY) USING utf8mb4), '$[*]' COLUMNS (
    queue VARCHAR(128) CHARACTER SET utf8mb4 PATH '$[0]', unique_key VARCHAR(255) CHARACTER SET utf8mb4 PATH '$[1]', id BIGINT PATH '$[2]')) AS t
  LIMIT 1000000) AS u
STRAIGHT_JOIN `queue_key` AS k FORCE INDEX (PRIMARY) ON k.queue = u.queue AND k.unique_key = u.unique_key SET k.job_id = u.id;

-- rows
INSERT INTO `queue_job` (lane, run_at, born, created_at, max_attempts, lease_ms, kind, unique_key, headers, payload) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- returning
INSERT INTO `queue_job` (lane, run_at, born, created_at, max_attempts, lease_ms, kind, unique_key, headers, payload) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING id;

-- delete
DELETE j FROM (SELECT t.run_at, t.id FROM JSON_TABLE(?, '$[*]' COLUMNS (run_at BIGINT PATH '$[0]', id BIGINT PATH '$[1]')) AS t LIMIT 1000000) AS u
STRAIGHT_JOIN `queue_job` AS j FORCE INDEX (PRIMARY) ON j.lane = ? AND j.run_at = u.run_at AND j.id = u.id WHERE j.token = ?;

-- deleteOne
DELETE FROM `queue_job` WHERE lane = ? AND run_at = ? AND id = ? AND token = ?;

-- mine
SELECT j.run_at, j.id, j.unique_key FROM (SELECT t.run_at, t.id FROM JSON_TABLE(?, '$[*]' COLUMNS (run_at BIGINT PATH '$[0]', id BIGINT PATH '$[1]')) AS t LIMIT 1000000) AS u
STRAIGHT_JOIN `queue_job` AS j FORCE INDEX (PRIMARY) ON j.lane = ? AND j.run_at = u.run_at AND j.id = u.id WHERE j.token = ? FOR UPDATE;

-- mineUnlocked
SELECT j.run_at, j.id, j.unique_key FROM (SELECT t.run_at, t.id FROM JSON_TABLE(?, '$[*]' COLUMNS (run_at BIGINT PATH '$[0]', id BIGINT PATH '$[1]')) AS t LIMIT 1000000) AS u
STRAIGHT_JOIN `queue_job` AS j FORCE INDEX (PRIMARY) ON j.lane = ? AND j.run_at = u.run_at AND j.id = u.id WHERE j.token = ? FOR UPDATE SKIP LOCKED;

-- held
SELECT j.run_at, j.id, j.unique_key FROM (SELECT t.run_at, t.id FROM JSON_TABLE(?, '$[*]' COLUMNS (run_at BIGINT PATH '$[0]', id BIGINT PATH '$[1]')) AS t LIMIT 1000000) AS u
STRAIGHT_JOIN `queue_job` AS j FORCE INDEX (PRIMARY) ON j.lane = ? AND j.run_at = u.run_at AND j.id = u.id WHERE j.token = ?;

-- freeKeys
DELETE k FROM (SELECT CAST(t.queue AS BINARY) AS queue, CAST(t.unique_key AS BINARY) AS unique_key, t.id
  FROM JSON_TABLE(CONVERT(CAST(? AS BINARY) USING utf8mb4), '$[*]' COLUMNS (
    queue VARCHAR(128) CHARACTER SET utf8mb4 PATH '$[0]', unique_key VARCHAR(255) CHARACTER SET utf8mb4 PATH '$[1]', id BIGINT PATH '$[2]')) AS t
  LIMIT 1000000) AS u
STRAIGHT_JOIN `queue_key` AS k FORCE INDEX (PRIMARY) ON k.queue = u.queue AND k.unique_key = u.unique_key WHERE k.job_id = u.id;

-- laneOf
SELECT queue, priority FROM `queue_lane` WHERE lane = ?;

-- archive
INSERT INTO `queue_archive` (id, finished_at, created_at, state, priority, attempt, max_attempts, node,
  lease_ms, queue, kind, unique_key, headers, errors, payload)
SELECT (j.born << 43) + j.id, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), j.created_at, u.state, ?, LEAST(j.attempt, j.max_attempts), j.max_attempts, j.node,
  j.lease_ms, ?, j.kind, j.unique_key, j.headers, IF(LENGTH(u.errors) = 0, j.errors, u.errors), j.payload
FROM JSON_TABLE(CONVERT(CAST(? AS BINARY) USING utf8mb4), '$[*]' COLUMNS (
  run_at BIGINT PATH '$[0]', id BIGINT PATH '$[1]', delay BIGINT PATH '$[2]', attempt INT PATH '$[3]',
  state INT PATH '$[4]', errors MEDIUMTEXT CHARACTER SET utf8mb4 PATH '$[5]')) AS u
STRAIGHT_JOIN `queue_job` AS j FORCE INDEX (PRIMARY) ON j.lane = ? AND j.run_at = u.run_at AND j.id = u.id;

-- giveBack
UPDATE JSON_TABLE(CONVERT(CAST(? AS BINARY) USING utf8mb4), '$[*]' COLUMNS (
  run_at BIGINT PATH '$[0]', id BIGINT PATH '$[1]', delay BIGINT PATH '$[2]', attempt INT PATH '$[3]',
  state INT PATH '$[4]', errors MEDIUMTEXT CHARACTER SET utf8mb4 PATH '$[5]')) AS u
STRAIGHT_JOIN `queue_job` AS j FORCE INDEX (PRIMARY) ON j.lane = ? AND j.run_at = u.run_at AND j.id = u.id
SET j.lane = -ABS(j.lane), j.run_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + u.delay, j.lease_until = 0, j.token = 0, j.node = 0,
  j.attempt = u.attempt, j.errors = IF(LENGTH(u.errors) = 0, j.errors, u.errors);

-- extend
UPDATE JSON_TABLE(CONVERT(CAST(? AS BINARY) USING utf8mb4), '$[*]' COLUMNS (
  run_at BIGINT PATH '$[0]', id BIGINT PATH '$[1]', delay BIGINT PATH '$[2]', attempt INT PATH '$[3]',
  state INT PATH '$[4]', errors MEDIUMTEXT CHARACTER SET utf8mb4 PATH '$[5]')) AS u
STRAIGHT_JOIN `queue_job` AS j FORCE INDEX (PRIMARY) ON j.lane = ? AND j.run_at = u.run_at AND j.id = u.id SET j.lease_until = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + u.delay;

-- check
SHOW SESSION VARIABLES WHERE Variable_name IN ('version', 'autocommit', 'transaction_isolation', 'tx_isolation',
  'read_only', 'super_read_only', 'innodb_read_only', 'transaction_read_only', 'tx_read_only', 'log_bin', 'binlog_format',
  'wsrep_on', 'sql_safe_updates', 'auto_increment_increment', 'max_allowed_packet');

-- place
SELECT 'database', DATABASE()
UNION ALL
SELECT 'table_engine', ENGINE FROM information_schema.TABLES
WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = 'queue_job';

-- LockMigration
SELECT CASE WHEN GET_LOCK(SHA2(CONCAT('sqlqueue migration ', DATABASE(), '.queue_'), 224), 86400) = 1 THEN 1 ELSE (SELECT 1 UNION ALL SELECT 2) END;

-- UnlockMigration
SELECT RELEASE_LOCK(SHA2(CONCAT('sqlqueue migration ', DATABASE(), '.queue_'), 224));

-- HasSchema
SELECT COUNT(*) AS n FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = 'queue_meta';

-- Version
SELECT version, min_code FROM `queue_meta`;

-- SetVersion
INSERT INTO `queue_meta` (one, version, min_code) VALUES (1, :version, :min_code)
ON DUPLICATE KEY UPDATE version = VALUES(version), min_code = VALUES(min_code);

-- CatalogState
SELECT l.lanes, CAST(m.catalog + l.marks AS SIGNED) AS version
FROM `queue_meta` AS m, (SELECT COUNT(*) AS lanes, COALESCE(SUM(mark), 0) AS marks FROM `queue_lane`) AS l;

-- BumpCatalog
UPDATE `queue_meta` SET catalog = catalog + 1 WHERE one = 1;

-- Lanes
SELECT lane, queue, priority, shard, cursor_id FROM `queue_lane`;

-- Queues
SELECT name, paused, shards, keep, max_backlog FROM `queue_queue`;

-- AddLane
INSERT IGNORE INTO `queue_lane` (queue, priority, shard, mark)
VALUES (:queue, :priority, :shard, FLOOR(RAND() * 1000000000));

-- FindLane
SELECT lane, queue, priority, shard, cursor_id FROM `queue_lane`
WHERE queue = :queue AND priority = :priority AND shard = :shard;

-- FindNewLane
SELECT lane, queue, priority, shard, cursor_id FROM `queue_lane`
WHERE queue = :queue AND priority = :priority AND shard = :shard LOCK IN SHARE MODE;

-- AddQueue
INSERT IGNORE INTO `queue_queue` (name) VALUES (:name);

-- SetQueue
UPDATE `queue_queue` SET paused = COALESCE(:paused, paused), shards = COALESCE(:shards, shards),
  keep = COALESCE(:keep, keep), max_backlog = COALESCE(:max_backlog, max_backlog)
WHERE name = :name;

-- AddNode
INSERT IGNORE INTO `queue_node` (id, name) VALUES (:id, :name);

-- FindNode
SELECT id FROM `queue_node` WHERE name = :name;

-- Occupied
SELECT o.lane FROM (
  SELECT lane, MIN(run_at) AS first_at FROM `queue_job` FORCE INDEX (PRIMARY) GROUP BY lane) AS o
WHERE o.first_at <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));

-- Find
SELECT j.lane, (j.born << 43) + j.id AS id, (SELECT l.queue FROM `queue_lane` AS l WHERE l.lane = ABS(j.lane)) AS queue,
  (SELECT l.priority FROM `queue_lane` AS l WHERE l.lane = ABS(j.lane)) AS priority, j.kind, CASE WHEN j.lease_until > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) THEN 'running' WHEN j.run_at > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) THEN 'delayed' ELSE 'ready' END AS state,
  j.attempt, j.max_attempts, j.lease_ms, j.created_at, j.run_at, j.lease_until AS leased_until, 0 AS finished_at,
  COALESCE((SELECT n.name FROM `queue_node` AS n WHERE n.id = j.node), '') AS node,
  j.unique_key, COALESCE(j.headers, '') AS headers, COALESCE(j.errors, '') AS errors, j.payload FROM `queue_job` AS j FORCE INDEX (by_id) WHERE j.id = :id & 8796093022207 AND j.born = :id >> 43;

-- FindLocked
SELECT j.lane, (j.born << 43) + j.id AS id, (SELECT l.queue FROM `queue_lane` AS l WHERE l.lane = ABS(j.lane)) AS queue,
  (SELECT l.priority FROM `queue_lane` AS l WHERE l.lane = ABS(j.lane)) AS priority, j.kind, CASE WHEN j.lease_until > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) THEN 'running' WHEN j.run_at > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) THEN 'delayed' ELSE 'ready' END AS state,
  j.attempt, j.max_attempts, j.lease_ms, j.created_at, j.run_at, j.lease_until AS leased_until, 0 AS finished_at,
  COALESCE((SELECT n.name FROM `queue_node` AS n WHERE n.id = j.node), '') AS node,
  j.unique_key, COALESCE(j.headers, '') AS headers, COALESCE(j.errors, '') AS errors, j.payload FROM `queue_job` AS j FORCE INDEX (by_id) WHERE j.id = :id & 8796093022207 AND j.born = :id >> 43 FOR UPDATE SKIP LOCKED;

-- FindArchived
SELECT 0 AS lane, a.id, a.queue, a.priority, a.kind,
  CASE a.state WHEN 1 THEN 'done' WHEN 2 THEN 'dead' ELSE 'cancelled' END AS state,
  a.attempt, a.max_attempts, a.lease_ms, a.created_at, 0 AS run_at, 0 AS leased_until, a.finished_at,
  COALESCE((SELECT n.name FROM `queue_node` AS n WHERE n.id = a.node), '') AS node,
  a.unique_key, COALESCE(a.headers, '') AS headers, COALESCE(a.errors, '') AS errors, a.payload FROM `queue_archive` AS a
WHERE a.id = :id ORDER BY a.finished_at DESC LIMIT 1;

-- Page
SELECT j.lane, (j.born << 43) + j.id AS id, (SELECT l.queue FROM `queue_lane` AS l WHERE l.lane = ABS(j.lane)) AS queue,
  (SELECT l.priority FROM `queue_lane` AS l WHERE l.lane = ABS(j.lane)) AS priority, j.kind, CASE WHEN j.lease_until > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) THEN 'running' WHEN j.run_at > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) THEN 'delayed' ELSE 'ready' END AS state,
  j.attempt, j.max_attempts, j.lease_ms, j.created_at, j.run_at, j.lease_until AS leased_until, 0 AS finished_at,
  COALESCE((SELECT n.name FROM `queue_node` AS n WHERE n.id = j.node), '') AS node,
  j.unique_key, COALESCE(j.headers, '') AS headers, COALESCE(j.errors, '') AS errors, j.payload FROM (
  (SELECT j.lane, j.run_at, j.id FROM `queue_job` AS j FORCE INDEX (PRIMARY)
    WHERE j.lane = :after_lane AND j.run_at = :after_run_at AND j.id > :after_id & 8796093022207 AND j.lane BETWEEN :lane_from AND :lane_to AND (:state = '' OR CASE WHEN j.lease_until > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) THEN 'running' WHEN j.run_at > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) THEN 'delayed' ELSE 'ready' END = :state) AND (:kind = '' OR j.kind = :kind)
    ORDER BY j.id LIMIT :limit)
  UNION ALL
  (SELECT j.lane, j.run_at, j.id FROM `queue_job` AS j FORCE INDEX (PRIMARY)
    WHERE j.lane = :after_lane AND j.run_at > :after_run_at AND j.lane BETWEEN :lane_from AND :lane_to AND (:state = '' OR CASE WHEN j.lease_until > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) THEN 'running' WHEN j.run_at > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) THEN 'delayed' ELSE 'ready' END = :state) AND (:kind = '' OR j.kind = :kind)
    ORDER BY j.run_at, j.id LIMIT :limit)
  UNION ALL
  (SELECT j.lane, j.run_at, j.id FROM `queue_job` AS j FORCE INDEX (PRIMARY)
    WHERE j.lane > :after_lane AND j.lane BETWEEN :lane_from AND :lane_to AND (:state = '' OR CASE WHEN j.lease_until > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) THEN 'running' WHEN j.run_at > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) THEN 'delayed' ELSE 'ready' END = :state) AND (:kind = '' OR j.kind = :kind)
    ORDER BY j.lane, j.run_at, j.id LIMIT :limit)
  ORDER BY lane, run_at, id LIMIT :limit) AS p
STRAIGHT_JOIN `queue_job` AS j FORCE INDEX (PRIMARY) ON j.lane = p.lane AND j.run_at = p.run_at AND j.id = p.id
ORDER BY p.lane, p.run_at, p.id;

-- PageArchive
SELECT 0 AS lane, a.id, a.queue, a.priority, a.kind,
  CASE a.state WHEN 1 THEN 'done' WHEN 2 THEN 'dead' ELSE 'cancelled' END AS state,
  a.attempt, a.max_attempts, a.lease_ms, a.created_at, 0 AS run_at, 0 AS leased_until, a.finished_at,
  COALESCE((SELECT n.name FROM `queue_node` AS n WHERE n.id = a.node), '') AS node,
  a.unique_key, COALESCE(a.headers, '') AS headers, COALESCE(a.errors, '') AS errors, a.payload FROM `queue_archive` AS a FORCE INDEX (PRIMARY)
WHERE (a.id > :after_id OR a.id = :after_id AND a.finished_at > :after_at)
  AND (:queue = '' OR a.queue = :queue) AND (:state = 0 OR a.state = :state) AND (:kind = '' OR a.kind = :kind)
ORDER BY a.id, a.finished_at LIMIT :limit;

-- CountLane
SELECT CAST(COALESCE(SUM(state = 1), 0) AS SIGNED) AS `ready`, CAST(COALESCE(SUM(state = 2), 0) AS SIGNED) AS `delayed`,
  CAST(COALESCE(SUM(state = 3), 0) AS SIGNED) AS `running`, COALESCE(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) - MIN(CASE WHEN state = 1 THEN since END), 0) AS age
FROM (
  SELECT CASE WHEN lease_until > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) THEN 3 WHEN run_at > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) THEN 2 ELSE 1 END AS state,
    IF(run_at = 0, created_at, run_at) AS since
  FROM `queue_job` FORCE INDEX (PRIMARY) WHERE lane = :lane ORDER BY run_at, id LIMIT :limit) AS counted;

-- EstimateLane
EXPLAIN SELECT id FROM `queue_job` FORCE INDEX (PRIMARY) WHERE lane = :lane;

-- CountBacklog
SELECT COUNT(*) AS n FROM (SELECT 1 FROM `queue_job` FORCE INDEX (PRIMARY) WHERE lane = :lane LIMIT :limit) AS counted;

-- CountArchive
SELECT COUNT(*) AS n FROM (
  SELECT 1 FROM `queue_archive` FORCE INDEX (by_state) WHERE state = :state AND queue = :queue LIMIT :limit) AS counted;

-- Move
UPDATE `queue_job` FORCE INDEX (by_id) SET lane = :to_lane, lease_until = 0, token = 0, node = 0,
  run_at = GREATEST(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), IF(:run_at = 0, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + :delay, :run_at))
WHERE id = :id & 8796093022207 AND born = :id >> 43 AND lane = :lane;

-- Delete
DELETE j FROM `queue_job` AS j FORCE INDEX (by_id)
WHERE j.id = :id & 8796093022207 AND j.born = :id >> 43 AND j.lane = :lane;

-- ToArchive
INSERT INTO `queue_archive` (id, finished_at, created_at, state, priority, attempt, max_attempts, node,
  lease_ms, queue, kind, unique_key, headers, errors, payload)
SELECT (j.born << 43) + j.id, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), j.created_at, :state, l.priority, j.attempt, j.max_attempts, j.node,
  j.lease_ms, l.queue, j.kind, j.unique_key, j.headers, IF(:errors = '', j.errors, :errors), j.payload
FROM `queue_job` AS j FORCE INDEX (by_id) STRAIGHT_JOIN `queue_lane` AS l ON l.lane = ABS(j.lane)
WHERE j.id = :id & 8796093022207 AND j.born = :id >> 43 AND j.lane = :lane;

-- FreeKey
DELETE FROM `queue_key` WHERE queue = :queue AND unique_key = :key AND job_id = :id;

-- TakeKey
INSERT IGNORE INTO `queue_key` (queue, unique_key, job_id) VALUES (:queue, :key, :id);

-- NodeJobs
SELECT j.lane, j.run_at, (j.born << 43) + j.id AS id, j.token, j.attempt FROM (
  (SELECT j.lane, j.run_at, j.id FROM `queue_job` AS j FORCE INDEX (PRIMARY)
    WHERE j.lane = :after_lane AND j.run_at = :after_run_at AND j.id > :after_id & 8796093022207 AND j.node = :node AND j.lease_until > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
    ORDER BY j.id LIMIT :limit)
  UNION ALL
  (SELECT j.lane, j.run_at, j.id FROM `queue_job` AS j FORCE INDEX (PRIMARY)
    WHERE j.lane = :after_lane AND j.run_at > :after_run_at AND j.node = :node AND j.lease_until > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
    ORDER BY j.run_at, j.id LIMIT :limit)
  UNION ALL
  (SELECT j.lane, j.run_at, j.id FROM `queue_job` AS j FORCE INDEX (PRIMARY)
    WHERE j.lane > :after_lane AND j.node = :node AND j.lease_until > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
    ORDER BY j.lane, j.run_at, j.id LIMIT :limit)
  ORDER BY lane, run_at, id LIMIT :limit) AS p
STRAIGHT_JOIN `queue_job` AS j FORCE INDEX (PRIMARY) ON j.lane = p.lane AND j.run_at = p.run_at AND j.id = p.id
ORDER BY p.lane, p.run_at, p.id;

-- LockDead
SELECT 0 AS lane, a.id, a.queue, a.priority, a.kind,
  CASE a.state WHEN 1 THEN 'done' WHEN 2 THEN 'dead' ELSE 'cancelled' END AS state,
  a.attempt, a.max_attempts, a.lease_ms, a.created_at, 0 AS run_at, 0 AS leased_until, a.finished_at,
  COALESCE((SELECT n.name FROM `queue_node` AS n WHERE n.id = a.node), '') AS node,
  a.unique_key, COALESCE(a.headers, '') AS headers, COALESCE(a.errors, '') AS errors, a.payload FROM `queue_archive` AS a FORCE INDEX (by_state)
WHERE a.state = 2 AND (a.queue > :after_queue
    OR a.queue = :after_queue AND a.finished_at > :after_at
    OR a.queue = :after_queue AND a.finished_at = :after_at AND a.id > :after_id)
  AND (:id = 0 OR a.id = :id) AND (:queue = '' OR a.queue = :queue) AND (:kind = '' OR a.kind = :kind)
ORDER BY a.queue, a.finished_at, a.id LIMIT :limit FOR UPDATE SKIP LOCKED;

-- Restore
INSERT INTO `queue_job` (lane, run_at, id, born, created_at, max_attempts, lease_ms, kind, unique_key, headers, errors, payload)
SELECT :lane, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), a.id & 8796093022207, a.id >> 43, a.created_at, a.max_attempts, a.lease_ms, a.kind, a.unique_key, a.headers, a.errors, a.payload
FROM `queue_archive` AS a WHERE a.id = :id AND a.finished_at = :finished_at;

-- DropArchived
DELETE FROM `queue_archive` WHERE id = :id AND finished_at = :finished_at;

-- Purge
DELETE a FROM (
  SELECT id, finished_at FROM `queue_archive` FORCE INDEX (by_age)
  WHERE finished_at <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) - :age AND (:state = 0 OR state = :state) AND (:queue = '' OR queue = :queue)
  ORDER BY finished_at LIMIT :limit FOR UPDATE SKIP LOCKED) AS old
STRAIGHT_JOIN `queue_archive` AS a FORCE INDEX (PRIMARY) ON a.id = old.id AND a.finished_at = old.finished_at;

-- AddPush
INSERT IGNORE INTO `queue_push` (push_id, created_at, digest, result) VALUES (:push_id, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), :digest, '');

-- SetPush
UPDATE `queue_push` SET result = :result WHERE push_id = :push_id;

-- FindPush
SELECT digest, result FROM `queue_push` WHERE push_id = :push_id LOCK IN SHARE MODE;

-- PurgePushes
DELETE p FROM (
  SELECT push_id FROM `queue_push` FORCE INDEX (by_age) WHERE created_at <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) - :age
  ORDER BY created_at LIMIT :limit FOR UPDATE SKIP LOCKED) AS old
STRAIGHT_JOIN `queue_push` AS p FORCE INDEX (PRIMARY) ON p.push_id = old.push_id;

