package dialecttest

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/sqlqueue/queue"
	"github.com/sqlqueue/queue/dialect"
)

func init() {
	add("defaults: of the DSN do not matter", defaultsDSN)
	add("defaults: a pool of one", defaultsPoolOfOne)
	add("defaults: a pool of one that waits for itself is warned about", defaultsPoolStuck)
	add("defaults: a pool that keeps too few idle connections is warned about", defaultsMaxIdle)
	add("defaults: a pooler that changes connections", defaultsPooler)
	add("defaults: a pool of sqlx", defaultsSqlx)
}

// A life takes jobs through all that can happen to them, in one process with
// one consumer: whatever its pool and its session, it gets the same answers and
// nothing has to be tried again.
type life struct {
	*fixture
	rounds int
	q      *queue.Queue
	begin  func() (queue.Tx, error)
}

func (l life) run() {
	l.Helper()
	l.must(l.q.Migrate(l.ctx))
	l.must(l.q.Migrate(l.ctx))
	for range l.rounds { // from the second on with everything prepared
		l.pushes()
		l.settles()
		l.manages()
		l.views()
	}
	c := l.q.Counters()
	same(l.fixture, "retries", c.Retries, struct{ Deadlock, Serialization, Busy int64 }{})
	same(l.fixture, "refused", c.Refused, struct{ Deadlock, Serialization, Busy, Disconnected int64 }{})
}

func (l life) tx(end bool, fn func(queue.Tx)) {
	l.Helper()
	tx := must(l.begin())(l.fixture)
	defer tx.Rollback()
	fn(tx)
	if end {
		l.must(tx.Commit())
	}
}

func (l life) pushes() {
	l.Helper()
	f := l.fixture
	const n = 3000 // more than one statement takes
	batch := jobs(n)
	batch[0].UniqueKey, batch[n-1].UniqueKey = "u", "u"
	batch[1].Headers = map[string]string{`"a"`: `\b`}
	batch[2].Payload = []byte{0, 0xff, '\\', '\'', '"'}
	opts := &queue.PushOptions{PushID: randomName("id")}
	pushed := must(l.q.PushMany(l.ctx, batch, opts))(f)
	same(f, "the second of a key", pushed[n-1], queue.Pushed{ID: pushed[0].ID, Duplicate: true})
	sameList(f, "pushed again", must(l.q.PushMany(l.ctx, batch, opts))(f), pushed)
	l.tx(false, func(tx queue.Tx) { must(l.q.PushManyTx(l.ctx, tx, jobs(n), nil))(f) })
	var last queue.Pushed
	l.tx(true, func(tx queue.Tx) {
		last = must(l.q.PushTx(l.ctx, tx, queue.NewJob{Queue: "q", Kind: "k", Priority: -1}))(f)
		same(f, "a duplicate", must(l.q.PushTx(l.ctx, tx, keyed("u")))(f), queue.Pushed{ID: pushed[0].ID, Duplicate: true})
	})

	var got []*queue.Job
	f.within(soon, "all popped", func() bool {
		got = append(got, must(l.q.Pop(l.ctx, queue.MaxBatch, &queue.PopOptions{Queues: []string{"q"}, Lease: time.Minute}))(f)...)
		return len(got) >= n
	})
	sameList(f, "popped", ids(got), append(pushedIDs(pushed[:n-1]), last.ID))
	same(f, "header", got[1].Headers[`"a"`], `\b`)
	same(f, "payload", string(got[2].Payload), string(batch[2].Payload))
	l.must(l.q.Ack(l.ctx, got...))
	same(f, "stats", must(l.q.Stats(l.ctx, "q"))(f), queue.Stats{Queue: "q"})
}

