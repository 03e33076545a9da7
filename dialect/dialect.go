// Package dialect is the seam between package queue and a database engine.
//
// An engine is one small folder beside this one (postgres, sqlite, …) that
// implements [Engine]. It executes the three operations whose shape differs
// most between databases — insert, claim and settle — and hands out whole
// statements, as data, for everything else. The core never asks which engine
// it talks to: whatever differs is a method or data of the Engine.
//
// # Lanes
//
// The live table's key leads with a lane: a small integer for one (queue,
// priority, shard). Every lane has two sides, told apart by the sign of the
// lane column:
//
//	 lane  jobs that are ready in the order of their ids (first in, first out)
//	-lane  jobs with a due time (run_at): delayed, or come back to be tried again
//
// Claiming a job changes only columns that no index holds. See DESIGN.md.
package dialect

import (
	"context"
	"database/sql"
	"errors"
	"time"
)

// A Dialect makes engines. It is what users pass to queue.New, so its concrete
// type carries the options of one engine family.
type Dialect interface {
	// Open renders the dialect for a namespace. It does not touch a database.
	Open(Namespace) (Engine, error)
}

// An Engine is a dialect rendered for one namespace. Its methods are safe for
// concurrent use.
//
// A method that takes a [Session] runs either in a transaction that the caller
// holds ([Session.InTx] is true) or as one atomic operation of its own. It
// never retries: the core does that, and only where the transaction is the
// library's.
type Engine interface {
	// Migrations returns the schema's history, oldest first. It is forward only:
	// a published migration is never edited.
	Migrations() []Migration

	// Check reads what the core must know of a server before it is used, and
	// refuses, in clear words, one that cannot serve.
	Check(context.Context, *Session) (Server, error)

	// Insert stores rows and answers each by its position. All or none are
	// stored. ErrUnknownLane, with nothing stored, means that the database does
	// not know a row's lane, or knows it as another queue's.
	Insert(context.Context, *Session, []Row) ([]Inserted, error)

	// Claim leases up to N jobs, walking the steps in order until it has them.
	// Two calls never return the same job while its lease lives.
	Claim(context.Context, *Session, ClaimRequest) (Claimed, error)

	// Settle applies one verdict to each lease, as long as its token is the
	// current one, and answers each by its position.
	Settle(context.Context, *Session, []Settlement) ([]Outcome, error)

	// Statements returns the engine's other statements.
	Statements() *Statements

	// Classify says what an error of any driver for this engine means.
	Classify(error) Class
}

// A Server is what [Engine.Check] found.
type Server struct {
	Engine  string // "postgres", "sqlite", …: for people and reports, never for decisions
	Version string // the server's own words
	// Autocommit reports that a statement outside a transaction runs at READ
	// COMMITTED (or an equivalent), so that an operation of one statement needs
	// no BEGIN and COMMIT around it.
	Autocommit bool
	// SharedPool reports that a single connection serves the whole process well,
	// so that a pool of one deserves no warning.
	SharedPool bool
	// ManyLanes is the number of lanes beyond which a pop asks
	// Statements.Occupied which of them are worth a claim, instead of probing
	// each. 0: DefaultManyLanes.
	ManyLanes int
	// MaxPayload bounds a payload, in bytes. 0: the server does not.
	MaxPayload int
	// Warnings are things an operator should know; the core logs each once.
	Warnings []string
}

// DefaultManyLanes is Server.ManyLanes where an engine does not say.
const DefaultManyLanes = 128

// A Migration brings the schema from Version-1 to Version.
type Migration struct {
	Version int
	// MinCode is the oldest schema version that code may have been written for
	// and still run on this schema. Rolling deploys work while it stays low.
	MinCode    int
	Statements []string
}

// ErrUnknownLane is what Insert returns when the caller's view of the lanes is
// out of date, as it is after the database was restored from a backup.
var ErrUnknownLane = errors.New("the lane is not in the catalog")

// Bits of a job's id: the lane in which it was pushed, then a sequence.
// The id finds the job for ever: by its lane first, then through the other
// lanes of the same queue, then in the archive.
const (
	SeqBits  = 43
	LaneBits = 19
	MaxLane  = 1<<LaneBits - 1
	// DueBorn marks the id of a job that was pushed with a due time, on engines
	// whose key is the id itself, so that the two sides of a lane lie apart.
	DueBorn = int64(1) << (SeqBits + LaneBits)
)

// LaneOf returns the lane in which the job with this id was pushed.
func LaneOf(id int64) int32 { return int32(id >> SeqBits & MaxLane) }

// A Row is a job to insert.
type Row struct {
	Lane        int32  // positive
	Queue       string // the lane's queue, verified by the insert
	Kind        string
	Payload     []byte
	Headers     string        // JSON object, or empty
	Delay       time.Duration // due after this long, by the database's clock; 0: at once
	RunAt       time.Time     // or due at this time; zero: not set
	MaxAttempts int
	UniqueKey   string        // empty: none
	Lease       time.Duration // the job's own lease time; 0: the pop's
}

// Inserted answers one [Row].
type Inserted struct {
	ID int64
	// Duplicate: a live job of the queue holds the unique key; ID is that job's
	// and nothing was stored for this row.
	Duplicate bool
}

