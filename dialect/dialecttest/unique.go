package dialecttest

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/sqlqueue/queue"
)

func init() {
	add("unique: across priorities and shards", uniqueAcross)
	add("unique: within one push", uniqueBatch)
	add("unique: a thousand keys, half of them taken", uniqueThousand)
	add("unique: what frees the key and what does not", uniqueFreed)
	add("unique: in a transaction", uniqueTx)
}

// keyed is a job of queue "q" with a unique key.
func keyed(key string) queue.NewJob { return queue.NewJob{Queue: "q", Kind: "k", UniqueKey: key} }

func uniqueAcross(t *testing.T, e Engine) {
	f := start(t, e, &queue.Options{Shards: 8})
	out := f.other(nil) // which spreads over one shard
	first := keyed("u")
	first.Payload, first.Delay = []byte("first"), time.Hour
	p := f.push(first)[0]
	same(f, "the first is a duplicate", p.Duplicate, false)
	for priority := queue.MinPriority; priority <= queue.MaxPriority; priority++ {
		for _, q := range []*queue.Queue{f.q, out} {
			j := keyed("u")
			j.Priority, j.Payload = priority, []byte("second")
			got := must(q.Push(f.ctx, j))(f)
			same(f, "answer", got, queue.Pushed{ID: p.ID, Duplicate: true})
		}
	}
	f.wantStats(0, 1, 0, 0)
	info := f.wantState(p.ID, queue.Delayed)
	same(f, "payload", string(info.Payload), "first")
	same(f, "counted", f.q.Counters().Pushed, 1)
	same(f, "counted by the other", out.Counters().Pushed, 0)

	// The same key of another queue, and another key of this one, are free.
	other := keyed("u")
	other.Queue = "r"
	for _, j := range []queue.NewJob{other, keyed("u2"), keyed("U"), keyed("u\u0301")} {
		same(f, j.UniqueKey+" is a duplicate", f.push(j)[0].Duplicate, false)
	}
}

func uniqueBatch(t *testing.T, e Engine) {
	f := start(t, e, nil)
	held := f.push(keyed("held"))[0].ID
	batch := []queue.NewJob{keyed("a"), job("free"), keyed("b"), keyed("a"), keyed("held"), keyed("b"), keyed("a"), job("free")}
	batch[3].Queue = "r" // another queue's "a"
	batch[6].Priority = 5
	got := f.push(batch...)
	want := []queue.Pushed{
		{ID: got[0].ID}, {ID: got[1].ID}, {ID: got[2].ID}, {ID: got[3].ID},
		{ID: held, Duplicate: true}, {ID: got[2].ID, Duplicate: true}, {ID: got[0].ID, Duplicate: true}, {ID: got[7].ID},
	}
	sameList(f, "answers", got, want)
	distinct := map[int64]bool{}
	for _, p := range got {
		distinct[p.ID] = true
	}
	same(f, "distinct ids", len(distinct), 6)
	f.wantStats(5, 0, 0, 0)
	// The order of what was stored is that of the push.
	sameList(f, "popped", ids(f.pop(10)), []int64{held, got[0].ID, got[1].ID, got[2].ID, got[7].ID})
}

func uniqueThousand(t *testing.T, e Engine) {
	f := start(t, e, &queue.Options{Shards: 3})
	const n = 6000 // more than one statement takes
	var batch []queue.NewJob
	for i := range n {
		batch = append(batch, keyed(fmt.Sprint("key", (i*7919)%n))) // in no order
	}
	var half []queue.NewJob
	for i := 0; i < n; i += 2 {
		half = append(half, batch[i])
	}
	first := f.push(half...)
	all := f.push(batch...)
	for i, p := range all {
		if i%2 == 0 && (!p.Duplicate || p.ID != first[i/2].ID) || i%2 == 1 && p.Duplicate {
			t.Fatalf("job %d: %+v", i, p)
		}
	}
	f.wantStats(n, 0, 0, 0)
	same(f, "counted", f.q.Counters().Pushed, n)
}