func (l life) settles() {
	l.Helper()
	f := l.fixture
	one := must(l.q.PushMany(l.ctx, []queue.NewJob{keyed("v"), job("a"), job("b"), job("c"), job("d")}, nil))(f)
	got := must(l.q.Pop(l.ctx, 5, nil))(f)
	sameList(f, "popped", ids(got), pushedIDs(one))
	l.must(l.q.Extend(l.ctx, time.Minute, got...))
	l.must(l.q.Release(l.ctx, got[0]))
	l.must(l.q.Fail(l.ctx, got[1], errBoom, &queue.FailOptions{RetryIn: time.Hour}))
	l.must(l.q.Fail(l.ctx, got[2], errBoom, &queue.FailOptions{Dead: true}))
	l.tx(false, func(tx queue.Tx) { l.must(l.q.AckTx(l.ctx, tx, got[3], got[4])) })
	l.tx(true, func(tx queue.Tx) {
		l.must(l.q.AckTx(l.ctx, tx, got[3]))
		l.must(l.q.FailTx(l.ctx, tx, got[4], errBoom, &queue.FailOptions{RetryIn: -1}))
	})
	l.wantErr("an ack again", l.q.Ack(l.ctx, got[3]), queue.ErrLeaseLost)
	s := must(l.q.Stats(l.ctx, "q"))(f)
	same(f, "stats", fmt.Sprint(s.Ready, s.Delayed, s.Running, s.Dead), "2 1 0 1")

	info := must(l.q.Get(l.ctx, got[1].ID))(f)
	same(f, "state", info.State, queue.Delayed)
	if d := info.RunAt.Sub(info.CreatedAt); d < time.Hour || d > time.Hour+time.Minute {
		l.Fatalf("due %v after its push, want an hour", d)
	}
	if d := info.Errors[0].At.Sub(info.CreatedAt); d < -time.Second || d > time.Minute {
		l.Fatalf("failed %v after its push", d)
	}
	n, _, err := l.q.Redrive(l.ctx, queue.Redrive{Queue: "q"})
	l.must(err)
	same(f, "redriven", n, 1)
	again := must(l.q.Pop(l.ctx, 10, nil))(f)
	same(f, "popped again", len(again), 3)
	same(f, "requeued", must(l.q.RequeueNode(l.ctx, l.q.Node()))(f), 3)
	l.wantErr("an ack of what was requeued", l.q.Ack(l.ctx, again[0]), queue.ErrLeaseLost)
	l.must(l.q.Ack(l.ctx, must(l.q.Pop(l.ctx, 10, nil))(f)...))
	l.must(l.q.Cancel(l.ctx, got[1].ID))
	same(f, "jobs", len(must(l.q.Peek(l.ctx, "q", 10))(f)), 0)
}

func (l life) manages() {
	l.Helper()
	f := l.fixture
	l.must(l.q.Configure(l.ctx, "q", queue.Settings{KeepFinished: ptr(1), Shards: ptr(2)}))
	at := time.Now().Add(time.Hour).Truncate(time.Microsecond)
	p := must(l.q.PushMany(l.ctx, []queue.NewJob{{Queue: "q", Kind: "k", RunAt: at}, keyed("w")}, nil))(f)
	same(f, "due at", must(l.q.Get(l.ctx, p[0].ID))(f).RunAt.Equal(at), true)
	l.must(l.q.Reprioritize(l.ctx, p[0].ID, 3))
	same(f, "due at", must(l.q.Get(l.ctx, p[0].ID))(f).RunAt.Equal(at), true)
	l.must(l.q.RescheduleAt(l.ctx, p[0].ID, at.Add(time.Hour)))
	same(f, "due at", must(l.q.Get(l.ctx, p[0].ID))(f).RunAt.Equal(at.Add(time.Hour)), true)
	l.must(l.q.Reschedule(l.ctx, p[0].ID, 0))
	l.must(l.q.Pause(l.ctx, "q"))
	same(f, "popped while paused", len(must(l.q.Pop(l.ctx, 10, nil))(f)), 0)
	l.must(l.q.Resume(l.ctx, "q"))
	l.must(l.q.Cancel(l.ctx, p[1].ID))
	j := must(l.q.PopID(l.ctx, p[0].ID, time.Minute))(f)
	same(f, "priority", j.Priority, 3)
	l.must(l.q.Ack(l.ctx, j))
	l.must(l.q.Configure(l.ctx, "q", queue.Settings{KeepFinished: ptr(-1), Shards: ptr(-1)}))
}

func (l life) views() {
	l.Helper()
	f := l.fixture
	var states []queue.State
	for info, err := range l.q.Jobs(l.ctx, queue.Filter{}) {
		l.must(err)
		states = append(states, info.State)
		if d := info.FinishedAt.Sub(info.CreatedAt); d < 0 || d > time.Minute {
			l.Fatalf("finished %v after its push", d)
		}
	}
	slices.Sort(states)
	sameList(f, "archived", states, []queue.State{queue.Cancelled, queue.Done})
	sameList(f, "queues", must(l.q.Queues(l.ctx))(f), []string{"q"})
	same(f, "purged", must(l.q.Purge(l.ctx, queue.Purge{Queue: "q"}))(f), 2)
}

// live runs a life over a pool, in a namespace of its own.
func (f *fixture) live(db *sql.DB, rounds int, opts queue.Options) {
	f.Helper()
	opts.Prefix = randomName("ns_") + "_"
	q := f.queue(db, &opts)
	life{f, rounds, q, func() (queue.Tx, error) { return db.BeginTx(f.ctx, nil) }}.run()
	same(f, "connections in use", db.Stats().InUse, 0)
}

