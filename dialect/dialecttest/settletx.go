package dialecttest

import (
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/sqlqueue/queue"
)

func init() {
	add("ack in a transaction: is done when it commits", ackTx)
	add("fail in a transaction: is done when it commits", failTx)
	add("transactions: one that fails undoes nothing of the queue's own", txOwn)
	add("transactions: at each isolation level", txIsolation)
	add("transactions: of sqlx, and of another pool", txKinds)
	add("transactions: extend passes over a job that is being acked", txExtend)
}

func ackTx(t *testing.T, e Engine) {
	f := start(t, e, nil)
	f.exec(`CREATE TABLE business (n integer)`)
	f.push(jobs(5)...)
	got := f.pop(5)
	for _, commit := range []bool{false, true} {
		tx := f.begin()
		_, err := tx.ExecContext(f.ctx, `INSERT INTO business VALUES (1)`)
		f.must(err)
		f.must(f.q.AckTx(f.ctx, tx, got[0]))
		f.must(f.q.AckTx(f.ctx, tx, got[1], got[2]))
		f.wantErr("again", f.q.AckTx(f.ctx, tx, got[0]), queue.ErrLeaseLost)
		f.wantBatch("mixed", f.q.AckTx(f.ctx, tx, got[2], got[3]), queue.ErrLeaseLost, nil)
		p := must(f.q.PushTx(f.ctx, tx, job("next")))(f) // the transaction goes on
		if !commit {
			f.must(tx.Rollback())
			f.wantStats(0, 0, 5, 0)
			f.wantGone(p.ID)
			for _, j := range got[:4] {
				info := f.wantState(j.ID, queue.Running) // the leases stand
				same(f, "leased until", info.LeasedUntil, j.LeasedUntil)
			}
			continue
		}
		f.must(tx.Commit())
		f.wantStats(1, 0, 1, 0)
		f.wantState(p.ID, queue.Ready)
	}
	var n int
	f.must(f.db.QueryRowContext(f.ctx, `SELECT count(*) FROM business`).Scan(&n))
	same(f, "business rows", n, 1)
	f.must(f.q.Ack(f.ctx, got[4]))

	// Kept, when the queue says so.
	f.must(f.q.Configure(f.ctx, "q", queue.Settings{KeepFinished: ptr(1)}))
	j := f.popOne()
	tx := f.begin()
	f.must(f.q.AckTx(f.ctx, tx, j))
	f.must(tx.Commit())
	f.wantState(j.ID, queue.Done)
}

func failTx(t *testing.T, e Engine) {
	f := start(t, e, nil)
	f.push(queue.NewJob{Queue: "q", Kind: "k"}, queue.NewJob{Queue: "q", Kind: "k", MaxAttempts: 1, UniqueKey: "u"})
	got := byID(f.pop(2))
	for _, commit := range []bool{false, true} {
		tx := f.begin()
		f.must(f.q.FailTx(f.ctx, tx, got[0], errBoom, &queue.FailOptions{RetryIn: time.Hour}))
		f.must(f.q.FailTx(f.ctx, tx, got[1], errBoom, nil))
		f.wantErr("again", f.q.FailTx(f.ctx, tx, got[0], errBoom, nil), queue.ErrLeaseLost)
		if commit {
			f.must(tx.Commit())
			break
		}
		f.must(tx.Rollback())
		for _, j := range got {
			info := f.wantState(j.ID, queue.Running)
			same(f, "errors", len(info.Errors), 0)
			same(f, "leased until", info.LeasedUntil, j.LeasedUntil)
		}
	}
	same(f, "errors", len(f.wantState(got[0].ID, queue.Delayed).Errors), 1)
	same(f, "errors", len(f.wantState(got[1].ID, queue.Dead).Errors), 1)
	same(f, "the key is free", f.push(keyed("u"))[0].Duplicate, false)
}

func txOwn(t *testing.T, e Engine) {
	f := start(t, e, nil)
	f.exec(`CREATE TABLE business (n integer PRIMARY KEY)`)
	f.exec(`INSERT INTO business VALUES (1)`)
	out := f.other(nil)
	f.push(jobs(4)...)
	got := byID(f.popSoon(out, 3))

	// A handler's transaction fails; the library's bookkeeping, made outside it
	// while it was open and after, stays.
	tx := f.begin()
	var n int
	f.must(tx.QueryRowContext(f.ctx, `SELECT count(*) FROM business`).Scan(&n))
	f.must(out.Fail(f.ctx, got[0], errBoom, &queue.FailOptions{RetryIn: time.Hour}))
	popped := f.popSoon(out, 1)
	f.must(out.Extend(f.ctx, 10*time.Minute, got[1]))
	if !e.OneWriter {
		_, err := tx.ExecContext(f.ctx, `INSERT INTO business VALUES (2)`)
		f.must(err)
		f.must(out.Ack(f.ctx, popped...))
		if _, err := tx.ExecContext(f.ctx, `INSERT INTO business VALUES (1)`); err == nil {
			t.Fatal("the second row was taken")
		}
		// The transaction is broken now: a call in it fails and is not repeated.
		f.must(out.Release(f.ctx, got[2]))
	}
	f.must(tx.Rollback())

	info := f.wantState(got[0].ID, queue.Delayed)
	same(f, "errors", len(info.Errors), 1)
	same(f, "attempt", info.Attempt, 1)
	if left := f.wantState(got[1].ID, queue.Running).LeasedUntil.Sub(f.now()); left < 9*time.Minute {
		t.Fatalf("leased for %v more, want 10 minutes", left)
	}
	if !e.OneWriter {
		f.wantGone(popped[0].ID)
		same(f, "attempt", f.wantState(got[2].ID, queue.Ready).Attempt, 0)
	}

	// In a transaction that has failed, or has ended, calls fail and change nothing.
	tx = f.begin()
	f.must(tx.Rollback())
	f.wantErr("a push in an ended transaction", second(f.q.PushTx(f.ctx, tx, job("x"))), sql.ErrTxDone)
	f.wantErr("an ack in an ended transaction", f.q.AckTx(f.ctx, tx, got[1]), sql.ErrTxDone)
	f.wantErr("a failure in an ended transaction", f.q.FailTx(f.ctx, tx, got[1], errBoom, nil), sql.ErrTxDone)
	f.wantState(got[1].ID, queue.Running)
	c := f.q.Counters()
	same(f, "retries", c.Retries.Busy+c.Retries.Deadlock+c.Retries.Serialization, 0)
	f.must(f.q.Ack(f.ctx, got[1]))
}

