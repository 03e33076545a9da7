// Package queue is a job queue in the SQL database that a team already runs.
//
// A [Queue] pushes, pops and settles jobs over a *sql.DB of the user's and the
// dialect of its engine:
//
//	q, err := queue.New(db, postgres.Dialect{}, nil)
//	…
//	pushed, err := q.Push(ctx, queue.NewJob{Queue: "mail", Kind: "welcome", Payload: body})
//	…
//	jobs, err := q.Pop(ctx, 10, &queue.PopOptions{Queues: []string{"mail"}, Lease: time.Minute})
//	for _, job := range jobs {
//		if err := send(job); err != nil {
//			q.Fail(ctx, job, err, nil)
//			continue
//		}
//		q.Ack(ctx, job)
//	}
//
// # The contract
//
// Jobs run at least once. A popped job is a lease: a token and a deadline. Ack,
// Fail, Release and Extend act only while the token is the current one;
// otherwise they report [ErrLeaseLost] and change nothing. AckTx makes the
// effects of a job exactly once, when they are in the same transaction.
//
// The database's clock decides what is due and what has expired. No process has
// to run beside the queue: an expired lease or a due job is found by the next
// pop of anyone.
//
// Deadlocks, serialization failures and lock time-outs in the library's own
// transactions are retried inside, for Options.RetryBudget, and counted (see
// [Queue.Counters]). A call whose name ends in Tx runs in the caller's
// transaction, commits or vanishes with it, and never retries.
package queue

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sqlqueue/queue/dialect"
)

// DB is the user's connection pool: a *sql.DB or a *sqlx.DB. The queue never
// closes it and never changes its settings.
type DB = dialect.DB

// Tx is the caller's transaction: a *sql.Tx or a *sqlx.Tx.
type Tx = dialect.Tx

// Options of a Queue. The zero value of each field is the default given.
type Options struct {
	// Schema and Prefix place the tables. Default: the engine's usual schema
	// (public on PostgreSQL), and "queue_".
	Schema, Prefix string
	// Node is this process's name, which jobs show while it holds them. It must
	// be unique among running processes. Default: host name, process id and a
	// random part.
	Node string
	// Shards is how many lanes each priority of a queue is spread over, unless
	// the queue's own settings say otherwise. More shards, less contention among
	// many consumers; one shard keeps first in, first out. Default 1.
	Shards int
	// KeepFinished moves acked and cancelled jobs to the archive instead of
	// deleting them, unless the queue's own settings say otherwise. Dead jobs are
	// always kept.
	KeepFinished bool
	// MaxPayload is the limit on a payload, in bytes. Default DefaultMaxPayload.
	MaxPayload int
	// MaxAttempts of a job that does not say its own. Default 10.
	MaxAttempts int
	// MaxBacklog bounds the live jobs of each queue, unless the queue's own
	// settings say otherwise. See [Settings]. 0: no bound.
	MaxBacklog int64
	// Backoff is the delay before the next attempt, after attempt failures.
	// Default: DefaultBackoff.
	Backoff func(attempt int) time.Duration
	// RetryBudget is how long the library retries a transaction of its own that
	// the database refused for passing reasons. Default 10 s.
	RetryBudget time.Duration
	// PushIDLife is how long a push id is remembered. Default 24 h.
	PushIDLife time.Duration
	// NoPrepare keeps the library from preparing statements, for poolers that do
	// not carry them.
	NoPrepare bool
	// Logger gets warnings about the set-up. Default slog.Default().
	Logger *slog.Logger
}

