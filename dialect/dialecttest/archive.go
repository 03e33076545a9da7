package dialecttest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/sqlqueue/queue"
)

func init() {
	add("archive: a finished job with all it had", archiveFields)
	add("redrive: one, by filter and with a limit", redrive)
	add("redrive: a taken unique key is skipped", redriveKey)
	add("redrive: more than a batch", redriveMany)
	add("redrive: a job behind the cursor is found at once", redriveBehind)
	add("purge: by age, state and queue", purge)
	add("purge: more than a batch", purgeMany)
}

// die makes jobs dead, one after the other, and returns their ids.
func (f *fixture) die(jobs ...queue.NewJob) []int64 {
	f.Helper()
	var out []int64
	for _, j := range jobs {
		p := must(f.q.Push(f.ctx, j))(f)
		out = append(out, p.ID)
		f.must(f.q.Fail(f.ctx, must(f.q.PopID(f.ctx, p.ID, time.Minute))(f), errBoom, &queue.FailOptions{Dead: true}))
	}
	return out
}

func archiveFields(t *testing.T, e Engine) {
	f := start(t, e, &queue.Options{KeepFinished: true})
	p := f.push(queue.NewJob{
		Queue: "q", Kind: "greet", Payload: []byte("hello"), Headers: map[string]string{"a": "b"}, Priority: -3,
		MaxAttempts: 7, UniqueKey: "key", Lease: time.Hour, Delay: time.Millisecond,
	})[0]
	j := must(f.q.PopID(f.ctx, p.ID, time.Minute))(f)
	f.must(f.q.Fail(f.ctx, j, errBoom, &queue.FailOptions{RetryIn: -1}))
	j = f.popOne()
	before := f.now()
	f.must(f.q.Ack(f.ctx, j))
	after := f.now()
	info := f.wantState(p.ID, queue.Done)
	same(f, "queue", info.Queue, "q")
	same(f, "kind", info.Kind, "greet")
	same(f, "payload", string(info.Payload), "hello")
	same(f, "header", info.Headers["a"], "b")
	same(f, "priority", info.Priority, -3)
	same(f, "attempt", info.Attempt, 2)
	same(f, "max attempts", info.MaxAttempts, 7)
	same(f, "unique key", info.UniqueKey, "key")
	same(f, "created at", info.CreatedAt, j.CreatedAt)
	same(f, "leased until", info.LeasedUntil, time.Time{})
	same(f, "node", info.Node, f.q.Node())
	same(f, "errors", len(info.Errors), 1)
	same(f, "error", info.Errors[0].Error, "boom")
	if info.FinishedAt.Before(before) || info.FinishedAt.After(after) {
		t.Fatalf("finished at %v, want between %v and %v", info.FinishedAt, before, after)
	}
	f.wantStats(0, 0, 0, 0) // it is no live job any more, and not dead
	f.popNone()
}

func redrive(t *testing.T, e Engine) {
	f := start(t, e, nil)
	var batch []queue.NewJob
	for i := range 12 {
		batch = append(batch, queue.NewJob{
			Queue: []string{"q", "r"}[i%2], Kind: []string{"a", "b", "c"}[i%3], Priority: i%4 - 1, MaxAttempts: 3,
			Payload: fmt.Append(nil, i), Headers: map[string]string{"i": fmt.Sprint(i)}, Lease: time.Hour,
		})
	}
	ids := f.die(batch...)
	states := func() (live []int) {
		for i, id := range ids {
			switch info := f.info(id); info.State {
			case queue.Ready:
				live = append(live, i)
				same(f, "attempt", info.Attempt, 0)
				same(f, "max attempts", info.MaxAttempts, 3)
				same(f, "errors", len(info.Errors), 1)
				same(f, "priority", info.Priority, batch[i].Priority)
				same(f, "queue", info.Queue, batch[i].Queue)
				same(f, "kind", info.Kind, batch[i].Kind)
				same(f, "payload", string(info.Payload), fmt.Sprint(i))
				same(f, "header", info.Headers["i"], fmt.Sprint(i))
				same(f, "finished at", info.FinishedAt, time.Time{})
			case queue.Dead:
			default:
				t.Fatalf("job %d is %s", i, info.State)
			}
		}
		return live
	}
	check := func(what string, r queue.Redrive, want ...int) {
		f.Helper()
		before := states()
		n, skipped, err := f.q.Redrive(f.ctx, r)
		f.must(err)
		same(f, what+": redriven", n, len(want)-len(before))
		same(f, what+": skipped", skipped, 0)
		sameList(f, what+": live", states(), want)
	}
	check("one", queue.Redrive{ID: ids[4]}, 4)
	check("by queue and kind", queue.Redrive{Queue: "r", Kind: "b"}, 1, 4, 7)
	check("nothing fits", queue.Redrive{Queue: "q", Kind: "unknown"}, 1, 4, 7)
	check("an unknown queue", queue.Redrive{Queue: "unknown"}, 1, 4, 7)
	check("two of a queue, the oldest first", queue.Redrive{Queue: "q", Limit: 2}, 0, 1, 2, 4, 7)
	check("by kind", queue.Redrive{Kind: "c"}, 0, 1, 2, 4, 5, 7, 8, 11)
	check("all", queue.Redrive{}, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)
	check("none is left", queue.Redrive{}, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)

	for _, id := range []int64{ids[0], 12345, -1} {
		_, _, err := f.q.Redrive(f.ctx, queue.Redrive{ID: id})
		f.wantErr("not dead", err, queue.ErrNotFound)
	}
	_, _, err := f.q.Redrive(f.ctx, queue.Redrive{Limit: -1})
	f.wantInvalid("a negative limit", err, "Redrive.Limit")

	// They run again, with their own lease time and their history.
	var got []*queue.Job
	f.within(soon, "all popped", func() bool {
		got = append(got, f.popFrom(20)...)
		return len(got) == 12
	})
	for _, j := range got {
		same(f, "attempt", j.Attempt, 1)
		same(f, "errors", len(j.Errors), 1)
		if left := j.Remaining(); left < 59*time.Minute {
			t.Fatalf("leased for %v, want the job's own hour", left)
		}
	}
	f.must(f.q.Ack(f.ctx, got...))
	same(f, "jobs", len(f.list(queue.Filter{})), 0)

	// The done and the cancelled are not redriven.
	f.must(f.q.Configure(f.ctx, "q", queue.Settings{KeepFinished: ptr(1)}))
	f.push(jobs(2)...)
	f.must(f.q.Ack(f.ctx, f.popOne()))
	f.must(f.q.Cancel(f.ctx, f.list(queue.Filter{Queue: "q", States: []queue.State{queue.Ready}})[0].ID))
	n, _, err := f.q.Redrive(f.ctx, queue.Redrive{Queue: "q"})
	f.must(err)
	same(f, "redriven of done and cancelled", n, 0)
}

