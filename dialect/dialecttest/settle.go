package dialecttest

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/sqlqueue/queue"
)

func init() {
	add("ack: one and many", ackMany)
	add("ack: what Pop did not return", ackForeign)
	add("ack: one job twice in a call", ackTwice)
	add("release: gives back and does not count the attempt", release)
	add("extend: moves the end of leases", extend)
	add("extend: a lease that ran out and that nobody has taken", extendExpired)
	add("lease: who lost it changes nothing", leaseLost)
}

func ackMany(t *testing.T, e Engine) {
	f := start(t, e, nil)
	f.push(jobs(30)...)
	f.push(queue.NewJob{Queue: "r", Kind: "k", Priority: 3}, queue.NewJob{Queue: "q", Kind: "k", Delay: time.Millisecond, Priority: -4})
	first := f.pop(10)
	second := f.pop(15)
	var rest []*queue.Job
	f.within(soon, "the rest popped", func() bool {
		rest = append(rest, f.popFrom(10)...)
		return len(rest) == 7
	})
	f.must(f.q.Ack(f.ctx)) // none is fine
	f.must(f.q.Ack(f.ctx, first[0]))
	f.wantGone(first[0].ID)
	f.wantErr("again", f.q.Ack(f.ctx, first[0]), queue.ErrLeaseLost)

	// Leases of several pops, lanes and sides, lost and good: each is answered.
	mixed := []*queue.Job{first[1], second[3], first[0], rest[0], rest[6], second[4], first[0], rest[5], rest[4]}
	f.wantBatch("mixed", f.q.Ack(f.ctx, mixed...), nil, nil, queue.ErrLeaseLost, nil, nil, nil, queue.ErrLeaseLost, nil, nil)
	for _, j := range mixed {
		f.wantGone(j.ID)
	}
	same(f, "running", len(f.list(queue.Filter{States: []queue.State{queue.Running}})), 32-8)

	left := append(append(append([]*queue.Job{}, first[2:]...), second[:3]...), second[5:]...)
	left = append(left, rest[1], rest[2], rest[3])
	f.must(f.q.Ack(f.ctx, left...))
	f.wantStats(0, 0, 0, 0)
	same(f, "jobs", len(f.list(queue.Filter{})), 0)
	c := f.q.Counters()
	same(f, "acked", c.Acked, 32)
	same(f, "leases lost", c.LeasesLost, 3)
	err := f.q.Ack(f.ctx, left...)
	f.wantErr("all again", err, queue.ErrLeaseLost)
	var batch *queue.BatchError
	if !errors.As(err, &batch) || len(batch.Unwrap()) != len(left) {
		t.Fatalf("all again: %v", err)
	}
}

func ackForeign(t *testing.T, e Engine) {
	f := start(t, e, nil)
	f.push(job("x"))
	good := f.popOne()
	for name, bad := range map[string]*queue.Job{"nil": nil, "made by hand": {ID: good.ID, Queue: "q", Attempt: 1, MaxAttempts: 3}} {
		f.wantInvalid(name, f.q.Ack(f.ctx, bad), "jobs[0]")
		f.wantInvalid(name, f.q.Ack(f.ctx, good, bad), "jobs[1]")
		f.wantInvalid(name, f.q.Release(f.ctx, good, bad), "jobs[1]")
		f.wantInvalid(name, f.q.Extend(f.ctx, time.Hour, good, bad), "jobs[1]")
		f.wantInvalid(name, f.q.Fail(f.ctx, bad, errBoom, nil), "jobs[0]")
		f.wantInvalid(name, f.q.FailMany(f.ctx, []queue.Failure{{Job: good}, {Job: bad}}), "jobs[1]")
	}
	same(f, "leased until", f.wantState(good.ID, queue.Running).LeasedUntil, good.LeasedUntil)

	// A lease belongs to whoever has the Job, also in another process of the
	// same database, but not in another namespace.
	other := f.queue(f.db, &queue.Options{Prefix: "other_"})
	f.must(other.Migrate(f.ctx))
	must(other.Push(f.ctx, job("theirs")))(f)
	theirs := must(other.Pop(f.ctx, 1, nil))(f)
	same(f, "popped there", len(theirs), 1)
	f.wantErr("their queue, my job", other.Ack(f.ctx, good), queue.ErrLeaseLost)
	f.wantErr("my queue, their job", f.q.Ack(f.ctx, theirs[0]), queue.ErrLeaseLost)
	f.must(f.other(nil).Ack(f.ctx, good))
	f.must(other.Ack(f.ctx, theirs[0]))
}

