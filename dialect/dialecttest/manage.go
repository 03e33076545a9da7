package dialecttest

import (
	"fmt"
	"testing"
	"time"

	"github.com/sqlqueue/queue"
)

func init() {
	add("cancel: a job in each state", cancelStates)
	add("cancel: a lease that ran out", cancelExpired)
	add("reschedule: a waiting job", reschedule)
	add("reschedule: a job behind the cursor is found at once", rescheduleBehind)
	add("reprioritize: a waiting job", reprioritize)
	add("reprioritize: a job behind the cursor is found at once", reprioritizeBehind)
	add("cancel, reschedule, reprioritize: a job that is not waiting", changeNotWaiting)
	add("cancel, reschedule, reprioritize: a job that another transaction has locked", changeLocked)
}

// changes are the calls that change a waiting job.
func (f *fixture) changes(id int64) map[string]func() error {
	return map[string]func() error{
		"Cancel":       func() error { return f.q.Cancel(f.ctx, id) },
		"Reschedule":   func() error { return f.q.Reschedule(f.ctx, id, time.Hour) },
		"RescheduleAt": func() error { return f.q.RescheduleAt(f.ctx, id, time.Now().Add(time.Hour)) },
		"Reprioritize": func() error { return f.q.Reprioritize(f.ctx, id, 5) },
	}
}

func cancelStates(t *testing.T, e Engine) {
	f := start(t, e, nil)
	for _, keep := range []int{0, 1} {
		f.must(f.q.Configure(f.ctx, "q", queue.Settings{KeepFinished: ptr(keep)}))
		ready := queue.NewJob{Queue: "q", Kind: "k", Payload: []byte("ready"), Priority: 4, UniqueKey: "u", Headers: map[string]string{"a": "b"}}
		delayed := queue.NewJob{Queue: "q", Kind: "k", Payload: []byte("delayed"), Delay: time.Hour}
		retry := queue.NewJob{Queue: "q", Kind: "k", Payload: []byte("retry"), Priority: 9}
		ids := pushedIDs(f.push(ready, delayed, retry))
		f.must(f.q.Fail(f.ctx, must(f.q.PopID(f.ctx, ids[2], time.Minute))(f), errBoom, &queue.FailOptions{RetryIn: time.Hour}))
		for i, id := range ids {
			before := f.now()
			f.must(f.q.Cancel(f.ctx, id))
			after := f.now()
			if keep == 0 {
				f.wantGone(id)
				f.wantErr("again", f.q.Cancel(f.ctx, id), queue.ErrNotFound)
				continue
			}
			info := f.wantState(id, queue.Cancelled)
			same(f, "payload", string(info.Payload), []string{"ready", "delayed", "retry"}[i])
			same(f, "priority", info.Priority, []int{4, 0, 9}[i])
			same(f, "attempt", info.Attempt, i/2)
			same(f, "errors", len(info.Errors), i/2)
			same(f, "unique key", info.UniqueKey, []string{"u", "", ""}[i])
			same(f, "run at", info.RunAt, time.Time{})
			if info.FinishedAt.Before(before) || info.FinishedAt.After(after) {
				t.Fatalf("finished at %v, want between %v and %v", info.FinishedAt, before, after)
			}
			f.wantErr("again", f.q.Cancel(f.ctx, id), queue.ErrNotWaiting)
		}
		f.wantStats(0, 0, 0, 0)
		f.popNone()
		same(f, "the key is free", f.push(ready)[0].Duplicate, false)
		f.must(f.q.Ack(f.ctx, f.popOne()))
	}
}

func cancelExpired(t *testing.T, e Engine) {
	f := start(t, e, nil)
	f.push(job("x"))
	late := f.popOne()
	f.age(e.AgeLeases, time.Hour)
	f.must(f.q.Cancel(f.ctx, late.ID))
	f.wantGone(late.ID)
	f.wantErr("the late ack", f.q.Ack(f.ctx, late), queue.ErrLeaseLost)
	f.popNone()
}