func redriveKey(t *testing.T, e Engine) {
	f := start(t, e, nil)
	// Three jobs died one after the other under one key, and another under its own.
	ids := f.die(keyed("u"), keyed("u"), keyed("u"), keyed("v"))
	n, skipped, err := f.q.Redrive(f.ctx, queue.Redrive{})
	f.must(err)
	same(f, "redriven", n, 2)
	same(f, "skipped", skipped, 2)
	f.wantStats(2, 0, 0, 2)
	f.wantState(ids[0], queue.Ready)
	f.wantState(ids[3], queue.Ready)
	same(f, "the key's holder", f.push(keyed("u"))[0], queue.Pushed{ID: ids[0], Duplicate: true})

	n, skipped, err = f.q.Redrive(f.ctx, queue.Redrive{ID: ids[1]})
	f.must(err)
	same(f, "redriven", n, 0)
	same(f, "skipped", skipped, 1)
	f.wantState(ids[1], queue.Dead)

	f.must(f.q.Cancel(f.ctx, ids[0])) // which frees the key
	n, skipped, err = f.q.Redrive(f.ctx, queue.Redrive{ID: ids[2]})
	f.must(err)
	same(f, "redriven", n, 1)
	same(f, "skipped", skipped, 0)
	same(f, "the key's holder", f.push(keyed("u"))[0], queue.Pushed{ID: ids[2], Duplicate: true})

	// A limit counts what was redriven, not what was skipped.
	f.die(keyed("w"))
	n, skipped, err = f.q.Redrive(f.ctx, queue.Redrive{Queue: "q", Limit: 1})
	f.must(err)
	same(f, "redriven", n, 1)
	same(f, "skipped", skipped, 1)
	f.wantStats(3, 0, 0, 1)
}

func redriveMany(t *testing.T, e Engine) {
	f := start(t, e, &queue.Options{Shards: 2})
	const n = 1200
	batch := jobs(n)
	for i := range batch {
		batch[i].UniqueKey = fmt.Sprint("k", i%(n-100)) // a hundred of them are twice
		batch[i].Priority = i % 3
	}
	dead := func(batch []queue.NewJob) {
		pushed := f.push(batch...)
		var failures []queue.Failure
		for range 2 {
			for _, j := range f.pop(queue.MaxBatch) {
				failures = append(failures, queue.Failure{Job: j, FailOptions: queue.FailOptions{Dead: true}})
			}
		}
		same(f, "popped", len(failures), len(pushed))
		f.must(f.q.FailMany(f.ctx, failures))
	}
	dead(batch[:n-100])
	dead(batch[n-100:])
	f.wantStats(0, 0, 0, n)
	redriven, skipped, err := f.q.Redrive(f.ctx, queue.Redrive{Limit: 700})
	f.must(err)
	same(f, "redriven", redriven, 700)
	same(f, "skipped", skipped, 0)
	f.wantStats(700, 0, 0, n-700)
	redriven, skipped, err = f.q.Redrive(f.ctx, queue.Redrive{})
	f.must(err)
	same(f, "redriven", redriven, n-100-700)
	same(f, "skipped", skipped, 100)
	f.wantStats(n-100, 0, 0, 100)
	seen := map[string]bool{}
	f.within(soon, "all popped", func() bool {
		for _, j := range f.pop(queue.MaxBatch) {
			seen[j.UniqueKey] = true
		}
		return len(seen) == n-100
	})
	f.popNone()
}