func ackTwice(t *testing.T, e Engine) {
	f := start(t, e, nil)
	f.push(jobs(2)...)
	got := f.pop(2)
	err := f.q.Ack(f.ctx, got[0], got[1], got[0])
	var batch *queue.BatchError
	if !errors.As(err, &batch) || len(batch.Errs) != 3 {
		t.Fatalf("acked with %v, want a *BatchError of three", err)
	}
	if batch.Errs[1] != nil || (batch.Errs[0] == nil) == (batch.Errs[2] == nil) {
		t.Fatalf("answers %v, want that one of the two of the same job worked", batch.Errs)
	}
	f.wantStats(0, 0, 0, 0)
	same(f, "acked", f.q.Counters().Acked, 2)
}

func release(t *testing.T, e Engine) {
	f := start(t, e, nil)
	f.push(queue.NewJob{Queue: "q", Kind: "k", MaxAttempts: 2, Payload: []byte("x"), Headers: map[string]string{"a": "b"}})
	for range 5 { // more often than there are attempts
		j := f.popOne()
		same(f, "attempt", j.Attempt, 1)
		f.must(f.q.Release(f.ctx, j))
		info := f.wantState(j.ID, queue.Ready)
		same(f, "attempt", info.Attempt, 0)
		same(f, "leased until", info.LeasedUntil, time.Time{})
		same(f, "node", info.Node, "")
		same(f, "errors", len(info.Errors), 0)
		f.wantErr("released again", f.q.Release(f.ctx, j), queue.ErrLeaseLost)
		f.wantErr("acked after the release", f.q.Ack(f.ctx, j), queue.ErrLeaseLost)
	}
	// After a failure the attempt before still counts, and the errors stay.
	f.must(f.q.Fail(f.ctx, f.popOne(), errBoom, &queue.FailOptions{RetryIn: -1}))
	j := f.popOne()
	same(f, "attempt", j.Attempt, 2)
	f.must(f.q.Release(f.ctx, j))
	j = f.popOne()
	same(f, "attempt", j.Attempt, 2)
	same(f, "errors", len(j.Errors), 1)
	same(f, "payload", string(j.Payload), "x")
	same(f, "header", j.Headers["a"], "b")
	f.must(f.q.Ack(f.ctx, j))

	f.push(jobs(5)...)
	got := f.pop(5)
	f.must(f.q.Ack(f.ctx, got[1]))
	f.must(f.q.Fail(f.ctx, got[3], errBoom, &queue.FailOptions{RetryIn: time.Hour}))
	f.wantBatch("mixed", f.q.Release(f.ctx, got...), nil, queue.ErrLeaseLost, nil, queue.ErrLeaseLost, nil)
	f.wantStats(3, 1, 0, 0)
	for _, j := range f.pop(5) {
		same(f, "attempt", j.Attempt, 1)
	}
	f.wantStats(0, 1, 3, 0)
}