func reschedule(t *testing.T, e Engine) {
	f := start(t, e, nil)
	ids := pushedIDs(f.push(
		queue.NewJob{Queue: "q", Kind: "k", Payload: []byte("x"), Priority: 2},
		queue.NewJob{Queue: "q", Kind: "k", Payload: []byte("y"), Delay: time.Hour},
	))
	for _, id := range ids {
		before := f.now()
		f.must(f.q.Reschedule(f.ctx, id, 30*time.Minute))
		after := f.now()
		info := f.wantState(id, queue.Delayed)
		if r := info.RunAt; r.Before(before.Add(30*time.Minute)) || r.After(after.Add(30*time.Minute)) {
			t.Fatalf("due at %v, want 30 minutes after %v", r, before)
		}
		at := f.now().Add(2 * time.Hour)
		f.must(f.q.RescheduleAt(f.ctx, id, at.In(time.FixedZone("", -7200))))
		same(f, "due at", f.wantState(id, queue.Delayed).RunAt, at)
	}
	f.popNone()
	f.wantStats(0, 2, 0, 0)

	// Due soon: never before, and with everything it had.
	at := f.now().Add(300 * time.Millisecond)
	f.must(f.q.RescheduleAt(f.ctx, ids[0], at))
	info := f.wantState(ids[0], queue.Delayed)
	same(f, "priority", info.Priority, 2)
	same(f, "payload", string(info.Payload), "x")
	same(f, "attempt", info.Attempt, 0)
	f.wantDue(info, 300*time.Millisecond)

	f.must(f.q.Reschedule(f.ctx, ids[1], 0))
	f.wantState(ids[1], queue.Ready)
	j := f.popOne()
	same(f, "popped at once", j.ID, ids[1])

	f.wantInvalid("a negative delay", f.q.Reschedule(f.ctx, ids[1], -1), "delay")
	f.wantInvalid("too long a delay", f.q.Reschedule(f.ctx, ids[1], queue.MaxDelay+1), "delay")
	f.wantInvalid("no time", f.q.RescheduleAt(f.ctx, ids[1], time.Time{}), "at")
}

// behind pops from the lane of priority 0 until its cursors, and what a short
// pop looks back at, are past everything there is. Then the next pop must find
// by itself what comes back: the recheck is mostly some time off.
func (f *fixture) behind() {
	f.Helper()
	f.push(job("filler"))
	f.must(f.q.Ack(f.ctx, f.popSoon(f.q, 1)...))
	for began := time.Now(); time.Since(began) < 2300*time.Millisecond; time.Sleep(50 * time.Millisecond) {
		f.popNone()
	}
}

func rescheduleBehind(t *testing.T, e Engine) {
	f := start(t, e, nil)
	var ids []int64
	for range 4 {
		ids = append(ids, f.push(queue.NewJob{Queue: "q", Kind: "k", Delay: time.Hour})[0].ID)
	}
	now := f.now()
	f.behind()
	for i, at := range []time.Time{now, now.Add(-time.Minute), now.Add(-24 * time.Hour), time.Unix(1, 0)} {
		f.must(f.q.RescheduleAt(f.ctx, ids[i], at))
		f.wantState(ids[i], queue.Ready)
		f.nextPop(ids[i])
	}
}

// nextPop ends the test unless the very next pop returns a job.
func (f *fixture) nextPop(id int64) {
	f.Helper()
	for _, j := range f.pop(10) {
		if j.ID == id {
			f.must(f.q.Ack(f.ctx, j))
			return
		}
	}
	f.Fatalf("the next pop did not find job %d", id)
}

