-- Names and texts are kept as bytes: they are the same in every connection,
-- whatever its character set, and compare without a collation's opinion.
CREATE TABLE IF NOT EXISTS `queue_meta` (
  one      TINYINT NOT NULL PRIMARY KEY CHECK (one = 1),
  version  INT     NOT NULL,            -- of this schema
  min_code INT     NOT NULL,            -- oldest schema version whose code may run on it
  catalog  BIGINT  NOT NULL DEFAULT 0   -- grows with each change of `queue_queue`
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS `queue_queue` (
  name        VARBINARY(128) NOT NULL PRIMARY KEY,
  paused      TINYINT NOT NULL DEFAULT 0,
  shards      INT     NOT NULL DEFAULT -1,   -- -1 in these three: the options of each process decide
  keep        INT     NOT NULL DEFAULT -1,   -- 1: finished jobs go to the archive
  max_backlog BIGINT  NOT NULL DEFAULT -1
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS `queue_lane` (
  lane       INT            NOT NULL AUTO_INCREMENT PRIMARY KEY,
  queue      VARBINARY(128) NOT NULL,
  priority   SMALLINT       NOT NULL,
  shard      SMALLINT       NOT NULL,
  mark       INT            NOT NULL,             -- random: tells it from one of the same number before a restore
  recheck_at BIGINT         NOT NULL DEFAULT 0,   -- not before then; set by whoever rechecks
  cursor_id  BIGINT         NOT NULL DEFAULT 0,   -- where somebody scanned: a new process starts here
  UNIQUE KEY of_queue (queue, priority, shard)
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS `queue_node` (
  id   INT            NOT NULL PRIMARY KEY,   -- random
  name VARBINARY(128) NOT NULL UNIQUE
) ENGINE = InnoDB;

-- Live jobs only: its size is the backlog. All times are microseconds since the
-- epoch. lane > 0 holds the ready side of a lane, where run_at is 0 and the key
-- so in the order of the ids; -lane holds the due side, in the order of run_at.
-- A job's id for ever is born << 43 | id. Claiming changes no column of an index,
-- and no width: the row is overwritten in its place.
CREATE TABLE IF NOT EXISTS `queue_job` (
  lane         INT                NOT NULL,
  run_at       BIGINT             NOT NULL DEFAULT 0,   -- when it is due; set on the due side only
  id           BIGINT             NOT NULL AUTO_INCREMENT,
  born         MEDIUMINT UNSIGNED NOT NULL,             -- the lane in which it was pushed
  attempt      SMALLINT           NOT NULL DEFAULT 0,
  max_attempts SMALLINT           NOT NULL,
  lease_until  BIGINT             NOT NULL DEFAULT 0,
  token        BIGINT             NOT NULL DEFAULT 0,
  node         INT                NOT NULL DEFAULT 0,
  lease_ms     INT                NOT NULL DEFAULT 0,   -- the job's own lease time; 0: none
  created_at   BIGINT             NOT NULL,
  kind         VARBINARY(128)     NOT NULL,
  unique_key   VARBINARY(255)     NOT NULL DEFAULT '',
  headers      BLOB,                                    -- JSON object
  errors       MEDIUMBLOB,                              -- JSON array, one entry per failed attempt
  payload      LONGBLOB           NOT NULL,
  PRIMARY KEY (lane, run_at, id),
  KEY by_id (id),
  CHECK ((lane > 0) = (run_at = 0))
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC STATS_PERSISTENT = 1 STATS_AUTO_RECALC = 1;

CREATE TABLE IF NOT EXISTS `queue_key` (
  queue      VARBINARY(128) NOT NULL,
  unique_key VARBINARY(255) NOT NULL,
  job_id     BIGINT         NOT NULL,   -- the job's id for ever
  PRIMARY KEY (queue, unique_key)
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS `queue_push` (
  push_id    VARBINARY(255) NOT NULL PRIMARY KEY,
  created_at BIGINT         NOT NULL,
  digest     VARBINARY(64)  NOT NULL,
  result     LONGBLOB       NOT NULL,
  KEY by_age (created_at)
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS `queue_archive` (
  id           BIGINT         NOT NULL,   -- the job's id for ever
  finished_at  BIGINT         NOT NULL,
  created_at   BIGINT         NOT NULL,
  state        SMALLINT       NOT NULL CHECK (state IN (1, 2, 3)),   -- 1 done, 2 dead, 3 cancelled
  priority     SMALLINT       NOT NULL,
  attempt      SMALLINT       NOT NULL,
  max_attempts SMALLINT       NOT NULL,
  node         INT            NOT NULL,
  lease_ms     INT            NOT NULL,
  queue        VARBINARY(128) NOT NULL,
  kind         VARBINARY(128) NOT NULL,
  unique_key   VARBINARY(255) NOT NULL,
  headers      BLOB,
  errors       MEDIUMBLOB,
  payload      LONGBLOB       NOT NULL,
  PRIMARY KEY (id, finished_at),
  KEY by_state (state, queue, finished_at, id),
  KEY by_age (finished_at)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

INSERT INTO `queue_meta` (one, version, min_code) VALUES (1, 1, 1)
ON DUPLICATE KEY UPDATE version = VALUES(version), min_code = VALUES(min_code);