func uniqueFreed(t *testing.T, e Engine) {
	f := start(t, e, nil)
	// taken pushes the key again, and reports whether a live job holds it.
	taken := func(what string, id int64) bool {
		p := f.push(keyed("u"))[0]
		if p.Duplicate {
			same(f, what+": holder", p.ID, id)
			return true
		}
		f.must(f.q.Cancel(f.ctx, p.ID))
		return false
	}
	for _, keep := range []int{0, 1} {
		f.must(f.q.Configure(f.ctx, "q", queue.Settings{KeepFinished: ptr(keep)}))
		for _, end := range []struct {
			name string
			end  func(*queue.Job) error
		}{
			{"ack", func(j *queue.Job) error { return f.q.Ack(f.ctx, j) }},
			{"death", func(j *queue.Job) error {
				return f.q.Fail(f.ctx, j, errors.New("x"), &queue.FailOptions{Dead: true})
			}},
			{"cancel", func(j *queue.Job) error {
				f.must(f.q.Release(f.ctx, j))
				return f.q.Cancel(f.ctx, j.ID)
			}},
			{"a last lease that ran out", func(j *queue.Job) error {
				f.age(e.AgeLeases, time.Hour)
				f.within(soon, "the last lease is found", func() bool {
					f.popNone()
					info, err := f.q.Get(f.ctx, j.ID)
					return err == nil && info.State == queue.Dead
				})
				return nil
			}},
		} {
			what := fmt.Sprintf("%s, keep %d", end.name, keep)
			first := keyed("u")
			first.MaxAttempts = 3
			p := f.push(first)[0]
			same(f, what+": pushed twice", p.Duplicate, false)
			same(f, what+": taken while ready", taken(what, p.ID), true)
			j := f.popOne()
			same(f, what+": taken while running", taken(what, p.ID), true)
			f.must(f.q.Fail(f.ctx, j, errors.New("x"), &queue.FailOptions{RetryIn: time.Hour}))
			same(f, what+": taken while it waits for a retry", taken(what, p.ID), true)
			f.must(f.q.Reprioritize(f.ctx, p.ID, 4))
			f.must(f.q.Reschedule(f.ctx, p.ID, 0))
			same(f, what+": taken after it was moved", taken(what, p.ID), true)
			f.must(f.q.Release(f.ctx, f.popOne()))
			f.must(f.q.Fail(f.ctx, f.popOne(), errors.New("x"), &queue.FailOptions{RetryIn: -1}))
			j = f.popOne()
			same(f, what+": attempt", j.Attempt, 3)
			same(f, what+": taken in its last attempt", taken(what, p.ID), true)
			f.must(end.end(j))
			same(f, what+": taken at the end", taken(what, p.ID), false)
		}
	}
}

func uniqueTx(t *testing.T, e Engine) {
	f := start(t, e, nil)
	tx := f.begin()
	mine := must(f.q.PushTx(f.ctx, tx, keyed("u")))(f)
	same(f, "a duplicate in the same transaction", must(f.q.PushTx(f.ctx, tx, keyed("u")))(f), queue.Pushed{ID: mine.ID, Duplicate: true})
	f.must(tx.Rollback())
	p := f.push(keyed("u"))[0]
	same(f, "a duplicate of what was rolled back", p.Duplicate, false)

	tx = f.begin()
	same(f, "a duplicate in a transaction", must(f.q.PushTx(f.ctx, tx, keyed("u")))(f), queue.Pushed{ID: p.ID, Duplicate: true})
	f.must(tx.Commit())
	f.wantStats(1, 0, 0, 0)

	// An ack frees the key when its transaction commits, and in there at once.
	j := f.popOne()
	tx = f.begin()
	f.must(f.q.AckTx(f.ctx, tx, j))
	f.must(tx.Rollback())
	same(f, "after the ack was rolled back", f.push(keyed("u"))[0], queue.Pushed{ID: p.ID, Duplicate: true})
	tx = f.begin()
	f.must(f.q.AckTx(f.ctx, tx, j))
	next := must(f.q.PushTx(f.ctx, tx, keyed("u")))(f)
	same(f, "a duplicate of what was acked in the same transaction", next.Duplicate, false)
	f.must(tx.Commit())
	f.wantGone(p.ID)
	same(f, "after the commit", f.push(keyed("u"))[0], queue.Pushed{ID: next.ID, Duplicate: true})

	// A push waits for a transaction that may free or take the key.
	out := f.other(nil)
	for _, commit := range []bool{false, true} {
		tx = f.begin()
		mine = must(f.q.PushTx(f.ctx, tx, keyed("wait")))(f)
		answer := make(chan queue.Pushed, 1)
		go func() {
			p, err := out.Push(f.ctx, keyed("wait"))
			if err != nil {
				t.Error(err)
			}
			answer <- p
		}()
		select {
		case p := <-answer:
			t.Fatalf("the second push did not wait: %+v", p)
		case <-time.After(50 * time.Millisecond):
		}
		if commit {
			f.must(tx.Commit())
			same(f, "after the commit", <-answer, queue.Pushed{ID: mine.ID, Duplicate: true})
		} else {
			f.must(tx.Rollback())
			p := <-answer
			same(f, "a duplicate after the rollback", p.Duplicate, false)
			f.must(f.q.Cancel(f.ctx, p.ID))
		}
	}
}
