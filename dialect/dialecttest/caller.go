package dialecttest

import (
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/sqlqueue/queue"
	"github.com/sqlqueue/queue/dialect"
)

func init() {
	add("caller's transaction: a deadlock of acks", func(t *testing.T, e Engine) {
		callerDeadlock(t, e, func(f *fixture, held []*queue.Job) (first, second func(*sql.Tx, bool) error) {
			ack := func(tx *sql.Tx, i int) error { return f.q.AckTx(f.ctx, tx, held[i]) }
			return func(tx *sql.Tx, other bool) error { return ack(tx, one(other)) },
				func(tx *sql.Tx, other bool) error { return ack(tx, one(!other)) }
		})
	})
	add("caller's transaction: a deadlock of unique keys", func(t *testing.T, e Engine) {
		callerDeadlock(t, e, func(f *fixture, held []*queue.Job) (first, second func(*sql.Tx, bool) error) {
			push := func(tx *sql.Tx, i int) error {
				p, err := f.q.PushTx(f.ctx, tx, queue.NewJob{Queue: "q", Kind: "k", UniqueKey: fmt.Sprint("key", i)})
				if err == nil && p.Duplicate {
					err = errBoom // the other one's
				}
				return err
			}
			return func(tx *sql.Tx, other bool) error { return push(tx, one(other)) },
				func(tx *sql.Tx, other bool) error { return push(tx, one(!other)) }
		})
	})
	add("caller's transaction: no call is repeated", callerRefused)
	add("caller's transaction: heartbeats go on while a handler acks", heartbeats)
}

func one(b bool) int {
	if b {
		return 1
	}
	return 0
}

// callerDeadlock makes two transactions of the caller's, each with a row and a
// job of its own, wait for each other. One is refused: at once, and nothing of
// it is left, whatever its caller does next.
func callerDeadlock(t *testing.T, e Engine, order func(*fixture, []*queue.Job) (first, second func(*sql.Tx, bool) error)) {
	if e.OneWriter {
		t.Skip("on this engine two transactions that have written cannot exist, let alone wait for each other")
	}
	f := start(t, e, nil)
	f.exec("CREATE TABLE business (id integer NOT NULL)")
	// The lane exists: who creates one holds back the others until the commit.
	f.push(queue.NewJob{Queue: "business", Kind: "k"})
	f.must(f.q.Ack(f.ctx, f.popFrom(1, "business")...))
	f.push(jobs(2)...)
	held := f.take(2)
	first, second := order(f, held)
	var errs [2]error
	var meet, wg sync.WaitGroup
	meet.Add(2)
	for i, other := range []bool{false, true} {
		tx := f.begin()
		wg.Go(func() {
			err := func() error {
				defer meet.Done()
				if _, err := tx.ExecContext(f.ctx, fmt.Sprintf("INSERT INTO business VALUES (%d)", i)); err != nil {
					return err
				}
				if _, err := f.q.PushTx(f.ctx, tx, queue.NewJob{Queue: "business", Kind: "k", Payload: []byte(fmt.Sprint(i))}); err != nil {
					return err
				}
				return first(tx, other)
			}()
			if err != nil {
				t.Errorf("before the deadlock: %v", err)
				return
			}
			meet.Wait()
			errs[i] = second(tx, other)
			// A careless caller commits all the same: there is nothing to commit.
			if err := tx.Commit(); errs[i] == nil && err != nil {
				t.Errorf("commit: %v", err)
			}
		})
	}
	wg.Wait()
	victim := one(errs[1] != nil)
	if (errs[0] == nil) == (errs[1] == nil) {
		t.Fatalf("one of two was to be refused: %v", errs)
	}
	c := f.q.Counters()
	if c.Refused.Deadlock != 1 || c.Retries.Deadlock != 0 {
		t.Errorf("%v; deadlocks seen: %d, retried: %d", errs[victim], c.Refused.Deadlock, c.Retries.Deadlock)
	}
	engine, err := e.Dialect.Open(dialect.Namespace{})
	f.must(err)
	if class := engine.Classify(errs[victim]); class != dialect.Deadlock {
		t.Errorf("the error is %v: %v", class, errs[victim])
	}
	var rows []struct {
		ID int `db:"id"`
	}
	f.must(f.session().Select(f.ctx, &rows, "SELECT id FROM business", nil))
	if len(rows) != 1 || rows[0].ID != 1-victim {
		t.Errorf("rows of the business: %v; the victim was %d", rows, victim)
	}
	f.within(time.Second, "the survivor's job is there", func() bool {
		jobs := f.popFrom(10, "business")
		if len(jobs) > 1 || len(jobs) == 1 && string(jobs[0].Payload) != fmt.Sprint(1-victim) {
			t.Fatalf("%d jobs of the business", len(jobs))
		}
		return len(jobs) == 1
	})
	if jobs := f.popFrom(10, "business"); len(jobs) != 0 {
		t.Error("the victim's job is there, too")
	}
}

