// Package dialecttest is the conformance suite: every promise of package queue,
// as tests that any dialect must pass on a real server. An engine adopts it in
// a few lines (see postgres and sqlite), and runs it once for each driver that
// it supports.
package dialecttest

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/sqlqueue/queue"
	"github.com/sqlqueue/queue/dialect"
)

// An Engine is what the suite must know of a dialect under test.
type Engine struct {
	Name    string // "postgres", "sqlite": as in QUEUE_TEST_REQUIRE
	Driver  string // of database/sql
	Dialect dialect.Dialect

	// NewDatabase returns the DSN of an empty database, removed after the test.
	NewDatabase func(testing.TB) string

	// Restart, if the engine is a server, returns the DSN of a server of the
	// test's own and a function that restarts it: by force or in order.
	Restart func(testing.TB) (dsn string, restart func(crash bool))

	// AgeLeases moves the end of every lease :micros microseconds back, and
	// AgeDue the due time of every job on the due side. AgeArchive does so with
	// the end of every archived job. They name the tables of the default
	// namespace.
	AgeLeases, AgeDue, AgeArchive string

	// OneBad is a statement after which the database refuses to store a second
	// job of the kind "bad". It names the tables of the default namespace.
	OneBad string

	// OneWriter reports that an open transaction that has written holds back
	// every other writer of the database.
	OneWriter bool

	// Only, if set, says which cases to run, by name: for a variant of an engine
	// that differs in one thing.
	Only func(name string) bool

	// LanesDeadlock reports that transactions of callers that make a queue's first
	// lane at once may end in a deadlock, which is theirs to answer.
	LanesDeadlock bool

	// MaxPayload is the largest payload that the tested servers take, in bytes. 0:
	// as large as any.
	MaxPayload int

	// MaxConns is what the suite sets as the pool's limit where a test does not
	// care. 0: 16.
	MaxConns int

	// HostileDSNs are variations of a DSN with defaults that must not matter: an
	// isolation level, a time zone, a search path, a driver's mode. The key names
	// the variation.
	HostileDSNs func(dsn string) map[string]string

	// ScriptDSN is the variation of a DSN whose connections take a script of many
	// statements at once; nil where every connection does.
	ScriptDSN func(dsn string) string

	// HoldSnapshot opens a transaction on its own connection that keeps a
	// snapshot from now on, so that dead rows stay; nil where an engine has none.
	HoldSnapshot func(context.Context, testing.TB, *sql.DB) (release func())

	// Analyze refreshes the planner's statistics; empty where there are none.
	Analyze string

	// TableReads tells how often the live table was read whole since the server
	// started, and how many of its pages and its indexes' were touched: -> scans,
	// pages. It counts what connections did that are closed. Empty where the
	// engine cannot tell.
	TableReads string

	// ServerTime returns what reads the time that the server has spent on
	// statements in this database so far, up to now those of connections that are
	// closed. nil where an engine cannot tell.
	ServerTime func(testing.TB, *sql.DB) func() time.Duration

	// Refusals provokes an error of each of the transient classes that the
	// engine has, and returns them as the driver made them.
	Refusals func(testing.TB, *sql.DB) map[dialect.Class]error

	// DamageHeaders makes the headers of the live job :id undecodable.
	DamageHeaders string

	// RegressIDs makes the ids of new jobs begin anew; ForgetLanes removes the
	// lanes from the catalog and makes their numbers begin anew. Both is what a
	// restore from a backup does under a running process. Each has one statement
	// or several.
	RegressIDs, ForgetLanes []string

	test string // the name of the test that Run was called with
}

// Run runs the suite.
func Run(t *testing.T, e Engine) {
	e.test = t.Name()
	if runChild(t, e) {
		return
	}
	if e.MaxConns == 0 {
		e.MaxConns = 16
	}
	for _, c := range cases {
		if e.Only != nil && !e.Only(c.name) {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			if c.parallel {
				t.Parallel()
			}
			c.run(t, e)
		})
	}
}

// A testCase is one promise. Cases register themselves with add, in the file
// about their subject.
type testCase struct {
	name     string
	parallel bool
	run      func(*testing.T, Engine)
}

var cases []testCase

// add registers a case that may run beside others.
func add(name string, run func(*testing.T, Engine)) {
	cases = append(cases, testCase{name, true, run})
}

// addAlone registers a case that measures time or takes the whole server.
func addAlone(name string, run func(*testing.T, Engine)) {
	cases = append(cases, testCase{name, false, run})
}

// A fixture is a database with a schema, and a queue on it.
type fixture struct {
	*testing.T
	e   Engine
	dsn string
	db  *sql.DB
	q   *queue.Queue
	ctx context.Context
	log *logBuffer
}