func defaultsDSN(t *testing.T, e Engine) {
	if e.HostileDSNs == nil {
		t.Fatal("the engine names no defaults that must not matter")
	}
	f := bare(t, e)
	dsns := e.HostileDSNs(f.dsn)
	dsns["none"] = f.dsn
	for name, dsn := range dsns {
		f.sub(name, func(f *fixture) {
			f.live(f.open(dsn), 2, queue.Options{})
			f.live(f.open(dsn), 1, queue.Options{NoPrepare: true})
		})
	}
}

func defaultsPoolOfOne(t *testing.T, e Engine) {
	f := bare(t, e)
	for _, noPrepare := range []bool{false, true} {
		db := f.open(f.dsn)
		db.SetMaxOpenConns(1)
		f.live(db, 2, queue.Options{NoPrepare: noPrepare})
	}
	same(f, "warned", strings.Contains(f.log.String(), "single connection"), !f.sharedPool())

	// Also when the first thing that a process does is in a transaction.
	f.must(f.q.Migrate(f.ctx))
	db := f.open(f.dsn)
	db.SetMaxOpenConns(1)
	q := f.queue(db, nil)
	tx := must(db.BeginTx(f.ctx, nil))(f)
	defer tx.Rollback()
	p := must(q.PushTx(f.ctx, tx, job("x")))(f)
	f.must(tx.Commit())
	f.must(q.Ack(f.ctx, must(q.PopID(f.ctx, p.ID, 0))(f)))
}

// sharedPool is what the engine says of its server.
func (f *fixture) sharedPool() bool {
	f.Helper()
	engine := must(f.e.Dialect.Open(dialect.Namespace{}))(f)
	return must(engine.Check(f.ctx, f.session()))(f).SharedPool
}

func defaultsPoolStuck(t *testing.T, e Engine) {
	f := start(t, e, nil)
	db := f.open(f.dsn)
	db.SetMaxOpenConns(1)
	q := f.queue(db, nil)
	must(q.Push(f.ctx, job("x")))(f)
	tx := must(db.BeginTx(f.ctx, nil))(f)
	defer tx.Rollback()
	if strings.Contains(f.log.String(), "waited") {
		t.Fatalf("warned too early: %s", f.log)
	}
	ctx, cancel := context.WithTimeout(f.ctx, 5500*time.Millisecond)
	defer cancel()
	_, err := q.Push(ctx, job("y"))
	f.wantErr("a push outside the transaction", err, context.DeadlineExceeded)
	if log := f.log.String(); !strings.Contains(log, "waited") || !strings.Contains(log, "SetMaxOpenConns") {
		t.Fatalf("not warned about a pool that waits for itself: %s", log)
	}
	must(q.PushTx(f.ctx, tx, job("y")))(f)
	f.must(tx.Commit())
	f.wantStats(2, 0, 0, 0)
}

func defaultsMaxIdle(t *testing.T, e Engine) {
	f := start(t, e, nil)
	db := f.open(f.dsn)
	db.SetMaxIdleConns(2) // database/sql's default
	q := f.queue(db, nil)
	for db.Stats().MaxIdleClosed <= 500 { // as busy consumers do to such a pool
		var conns []*sql.Conn
		for range 12 {
			conns = append(conns, must(db.Conn(f.ctx))(f))
		}
		for _, c := range conns {
			f.must(c.Close())
		}
	}
	for range 2048 { // it is looked at now and then only
		_, err := q.RequeueNode(f.ctx, "unknown")
		f.wantErr("an unknown node", err, queue.ErrNotFound)
	}
	want := 1 // once
	if f.sharedPool() {
		want = 0
	}
	same(f, "warnings", strings.Count(f.log.String(), "SetMaxIdleConns"), want)
}

func defaultsPooler(t *testing.T, e Engine) {
	f := bare(t, e)
	db := f.open(f.dsn)
	db.SetConnMaxLifetime(time.Nanosecond) // each operation has another connection
	f.live(db, 1, queue.Options{})
	if closed := db.Stats().MaxLifetimeClosed; closed < 50 {
		t.Fatalf("only %d connections were changed", closed)
	}
}

func defaultsSqlx(t *testing.T, e Engine) {
	f := bare(t, e)
	db := sqlx.NewDb(f.open(f.dsn), e.Driver)
	q := f.queue(db, nil)
	life{f, 2, q, func() (queue.Tx, error) { return db.BeginTxx(f.ctx, nil) }}.run()
}