// callerRefused: whatever passing reason a statement is refused for, a call in
// the caller's transaction returns it, and sends nothing more.
func callerRefused(t *testing.T, e Engine) {
	f := start(t, e, nil)
	refusals := e.Refusals(t, f.open(f.dsn))
	if len(refusals) == 0 {
		t.Fatal("Refusals returned none")
	}
	db, d := f.faulty()
	q := f.queue(db, nil)
	f.push(jobs(20)...)
	f.within(time.Second, "the queue is warm", func() bool {
		jobs, err := q.Pop(f.ctx, 1, &queue.PopOptions{Queues: []string{"q"}})
		f.must(err)
		return len(jobs) == 1
	})
	held, err := q.Pop(f.ctx, 10, &queue.PopOptions{Queues: []string{"q"}})
	f.must(err)
	for class, refusal := range refusals {
		for name, call := range map[string]func(*sql.Tx) error{
			"AckTx":  func(tx *sql.Tx) error { return q.AckTx(f.ctx, tx, held...) },
			"FailTx": func(tx *sql.Tx) error { return q.FailTx(f.ctx, tx, held[0], errBoom, nil) },
			"PushTx": func(tx *sql.Tx) error {
				_, err := q.PushTx(f.ctx, tx, job("x"))
				return err
			},
			"PushManyTx": func(tx *sql.Tx) error {
				_, err := q.PushManyTx(f.ctx, tx, jobs(2), &queue.PushOptions{PushID: "p"})
				return err
			},
		} {
			tx, err := db.BeginTx(f.ctx, nil)
			f.must(err)
			before, calls := q.Counters(), 0
			d.inject(func(driverCall) driverFault {
				calls++
				return driverFault{before: refusal}
			})
			err = call(tx)
			d.inject(nil)
			f.must(tx.Rollback())
			if !errors.Is(err, refusal) || errors.Is(err, queue.ErrOutcomeUnknown) {
				t.Errorf("%s, %v: %v", name, class, err)
			}
			if calls != 1 {
				t.Errorf("%s, %v: %d calls of the driver, want 1", name, class, calls)
			}
			if after := q.Counters(); after.Retries != before.Retries || after.Refused == before.Refused {
				t.Errorf("%s, %v: counted %+v and then %+v", name, class, before, after)
			}
		}
	}
	for i, err := range batchErrors(q.Ack(f.ctx, held...), len(held)) {
		if err != nil {
			t.Errorf("lease %d was lost: %v", i, err)
		}
	}
	if s := f.stats(); s.Ready != 9 || s.Running != 1 {
		t.Errorf("in the end: %+v", s)
	}
}

// batchErrors is what each of n jobs was answered.
func batchErrors(err error, n int) []error {
	var batch *queue.BatchError
	if errors.As(err, &batch) {
		return batch.Errs
	}
	out := make([]error, n)
	for i := range out {
		out[i] = err
	}
	return out
}

// heartbeats: a handler that has acked in its open transaction holds its row.
// The node's heartbeat for all its leases must not wait for it and lose them.
func heartbeats(t *testing.T, e Engine) {
	f := start(t, e, nil)
	const n, lease = 100, 4 * time.Second
	f.push(jobs(n)...)
	held, err := f.q.Pop(f.ctx, n, &queue.PopOptions{Queues: []string{"q"}, Lease: lease})
	f.must(err)
	if len(held) != n {
		t.Fatalf("popped %d", len(held))
	}
	tx := f.begin()
	f.must(f.q.AckTx(f.ctx, tx, held[17]))
	wantLast := queue.ErrLeaseBusy
	extend := func() []error {
		started := time.Now()
		errs := batchErrors(f.q.Extend(f.ctx, time.Hour, held...), n)
		if took := time.Since(started); took > time.Second {
			t.Errorf("extend took %v", took)
		}
		return errs
	}
	var errs []error
	if e.OneWriter {
		// The open transaction has the only write lock. What a heartbeat can do is
		// to wait for it, and then to lose nothing.
		answered := make(chan []error)
		go func() { answered <- batchErrors(f.q.Extend(f.ctx, time.Hour, held...), n) }()
		select {
		case errs := <-answered:
			t.Fatalf("extend did not wait: %v", errs)
		case <-time.After(time.Second):
		}
		f.must(tx.Commit())
		errs, wantLast = <-answered, queue.ErrLeaseLost
	} else {
		errs = extend()
	}
	check := func() {
		t.Helper()
		for i, err := range errs {
			if i == 17 && !errors.Is(err, wantLast) {
				t.Errorf("extend of the acked one: %v, want %v", err, wantLast)
			}
			if i != 17 && err != nil {
				t.Errorf("extend of %d: %v", i, err)
			}
		}
	}
	check()
	if !e.OneWriter {
		f.must(tx.Commit())
		errs, wantLast = extend(), queue.ErrLeaseLost
		check()
	}
	time.Sleep(time.Until(time.Now().Add(held[0].Remaining())))
	f.popNone()
	if s := f.stats(); s.Running != n-1 || s.Ready != 0 {
		t.Errorf("after the leases' first end: %+v", s)
	}
	f.must(f.q.Ack(f.ctx, append(held[:17:17], held[18:]...)...))
}