func second[T any](_ T, err error) error { return err }

func txIsolation(t *testing.T, e Engine) {
	f := start(t, e, nil)
	for _, level := range []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable} {
		for range 2 { // once with the lane made here, once with one that is known
			tx, err := f.db.BeginTx(f.ctx, &sql.TxOptions{Isolation: level})
			if err != nil {
				t.Logf("%v: %v", level, err)
				if level == sql.LevelSerializable {
					t.Fatal("the driver knows no isolation level at all")
				}
				break
			}
			t.Cleanup(func() { tx.Rollback() })
			name := level.String()
			j := queue.NewJob{Queue: name, Kind: "k", UniqueKey: "u"}
			pushed := must(f.q.PushManyTx(f.ctx, tx, []queue.NewJob{j, j, {Queue: name, Kind: "k"}, {Queue: name, Kind: "k"}}, &queue.PushOptions{PushID: randomName("p")}))(f)
			same(f, "duplicate", pushed[1], queue.Pushed{ID: pushed[0].ID, Duplicate: true})
			f.must(tx.Commit())
			var got []*queue.Job
			f.within(soon, "popped", func() bool {
				got = append(got, f.popFrom(10, name)...)
				return len(got) == 3
			})
			tx, err = f.db.BeginTx(f.ctx, &sql.TxOptions{Isolation: level})
			f.must(err)
			t.Cleanup(func() { tx.Rollback() })
			f.must(f.q.AckTx(f.ctx, tx, got[0], got[1]))
			f.must(f.q.FailTx(f.ctx, tx, got[2], errBoom, &queue.FailOptions{Dead: true}))
			f.must(tx.Commit())
			same(f, "live jobs", len(f.list(queue.Filter{Queue: name, States: []queue.State{queue.Ready, queue.Delayed, queue.Running}})), 0)
		}
	}
}

func txKinds(t *testing.T, e Engine) {
	f := start(t, e, nil)
	xdb := sqlx.NewDb(f.db, e.Driver)
	q := f.queue(xdb, nil)
	must(q.Push(f.ctx, job("x")))(f)
	f.must(q.Ack(f.ctx, f.popSoon(q, 1)...)) // its statements are prepared now

	otherPool := f.open(f.dsn)
	for name, begin := range map[string]func() (queue.Tx, error){
		"sqlx":                 func() (queue.Tx, error) { return xdb.BeginTxx(f.ctx, nil) },
		"another pool":         func() (queue.Tx, error) { return otherPool.BeginTx(f.ctx, nil) },
		"another pool of sqlx": func() (queue.Tx, error) { return sqlx.NewDb(otherPool, e.Driver).BeginTxx(f.ctx, nil) },
		"the pool":             func() (queue.Tx, error) { return f.db.BeginTx(f.ctx, nil) },
	} {
		for range 2 {
			tx := must(begin())(f)
			p, err := q.PushTx(f.ctx, tx, job(name))
			if err != nil {
				tx.Rollback()
				t.Fatalf("%s: %v", name, err)
			}
			f.must(tx.Commit())
			j := f.popSoon(q, 1)[0]
			same(f, "id", j.ID, p.ID)
			tx = must(begin())(f)
			if err := errors.Join(q.AckTx(f.ctx, tx, j), tx.Commit()); err != nil {
				tx.Rollback()
				t.Fatalf("%s: %v", name, err)
			}
			f.wantGone(p.ID)
		}
	}
}

func txExtend(t *testing.T, e Engine) {
	if e.OneWriter {
		t.Skip("an open transaction holds back every other writer here")
	}
	f := start(t, e, nil)
	out := f.other(nil)
	f.push(jobs(3)...)
	got := f.pop(3)
	tx := f.begin()
	f.must(f.q.AckTx(f.ctx, tx, got[1]))
	before := time.Now()
	f.wantBatch("a heartbeat", out.Extend(f.ctx, 10*time.Minute, got...), nil, queue.ErrLeaseBusy, nil)
	if d := time.Since(before); d > time.Second {
		t.Fatalf("the heartbeat took %v", d)
	}
	f.wantErr("a heartbeat alone", out.Extend(f.ctx, 10*time.Minute, got[1]), queue.ErrLeaseBusy)
	for _, i := range []int{0, 2} {
		if left := f.info(got[i].ID).LeasedUntil.Sub(f.now()); left < 9*time.Minute {
			t.Fatalf("job %d is leased for %v more, want 10 minutes", i, left)
		}
	}
	f.must(tx.Commit())
	f.wantErr("after the commit", out.Extend(f.ctx, time.Minute, got[1]), queue.ErrLeaseLost)
	f.wantGone(got[1].ID)
}
