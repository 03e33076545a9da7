package dialecttest

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/sqlqueue/queue"
)

func init() {
	add("pop id: a job in each state", popID)
	add("pop id: a job of a lane that this process has not seen", popIDUnseen)
	add("pop id: a last attempt whose lease ran out", popIDBuried)
	add("peek: shows what a pop would take, and claims nothing", peek)
}

func popID(t *testing.T, e Engine) {
	f := start(t, e, nil)
	pushed := f.push(
		queue.NewJob{Queue: "q", Kind: "k", Payload: []byte("ready"), Priority: 2, Headers: map[string]string{"a": "b"}},
		queue.NewJob{Queue: "q", Kind: "k", Payload: []byte("delayed"), Delay: time.Hour},
		queue.NewJob{Queue: "q", Kind: "k", Payload: []byte("retry"), Lease: time.Hour},
		queue.NewJob{Queue: "q", Kind: "k", Payload: []byte("other")},
	)
	retry := must(f.q.PopID(f.ctx, pushed[2].ID, time.Minute))(f)
	f.must(f.q.Fail(f.ctx, retry, errors.New("boom"), &queue.FailOptions{RetryIn: time.Hour}))
	f.must(f.q.Pause(f.ctx, "q")) // which does not matter here

	for i, want := range []struct {
		payload  string
		priority int
		attempt  int
		lease    time.Duration
	}{{"ready", 2, 1, 2 * time.Minute}, {"delayed", 0, 1, 2 * time.Minute}, {"retry", 0, 2, time.Hour}} {
		id := pushed[i].ID
		before := f.now()
		j := must(f.q.PopID(f.ctx, id, 2*time.Minute))(f)
		after := f.now()
		same(f, "id", j.ID, id)
		same(f, "payload", string(j.Payload), want.payload)
		same(f, "queue", j.Queue, "q")
		same(f, "priority", j.Priority, want.priority)
		same(f, "attempt", j.Attempt, want.attempt)
		same(f, "errors", len(j.Errors), want.attempt-1)
		if u := j.LeasedUntil; u.Before(before.Add(want.lease)) || u.After(after.Add(want.lease)) {
			t.Fatalf("%s: leased until %v, want %v after %v", want.payload, u, want.lease, before)
		}
		same(f, "node", f.wantState(id, queue.Running).Node, f.q.Node())

		_, err := f.q.PopID(f.ctx, id, time.Minute)
		f.wantErr(want.payload+", again", err, queue.ErrNotWaiting)
		same(f, "attempt", f.info(id).Attempt, want.attempt)
		f.must(f.q.Ack(f.ctx, j))
		_, err = f.q.PopID(f.ctx, id, time.Minute)
		f.wantErr(want.payload+", acked", err, queue.ErrNotFound)
	}

	j := must(f.q.PopID(f.ctx, pushed[3].ID, 0))(f)
	if left := j.Remaining(); left > queue.DefaultLease || left < queue.DefaultLease-time.Minute {
		t.Fatalf("a lease of %v, want %v", left, queue.DefaultLease)
	}
	f.must(f.q.Fail(f.ctx, j, errors.New("x"), &queue.FailOptions{Dead: true}))
	_, err := f.q.PopID(f.ctx, j.ID, time.Minute)
	f.wantErr("dead", err, queue.ErrNotWaiting)
	f.wantState(j.ID, queue.Dead)
	for _, id := range []int64{0, -1, 1, j.ID + 1, 1 << 62, -1 << 63} {
		_, err := f.q.PopID(f.ctx, id, time.Minute)
		f.wantErr(fmt.Sprint("id ", id), err, queue.ErrNotFound)
	}
	f.wantStats(0, 0, 0, 1)
}