func reprioritize(t *testing.T, e Engine) {
	f := start(t, e, &queue.Options{Shards: 3})
	var ids []int64
	for i := range 10 {
		ids = append(ids, f.push(job(fmt.Sprint(i)))[0].ID)
	}
	delayed := f.push(queue.NewJob{Queue: "q", Kind: "k", Payload: []byte("delayed"), Delay: time.Hour, UniqueKey: "u"})[0].ID
	for i, id := range ids {
		f.must(f.q.Reprioritize(f.ctx, id, i-4)) // one of them keeps its own
		info := f.wantState(id, queue.Ready)
		same(f, "priority", info.Priority, i-4)
		same(f, "payload", string(info.Payload), fmt.Sprint(i))
	}
	due := f.info(delayed).RunAt
	for _, p := range []int{9, 9, -9, 0, 7} {
		f.must(f.q.Reprioritize(f.ctx, delayed, p))
		info := f.wantState(delayed, queue.Delayed)
		same(f, "priority", info.Priority, p)
		same(f, "due at", info.RunAt, due)
	}
	f.wantStats(10, 1, 0, 0)
	same(f, "duplicate", f.push(keyed("u"))[0], queue.Pushed{ID: delayed, Duplicate: true})
	var got []string
	f.within(soon, "all popped", func() bool {
		got = append(got, payloads(f.pop(1))...)
		return len(got) == 10
	})
	sameList(f, "popped", got, []string{"9", "8", "7", "6", "5", "4", "3", "2", "1", "0"})
	f.popNone()
	f.must(f.q.Reschedule(f.ctx, delayed, 0))
	j := f.popOne()
	same(f, "id", j.ID, delayed)
	same(f, "priority", j.Priority, 7)
	for _, p := range []int{queue.MinPriority - 1, queue.MaxPriority + 1} {
		f.wantInvalid("out of range", f.q.Reprioritize(f.ctx, delayed, p), "priority")
	}
}

func reprioritizeBehind(t *testing.T, e Engine) {
	f := start(t, e, nil)
	var held []*queue.Job
	for i, delay := range []time.Duration{0, time.Millisecond, time.Millisecond} {
		p := f.push(queue.NewJob{Queue: "q", Kind: "k", Priority: i - 3, Delay: delay})[0]
		held = append(held, must(f.q.PopID(f.ctx, p.ID, time.Minute))(f))
	}
	f.behind()
	f.age(e.AgeLeases, time.Hour) // they are ready, and came due long ago
	for _, j := range held {
		f.must(f.q.Reprioritize(f.ctx, j.ID, 0))
		same(f, "priority", f.wantState(j.ID, queue.Ready).Priority, 0)
	}
	got := f.pop(10) // the very next pop
	same(f, "popped", len(got), len(held))
	for _, j := range got {
		same(f, "attempt", j.Attempt, 2)
	}
}

func changeNotWaiting(t *testing.T, e Engine) {
	f := start(t, e, &queue.Options{KeepFinished: true})
	ids := pushedIDs(f.push(jobs(3)...))
	got := f.pop(3)
	f.must(f.q.Ack(f.ctx, got[1]))
	f.must(f.q.Fail(f.ctx, got[2], errBoom, &queue.FailOptions{Dead: true}))
	for i, state := range []queue.State{queue.Running, queue.Done, queue.Dead} {
		before := fmt.Sprintf("%+v", f.wantState(ids[i], state))
		for what, call := range f.changes(ids[i]) {
			f.wantErr(what+" of a job that is "+string(state), call(), queue.ErrNotWaiting)
		}
		same(f, "after the calls", fmt.Sprintf("%+v", f.info(ids[i])), before)
	}
	for _, id := range []int64{0, -5, ids[2] + 1, 1<<63 - 1} {
		for what, call := range f.changes(id) {
			f.wantErr(fmt.Sprint(what, " of ", id), call(), queue.ErrNotFound)
		}
	}
	f.wantStats(0, 0, 1, 1)
	f.must(f.q.Ack(f.ctx, got[0])) // the lease stood
}

func changeLocked(t *testing.T, e Engine) {
	if e.OneWriter {
		t.Skip("an open transaction holds back every other writer here")
	}
	f := start(t, e, nil)
	f.push(job("x"))
	j := f.popOne()
	tx := f.begin()
	f.must(f.q.AckTx(f.ctx, tx, j))
	f.wantState(j.ID, queue.Running) // for everybody else
	for what, call := range f.changes(j.ID) {
		f.wantErr(what, call(), queue.ErrNotWaiting)
	}
	_, err := f.q.PopID(f.ctx, j.ID, time.Minute)
	f.wantErr("PopID", err, queue.ErrNotWaiting)
	f.must(tx.Commit())
	f.wantGone(j.ID)
}
