package dialect

// Statements are an engine's whole statements for what is neither insert, claim
// nor settle: rendered for a namespace, with :names for the parameters, ready
// to be pasted into a console. Every time goes in and comes out as microseconds
// since the epoch, every flag as 0 or 1, so that no driver's own mapping of
// times and booleans matters. "Now" is always the database's.
//
// Statements that return a job have the columns of [JobRow].
type Statements struct {
	TxOptions TxOptions
	Bind      int // the driver's parameter style, one of sqlx's bind types
	// LockMigration runs first in the transaction of a migration, in the place of
	// TxOptions.First, and holds back every other process that migrates the same
	// namespace until it ends.
	LockMigration string
	// UnlockMigration, if not empty, runs last in that transaction, whether it
	// worked or not: for engines whose DDL commits, and whose lock is so of the
	// connection.
	UnlockMigration string
	HasSchema       string // -> n: 1 if the meta table exists, else 0

	Version    string // -> version, min_code
	SetVersion string // :version, :min_code

	// CatalogState: -> lanes (how many there are), version, which changes with each
	// BumpCatalog, and also when lanes are not what they were, as after a restore:
	// their number alone would not tell.
	CatalogState string
	BumpCatalog  string // so that every process reads the catalog again
	Lanes        string // -> the columns of LaneRow
	Queues       string // -> the columns of QueueRow
	AddLane      string // :queue, :priority, :shard; does nothing if it exists
	FindLane     string // :queue, :priority, :shard -> the columns of LaneRow
	FindNewLane  string // the same after AddLane, even if the transaction's snapshot is older, where that is possible
	AddQueue     string // :name; does nothing if it exists
	SetQueue     string // :name, :paused, :shards, :keep, :max_backlog; null leaves a setting, -1 unsets it
	AddNode      string // :id, :name; does nothing if either exists
	FindNode     string // :name -> id

	// Occupied finds the lanes worth a claim without probing each: those whose
	// ready side holds rows (positive), and those with unleased rows that are due
	// (negative), the latter among the first :limit such rows; and 0 if there are
	// as many of them as that.
	Occupied string // -> lane

	Find         string // :id, :lane -> job, wherever in the queue of :lane it lives
	FindLocked   string // the same, and its row stays locked until the transaction ends; none if another has it locked
	FindArchived string // :id -> job, the newest of that id

	// Page returns live jobs in the order of the engine's key, which is (lane, id)
	// or (lane, run_at, id), after (:after_lane, :after_run_at, :after_id), with
	// :lane_from <= lane <= :lane_to, of :state and :kind unless those are empty;
	// at most :limit.
	Page string
	// PageArchive returns archived jobs in the order of (id, finished_at), after
	// (:after_id, :after_at), of :queue, :state (0: any) and :kind; at most :limit.
	PageArchive string

	// CountLane counts a lane as stored (negative: its due side), each number up
	// to :limit: -> ready, delayed, running, oldest (of the ready ones, 0: none).
	CountLane string
	// EstimateLane says about how many rows :lane holds, without counting them:
	// -> n, or rows, as an EXPLAIN calls it. It is asked only beyond CountLane's
	// limit.
	EstimateLane string
	CountBacklog string // :lane, :limit -> n: rows of a lane as stored, up to :limit
	CountArchive string // :queue, :state, :limit -> n, up to :limit

	// Move moves a job to a (negative) lane, due at :run_at, or :delay from now if
	// that is 0; but never in the past, which cursors have passed.
	Move      string // :lane, :id, :to_lane, :run_at, :delay
	Delete    string // :lane, :id
	ToArchive string // :lane, :id, :state, :errors: copies a live job there
	FreeKey   string // :queue, :key, :id
	TakeKey   string // :queue, :key, :id; does nothing if the key is taken

	// NodeJobs returns what a node holds, in the order of Page: :node, :after_lane,
	// :after_run_at, :after_id, :limit -> lane, run_at, id, token, attempt.
	NodeJobs string

	// LockDead returns dead jobs in the order of (queue, finished_at, id), after
	// (:after_queue, :after_at, :after_id), of :queue, :kind and :id unless those
	// are empty or 0; at most :limit. Their rows stay locked until the
	// transaction ends; rows that others have locked are passed over.
	LockDead     string
	Restore      string // :id, :finished_at, :lane: copies an archived job back to (negative) lane, due now, no attempts used
	DropArchived string // :id, :finished_at
	Purge        string // :age, :state (0: any), :queue, :limit: deletes archived jobs older than :age microseconds

	AddPush     string // :push_id, :digest; does nothing if it exists, after waiting for whoever adds it just now
	SetPush     string // :push_id, :result
	FindPush    string // :push_id -> digest, result
	PurgePushes string // :age, :limit: forgets pushes older than :age microseconds
}

// A JobRow is a job as statements return it, live or archived.
type JobRow struct {
	Lane        int32  `db:"lane"` // as stored; 0: archived
	ID          int64  `db:"id"`
	Queue       string `db:"queue"`
	Priority    int    `db:"priority"`
	Kind        string `db:"kind"`
	State       string `db:"state"` // ready, delayed, running, done, dead, cancelled
	Attempt     int    `db:"attempt"`
	MaxAttempts int    `db:"max_attempts"`
	LeaseMillis int64  `db:"lease_ms"`
	CreatedAt   int64  `db:"created_at"`
	RunAt       int64  `db:"run_at"`       // 0: none
	LeasedUntil int64  `db:"leased_until"` // 0: not leased
	FinishedAt  int64  `db:"finished_at"`  // 0: not finished
	Node        string `db:"node"`         // that holds or held it; empty: none
	UniqueKey   string `db:"unique_key"`
	Headers     string `db:"headers"`
	Errors      string `db:"errors"`
	Payload     []byte `db:"payload"`
}

// A LaneRow is a lane of the catalog.
type LaneRow struct {
	Lane     int32  `db:"lane"`
	Queue    string `db:"queue"`
	Priority int    `db:"priority"`
	Shard    int    `db:"shard"`
	Cursor   int64  `db:"cursor_id"` // where some process scans; a hint for new ones
}

// A QueueRow is a queue's settings in the catalog. -1 means not set.
type QueueRow struct {
	Name       string `db:"name"`
	Paused     int    `db:"paused"`
	Shards     int    `db:"shards"`
	Keep       int    `db:"keep"`
	MaxBacklog int64  `db:"max_backlog"`
}