func (o *Options) defaults() (Options, error) {
	var out Options
	if o != nil {
		out = *o
	}
	if out.Node == "" {
		host, _ := os.Hostname()
		b := make([]byte, 4)
		rand.Read(b)
		out.Node = clipText(host, MaxNameBytes-40) + "-" + strconv.Itoa(os.Getpid()) + "-" + hex.EncodeToString(b)
	}
	if out.Shards == 0 {
		out.Shards = 1
	}
	if out.MaxPayload == 0 {
		out.MaxPayload = DefaultMaxPayload
	}
	if out.MaxAttempts == 0 {
		out.MaxAttempts = 10
	}
	if out.Backoff == nil {
		out.Backoff = DefaultBackoff
	}
	if out.RetryBudget == 0 {
		out.RetryBudget = 10 * time.Second
	}
	if out.PushIDLife == 0 {
		out.PushIDLife = 24 * time.Hour
	}
	if out.Logger == nil {
		out.Logger = slog.Default()
	}
	return out, errors.Join(
		checkText("Options.Node", out.Node, MaxNameBytes),
		checkCount("Options.Shards", out.Shards, MaxShards),
		checkCount("Options.MaxPayload", out.MaxPayload, MaxPushBytes),
		checkCount("Options.MaxAttempts", out.MaxAttempts, MaxAttempts),
		atLeast("Options.MaxBacklog", out.MaxBacklog, 0),
		atLeast("Options.RetryBudget", out.RetryBudget, 0),
		atLeast("Options.PushIDLife", out.PushIDLife, time.Second),
	)
}

func atLeast[T int64 | time.Duration](field string, v, min T) error {
	if v < min {
		return invalid(field, v, fmt.Sprintf("use at least %v", min))
	}
	return nil
}

// A Queue gives access to all queues of one namespace. It is safe for
// concurrent use; a process needs one. It starts no goroutine that outlives a
// call, but for pops whose caller has left.
type Queue struct {
	options  Options
	engine   dialect.Engine
	texts    *dialect.Statements
	session  *dialect.Session
	counters counters

	ready         atomic.Bool // the schema and the server have been checked
	server        atomic.Pointer[dialect.Server]
	node          atomic.Int32
	turn          atomic.Uint32 // spreads pushes over shards
	catalog       catalogCache
	popper        popper
	backlog       backlogCache
	occupiedLanes occupiedCache
	pool          poolWatch

	closing sync.Once
	closed  atomic.Bool
}

// New returns a Queue over a pool. It checks the options and touches nothing:
// the first call that needs the database checks server and schema.
func New(db DB, d dialect.Dialect, opts *Options) (*Queue, error) {
	options, err := opts.defaults()
	if err != nil {
		return nil, err
	}
	if db == nil {
		return nil, invalid("db", nil, "pass a *sql.DB or a *sqlx.DB")
	}
	if d == nil {
		return nil, invalid("d", nil, "pass the dialect of the database's engine")
	}
	engine, err := d.Open(dialect.Namespace{Schema: options.Schema, Prefix: options.Prefix})
	var name *dialect.NameError
	if errors.As(err, &name) {
		return nil, invalid("Options."+name.Field, name.Value, name.Remedy)
	}
	if err != nil {
		return nil, fmt.Errorf("queue: %w: %w", ErrInvalid, err)
	}
	texts := engine.Statements()
	q := &Queue{
		options: options,
		engine:  engine,
		texts:   texts,
		session: dialect.NewSession(db, texts.TxOptions, texts.Bind, !options.NoPrepare),
	}
	q.popper.init(q)
	q.pool.db = db
	return q, nil
}

// Node returns this process's name.
func (q *Queue) Node() string { return q.options.Node }

// Close waits for pops that are still under way, gives back what they claimed
// for callers who have left, and frees the prepared statements. It does not
// close the pool. Calls made after Close return ErrClosed.
func (q *Queue) Close() error {
	var err error
	q.closing.Do(func() {
		q.popper.mu.Lock()
		q.closed.Store(true)
		q.popper.mu.Unlock()
		q.popper.wait()
		err = q.session.Close()
	})
	return err
}

// Server says which server the queue runs on, as engine and version.
func (q *Queue) Server(ctx context.Context) (engine, version string, err error) {
	if q.closed.Load() {
		return "", "", ErrClosed
	}
	if err := q.check(ctx, q.session); err != nil {
		return "", "", err
	}
	s := q.server.Load()
	return s.Engine, s.Version, nil
}