// A Step is one scan of a claim.
type Step struct {
	Lane int32 // positive
	// Due scans the lane's due side, in the order of (run_at, id), after the
	// position (FromAt, FromID). Otherwise the ready side, id >= FromID.
	Due    bool
	FromID int64
	FromAt int64 // microseconds since the epoch
	// Recheck walks both sides of the lane from their very start, the ready side
	// up to FromID, for what the cursors have passed: leases that ran out, rows
	// whose transaction committed late. Over all processes it happens once per
	// lane and interval, which adapts to its cost; when it is not this caller's
	// turn the step is skipped. FromID is stored as a hint for new processes.
	Recheck bool
	// Only claims the one job FromID, on the side that Due says, due or not.
	Only bool
}

// A ClaimRequest asks for up to N jobs.
type ClaimRequest struct {
	Steps []Step
	N     int
	Token int64 // random, positive
	Node  int32
	Lease time.Duration // for jobs that have no lease time of their own
}

// Recheck's interval: never shorter than RecheckInterval, nor than the time the
// last one took times RecheckCost, so that rechecks take a few percent of one
// connection's time at most.
const (
	RecheckInterval = 400 * time.Millisecond
	RecheckCost     = 25
)

// Claimed is what a claim returned.
type Claimed struct {
	Now int64 // the database's clock, microseconds since the epoch
	// Rows in the order of the steps and of each step's scan.
	Rows []ClaimedRow
}

// A ClaimedRow is a job under a new lease. Times are microseconds since the epoch.
type ClaimedRow struct {
	Step        int   // index into ClaimRequest.Steps
	Lane        int32 // as stored: negative on the due side
	ID          int64
	RunAt       int64 // 0: none
	CreatedAt   int64
	LeasedUntil int64
	Attempt     int // counting this one
	MaxAttempts int
	Kind        string
	UniqueKey   string
	Headers     string
	Errors      string
	Payload     []byte
}

// A Verdict is what happens to a leased job.
type Verdict uint8

const (
	// Delete removes the job and frees its unique key.
	Delete Verdict = iota + 1
	// Archive moves the job to the archive in the state given, and frees its
	// unique key.
	Archive
	// Return gives the job back: due after Delay, on the lane's due side, with
	// Attempt and Errors written.
	Return
	// Extend moves the lease's end to Delay from now. A row that another
	// transaction has locked is left alone and answered with Locked.
	Extend
)

// A Settlement is a verdict on one lease.
type Settlement struct {
	Lane    int32 // as stored: negative on the due side
	RunAt   int64 // as stored: microseconds since the epoch; 0: none
	ID      int64
	Token   int64
	Verdict Verdict
	Delay   time.Duration
	// Attempt is the number of attempts to record (Return only).
	Attempt int
	// Errors replaces the job's error history; empty leaves it.
	Errors string
	Keyed  bool  // the job has a unique key
	State  State // Archive only
}

// An Outcome answers one [Settlement].
type Outcome uint8

const (
	Lost    Outcome = iota // the token is not the current one; nothing changed
	Applied                // done
	Locked                 // the lease is still held, but its row is locked by another transaction
)

// A State is what an archived job ended as.
type State int16

const (
	Done      State = 1 // acked
	Dead      State = 2 // out of attempts, or failed for good
	Cancelled State = 3
)

// A Class says what an error means for the caller.
type Class uint8

const (
	Other           Class = iota
	Deadlock              // chosen as a deadlock's victim
	Serialization         // a serialization failure or snapshot conflict
	Busy                  // the database or the row is locked; nothing was done
	Disconnected          // the connection was lost: what was under way may or may not have happened
	Unavailable           // the server refuses connections for now (starting, stopping, too many)
	MissingSchema         // a table or function of the schema does not exist
	UniqueViolation       // a unique index refused the row
	Denied                // privileges are missing
)

// Transient reports that nothing was done and that doing it again may succeed.
func (c Class) Transient() bool { return c == Deadlock || c == Serialization || c == Busy }

func (c Class) String() string {
	switch c {
	case Deadlock:
		return "deadlock"
	case Serialization:
		return "serialization"
	case Busy:
		return "busy"
	case Disconnected:
		return "disconnected"
	case Unavailable:
		return "unavailable"
	case MissingSchema:
		return "missing schema"
	case UniqueViolation:
		return "unique violation"
	case Denied:
		return "denied"
	}
	return "other"
}

// Chunks splits rows so that each part has at most so many rows, and so many
// bytes of payload unless it is a single row.
func Chunks(rows []Row, maxRows, maxBytes int) [][]Row {
	var chunks [][]Row
	start, size := 0, 0
	for i, r := range rows {
		if i > start && (i-start == maxRows || size+len(r.Payload) > maxBytes) {
			chunks = append(chunks, rows[start:i])
			start, size = i, 0
		}
		size += len(r.Payload)
	}
	return append(chunks, rows[start:])
}

// TxOptions are how the library begins its own transactions on the engine.
type TxOptions struct {
	Isolation sql.IsolationLevel
	// First, when not empty, is a statement that opens each transaction, for
	// engines whose transactions must announce that they will write.
	First string
}