// start makes a fixture; opts may be nil.
func start(t *testing.T, e Engine, opts *queue.Options) *fixture {
	t.Helper()
	f := &fixture{T: t, e: e, dsn: e.NewDatabase(t), log: &logBuffer{}}
	var cancel context.CancelFunc
	f.ctx, cancel = context.WithTimeout(context.Background(), 5*time.Minute)
	t.Cleanup(cancel)
	f.db = f.open(f.dsn)
	f.q = f.queue(f.db, opts)
	if err := f.q.Migrate(f.ctx); err != nil {
		t.Fatal(err)
	}
	return f
}

// open opens another pool, closed after the test.
func (f *fixture) open(dsn string) *sql.DB {
	f.Helper()
	db, err := sql.Open(f.e.Driver, dsn)
	if err != nil {
		f.Fatal(err)
	}
	db.SetMaxOpenConns(f.e.MaxConns)
	db.SetMaxIdleConns(f.e.MaxConns)
	f.Cleanup(func() { db.Close() })
	return db
}

// queue makes another Queue on a pool, as another process would have it.
func (f *fixture) queue(db queue.DB, opts *queue.Options) *queue.Queue {
	f.Helper()
	var o queue.Options
	if opts != nil {
		o = *opts
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.NewTextHandler(f.log, nil))
	}
	q, err := queue.New(db, f.e.Dialect, &o)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { q.Close() })
	return q
}

// other is a second process's queue on the same database, with its own pool.
func (f *fixture) other(opts *queue.Options) *queue.Queue {
	f.Helper()
	return f.queue(f.open(f.dsn), opts)
}

// must ends the test on an error.
func (f *fixture) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

func (f *fixture) push(jobs ...queue.NewJob) []queue.Pushed {
	f.Helper()
	out, err := f.q.PushMany(f.ctx, jobs, nil)
	f.must(err)
	return out
}

// pop pops up to n jobs of queue "q" with a lease of a minute.
func (f *fixture) pop(n int) []*queue.Job {
	f.Helper()
	jobs, err := f.q.Pop(f.ctx, n, &queue.PopOptions{Queues: []string{"q"}, Lease: time.Minute})
	f.must(err)
	return jobs
}

// popOne pops the one job there must be.
func (f *fixture) popOne() *queue.Job {
	f.Helper()
	jobs := f.pop(1)
	if len(jobs) != 1 {
		f.Fatalf("popped %d jobs, want 1", len(jobs))
	}
	return jobs[0]
}

// popNone fails if anything can be popped.
func (f *fixture) popNone() {
	f.Helper()
	if jobs := f.pop(1); len(jobs) != 0 {
		f.Fatalf("popped job %d, want none", jobs[0].ID)
	}
}

// within polls until ok returns true, and fails after d.
func (f *fixture) within(d time.Duration, what string, ok func() bool) {
	f.Helper()
	deadline := time.Now().Add(d)
	for !ok() {
		if time.Now().After(deadline) {
			f.Fatalf("not within %v: %s", d, what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// exec runs SQL of the test's own.
func (f *fixture) exec(text string, args ...any) {
	f.Helper()
	if _, err := f.db.ExecContext(f.ctx, text, args...); err != nil {
		f.Fatalf("%s: %v", text, err)
	}
}

// age runs one of the engine's Age statements.
func (f *fixture) age(text string, d time.Duration) {
	f.Helper()
	s := f.session()
	if _, err := s.Run(f.ctx, text, dialect.Params{"micros": d.Microseconds()}); err != nil {
		f.Fatal(err)
	}
}

// session and statements give a test direct access to the tables.
func (f *fixture) session() *dialect.Session {
	st := f.statements()
	return dialect.NewSession(f.db, st.TxOptions, st.Bind, false)
}

func (f *fixture) statements() *dialect.Statements {
	f.Helper()
	e, err := f.e.Dialect.Open(dialect.Namespace{})
	f.must(err)
	return e.Statements()
}

// stats returns the numbers of queue "q".
func (f *fixture) stats() queue.Stats {
	f.Helper()
	s, err := f.q.Stats(f.ctx, "q")
	f.must(err)
	return s
}

// job is a job of queue "q" with a payload.
func job(payload string) queue.NewJob {
	return queue.NewJob{Queue: "q", Kind: "k", Payload: []byte(payload)}
}

// jobs is n of them, numbered.
func jobs(n int) []queue.NewJob {
	out := make([]queue.NewJob, n)
	for i := range out {
		out[i] = job(fmt.Sprint(i))
	}
	return out
}

// randomName is a name nobody else uses.
func randomName(prefix string) string { return fmt.Sprintf("%s%08x", prefix, rand.Uint32()) }

// A logBuffer collects what a queue logs.
type logBuffer struct {
	mu sync.Mutex
	b  []byte
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.b = append(l.b, p...)
	return len(p), nil
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.b)
}