func redriveBehind(t *testing.T, e Engine) {
	f := start(t, e, nil)
	ids := f.die(job("a"))
	f.behind()
	_, _, err := f.q.Redrive(f.ctx, queue.Redrive{ID: ids[0]})
	f.must(err)
	f.nextPop(ids[0])
	// So are jobs that were released, or failed and are due at once.
	f.push(job("b"))
	j := f.popOne()
	f.must(f.q.Release(f.ctx, j))
	j = f.popOne()
	f.must(f.q.Fail(f.ctx, j, errBoom, &queue.FailOptions{RetryIn: -1}))
	f.nextPop(j.ID)
}

func purge(t *testing.T, e Engine) {
	f := start(t, e, &queue.Options{KeepFinished: true})
	end := func(name string, state queue.State) int64 {
		p := must(f.q.Push(f.ctx, queue.NewJob{Queue: name, Kind: "k"}))(f)
		if state == queue.Cancelled {
			f.must(f.q.Cancel(f.ctx, p.ID))
			return p.ID
		}
		j := must(f.q.PopID(f.ctx, p.ID, time.Minute))(f)
		if state == queue.Dead {
			f.must(f.q.Fail(f.ctx, j, nil, &queue.FailOptions{Dead: true}))
		} else {
			f.must(f.q.Ack(f.ctx, j))
		}
		return p.ID
	}
	states := []queue.State{queue.Done, queue.Dead, queue.Cancelled}
	left := map[string]int64{} // by queue, state and age
	for _, age := range []string{"old", "new"} {
		for _, name := range []string{"q", "r"} {
			for _, s := range states {
				left[name+" "+string(s)+" "+age] = end(name, s)
			}
		}
		if age == "old" {
			f.age(e.AgeArchive, time.Hour)
		}
	}
	live := f.push(job("live"), queue.NewJob{Queue: "q", Kind: "k", Delay: time.Hour})
	check := func(p queue.Purge, gone ...string) {
		f.Helper()
		n := must(f.q.Purge(f.ctx, p))(f)
		same(f, fmt.Sprintf("purged by %+v", p), n, int64(len(gone)))
		for _, name := range gone {
			f.wantGone(left[name])
			delete(left, name)
		}
		var want []int64
		for _, id := range left {
			want = append(want, id)
		}
		got := infoIDs(f.list(queue.Filter{States: states}))
		slices.Sort(want)
		slices.Sort(got)
		sameList(f, fmt.Sprintf("left by %+v", p), got, want)
	}
	check(queue.Purge{OlderThan: 2 * time.Hour})
	check(queue.Purge{OlderThan: 1<<63 - 1})
	check(queue.Purge{OlderThan: 30 * time.Minute, Queue: "unknown"})
	check(queue.Purge{OlderThan: 30 * time.Minute, Queue: "q", States: []queue.State{queue.Done}}, "q done old")
	check(queue.Purge{OlderThan: 30 * time.Minute}, "q cancelled old", "r done old", "r cancelled old") // never the dead by default
	check(queue.Purge{OlderThan: 30 * time.Minute, States: states, Queue: "r"}, "r dead old")
	check(queue.Purge{OlderThan: 30 * time.Minute, States: states}, "q dead old")
	check(queue.Purge{Queue: "q"}, "q done new", "q cancelled new")
	check(queue.Purge{States: []queue.State{queue.Cancelled, queue.Dead}}, "q dead new", "r dead new", "r cancelled new")
	check(queue.Purge{States: states}, "r done new")
	f.wantState(live[0].ID, queue.Ready)
	f.wantState(live[1].ID, queue.Delayed)

	for what, p := range map[string]queue.Purge{
		"Purge.OlderThan": {OlderThan: -1}, "Purge.Queue": {Queue: " "}, "Purge.States": {States: []queue.State{queue.Done, queue.Ready}},
	} {
		_, err := f.q.Purge(f.ctx, p)
		f.wantInvalid(what, err, what)
	}
}

func purgeMany(t *testing.T, e Engine) {
	f := start(t, e, &queue.Options{KeepFinished: true})
	const n = 1700 // several batches
	f.push(jobs(n)...)
	f.must(f.q.Ack(f.ctx, append(f.pop(1000), f.pop(1000)...)...))
	same(f, "kept", len(f.list(queue.Filter{States: []queue.State{queue.Done}})), n)
	f.push(jobs(3)...)
	same(f, "purged", must(f.q.Purge(f.ctx, queue.Purge{}))(f), n)
	f.wantStats(3, 0, 0, 0)
	same(f, "left", len(f.list(queue.Filter{})), 3)
}