func popIDUnseen(t *testing.T, e Engine) {
	f := start(t, e, nil)
	out := f.other(nil)
	names := []string{"new0", "new1", "new2", "new3", "new4"}
	for _, name := range names {
		f.must(f.q.Configure(f.ctx, name, queue.Settings{KeepFinished: ptr(1)}))
	}
	for i, name := range names {
		same(f, "popped", len(must(out.Pop(f.ctx, 1, nil))(f)), 0) // it knows the lanes of this moment …
		p := must(f.q.Push(f.ctx, queue.NewJob{Queue: name, Kind: "k", Priority: i - 2}))(f)
		j := must(out.PopID(f.ctx, p.ID, time.Minute))(f) // … and not this one
		same(f, "queue", j.Queue, name)
		same(f, "priority", j.Priority, i-2)
		f.must(out.Ack(f.ctx, j))
		f.wantState(p.ID, queue.Done)
	}
}

func popIDBuried(t *testing.T, e Engine) {
	f := start(t, e, nil)
	for _, delay := range []time.Duration{0, time.Hour} {
		p := f.push(queue.NewJob{Queue: "q", Kind: "k", MaxAttempts: 1, Delay: delay})[0]
		late := must(f.q.PopID(f.ctx, p.ID, time.Minute))(f)
		f.age(e.AgeLeases, time.Hour)
		_, err := f.q.PopID(f.ctx, p.ID, time.Minute)
		f.wantErr("a job without attempts left", err, queue.ErrNotWaiting)
		info := f.wantState(p.ID, queue.Dead)
		same(f, "attempts", info.Attempt, 1)
		same(f, "errors", len(info.Errors), 1)
		f.wantErr("the late ack", f.q.Ack(f.ctx, late), queue.ErrLeaseLost)
		f.wantState(p.ID, queue.Dead)
	}
}

func peek(t *testing.T, e Engine) {
	f := start(t, e, nil)
	pushed := f.push(
		queue.NewJob{Queue: "q", Kind: "k", Payload: []byte("low"), Priority: -1},
		queue.NewJob{Queue: "q", Kind: "k", Payload: []byte("held"), Priority: 9},
		queue.NewJob{Queue: "q", Kind: "k", Payload: []byte("delayed"), Priority: 9, Delay: time.Hour},
		queue.NewJob{Queue: "q", Kind: "k", Payload: []byte("one"), UniqueKey: "u", MaxAttempts: 3},
		queue.NewJob{Queue: "q", Kind: "k", Payload: []byte("two"), Headers: map[string]string{"a": "b"}},
		queue.NewJob{Queue: "q", Kind: "k", Payload: []byte("high"), Priority: 5},
		queue.NewJob{Queue: "other", Kind: "k", Payload: []byte("other")},
	)
	same(f, "held", f.popOne().ID, pushed[1].ID)
	for _, n := range []int{4, 10, queue.MaxBatch} {
		got := must(f.q.Peek(f.ctx, "q", n))(f)
		sameList(f, "peeked", infoIDs(got), []int64{pushed[5].ID, pushed[3].ID, pushed[4].ID, pushed[0].ID})
		one := got[1]
		same(f, "payload", string(one.Payload), "one")
		same(f, "state", one.State, queue.Ready)
		same(f, "attempt", one.Attempt, 0)
		same(f, "max attempts", one.MaxAttempts, 3)
		same(f, "unique key", one.UniqueKey, "u")
		same(f, "header", got[2].Headers["a"], "b")
		same(f, "leased until", one.LeasedUntil, time.Time{})
	}
	sameList(f, "peeked", infoIDs(must(f.q.Peek(f.ctx, "q", 2))(f)), []int64{pushed[5].ID, pushed[3].ID})
	same(f, "of an unknown queue", len(must(f.q.Peek(f.ctx, "unknown", 2))(f)), 0)

	f.wantStats(4, 1, 1, 0)
	sameList(f, "popped", ids(f.pop(4)), []int64{pushed[5].ID, pushed[3].ID, pushed[4].ID, pushed[0].ID})
	same(f, "attempts", f.info(pushed[3].ID).Attempt, 1)

	// A lease that ran out is there to be taken, and so is what has come due.
	f.age(e.AgeLeases, time.Hour)
	f.age(e.AgeDue, 2*time.Hour)
	same(f, "peeked", len(must(f.q.Peek(f.ctx, "q", 10))(f)), 6)
	f.wantStats(6, 0, 0, 0)
}