func extend(t *testing.T, e Engine) {
	f := start(t, e, nil)
	f.push(jobs(6)...)
	f.push(queue.NewJob{Queue: "q", Kind: "k", Lease: time.Hour})
	got := append(f.pop(3), f.pop(4)...)
	extended := func(d time.Duration, jobs ...*queue.Job) {
		f.Helper()
		before := f.now()
		f.must(f.q.Extend(f.ctx, d, jobs...))
		after := f.now()
		for _, j := range jobs {
			info := f.wantState(j.ID, queue.Running)
			if u := info.LeasedUntil; u.Before(before.Add(d)) || u.After(after.Add(d)) {
				t.Fatalf("leased until %v, want %v after %v to %v", u, d, before, after)
			}
			same(f, "attempt", info.Attempt, 1)
		}
	}
	f.must(f.q.Extend(f.ctx, time.Minute))
	extended(10*time.Minute, got[0])
	extended(20*time.Second, got[0]) // also back
	extended(queue.MaxLease, got...) // of two pops
	same(f, "leased until, as of the pop", got[0].LeasedUntil.Before(f.now().Add(2*time.Minute)), true)

	f.must(f.q.Ack(f.ctx, got[1]))
	f.must(f.q.Release(f.ctx, got[4]))
	again := f.popOne()
	same(f, "popped again", again.ID, got[4].ID)
	f.wantBatch("mixed", f.q.Extend(f.ctx, 5*time.Minute, got...), nil, queue.ErrLeaseLost, nil, nil, queue.ErrLeaseLost, nil, nil)
	same(f, "the new holder's lease", f.info(again.ID).LeasedUntil, again.LeasedUntil)
	for _, i := range []int{0, 2, 3, 5, 6} {
		if left := f.info(got[i].ID).LeasedUntil.Sub(f.now()); left > 5*time.Minute || left < 4*time.Minute {
			t.Fatalf("job %d is leased for %v more, want 5 minutes", i, left)
		}
	}
	f.wantErr("lost", f.q.Extend(f.ctx, time.Minute, got[1]), queue.ErrLeaseLost)
	// An extended lease can be settled as any other.
	f.must(f.q.Ack(f.ctx, got[0], got[2], got[3], got[5], got[6], again))
	f.wantStats(0, 0, 0, 0)
}

func extendExpired(t *testing.T, e Engine) {
	f := start(t, e, nil)
	f.push(job("x"))
	j := f.popOne()
	f.age(e.AgeLeases, time.Hour)
	f.wantState(j.ID, queue.Ready)
	f.must(f.q.Extend(f.ctx, time.Minute, j))
	f.wantState(j.ID, queue.Running)
	f.popNone()
	// As long as nobody has taken the job its holder may even finish it.
	f.age(e.AgeLeases, time.Hour)
	f.must(f.q.Ack(f.ctx, j))
	f.wantGone(j.ID)
}

func leaseLost(t *testing.T, e Engine) {
	f := start(t, e, nil)
	for _, delay := range []time.Duration{0, time.Millisecond} { // on both sides of a lane
		p := f.push(queue.NewJob{Queue: "q", Kind: "k", Payload: []byte("x"), Delay: delay})[0]
		var late, holder *queue.Job
		f.within(soon, "popped", func() bool {
			got := f.pop(1)
			if len(got) == 1 {
				late = got[0]
			}
			return late != nil
		})
		f.age(e.AgeLeases, time.Hour)
		f.within(soon, "the job is found again", func() bool {
			got := must(f.q.Pop(f.ctx, 1, &queue.PopOptions{Lease: 10 * time.Minute}))(f)
			if len(got) == 1 {
				holder = got[0]
			}
			return holder != nil
		})
		same(f, "id", holder.ID, p.ID)
		same(f, "attempt", holder.Attempt, 2)
		same(f, "errors", len(holder.Errors), 0)
		before := f.info(p.ID)
		for what, call := range map[string]func() error{
			"Ack":        func() error { return f.q.Ack(f.ctx, late) },
			"Fail":       func() error { return f.q.Fail(f.ctx, late, errBoom, nil) },
			"Fail, dead": func() error { return f.q.Fail(f.ctx, late, errBoom, &queue.FailOptions{Dead: true}) },
			"Release":    func() error { return f.q.Release(f.ctx, late) },
			"Extend":     func() error { return f.q.Extend(f.ctx, time.Hour, late) },
			"AckTx": func() error {
				tx := f.begin()
				defer tx.Commit()
				return f.q.AckTx(f.ctx, tx, late)
			},
			"FailTx": func() error {
				tx := f.begin()
				defer tx.Commit()
				return f.q.FailTx(f.ctx, tx, late, errBoom, nil)
			},
		} {
			f.wantErr(what, call(), queue.ErrLeaseLost)
			same(f, what+" left", fmt.Sprintf("%+v", f.info(p.ID)), fmt.Sprintf("%+v", before))
		}
		f.wantStats(0, 0, 1, 0)
		f.must(f.q.Ack(f.ctx, holder))
		f.wantGone(p.ID)
	}
}
