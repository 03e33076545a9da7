package dialecttest

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/sqlqueue/queue"
)

func init() {
	add("push: every field comes back", pushFields)
	add("push: defaults", pushDefaults)
	add("push: many, each answered by its position", pushMany)
	add("push: 10,000 jobs in one call, in their order", push10000)
	add("push: 64 MiB in one call", push64MiB)
	add("push: all or none when the database fails in the middle", pushAllOrNone)
	add("push: in a transaction", pushTx)
	add("push: a lane made in a transaction that rolls back", pushTxLane)
	add("calls: with a context that has ended", callsCancelled)
}

func pushFields(t *testing.T, e Engine) {
	f := start(t, e, nil)
	headers := map[string]string{"trace": "4711", "empty": "", "": "no name"}
	before := f.now()
	p, err := f.q.Push(f.ctx, queue.NewJob{
		Queue: "q", Kind: "greet", Payload: []byte("hello"), Headers: headers, Priority: -3,
		MaxAttempts: 7, UniqueKey: "key", Lease: 90 * time.Second,
	})
	f.must(err)
	after := f.now()
	if p.ID <= 0 || p.Duplicate {
		t.Fatalf("pushed %+v", p)
	}

	info := f.wantState(p.ID, queue.Ready)
	same(f, "queue", info.Queue, "q")
	same(f, "kind", info.Kind, "greet")
	same(f, "payload", string(info.Payload), "hello")
	same(f, "headers", maps.Equal(info.Headers, headers), true)
	same(f, "priority", info.Priority, -3)
	same(f, "attempt", info.Attempt, 0)
	same(f, "max attempts", info.MaxAttempts, 7)
	same(f, "unique key", info.UniqueKey, "key")
	same(f, "run at", info.RunAt, time.Time{})
	same(f, "leased until", info.LeasedUntil, time.Time{})
	same(f, "finished at", info.FinishedAt, time.Time{})
	same(f, "node", info.Node, "")
	same(f, "errors", len(info.Errors), 0)
	if c := info.CreatedAt; c.Before(before) || c.After(after) {
		t.Fatalf("created at %v, want between %v and %v", c, before, after)
	}

	before = f.now()
	j := f.popOne()
	after = f.now()
	same(f, "id", j.ID, p.ID)
	same(f, "queue", j.Queue, "q")
	same(f, "kind", j.Kind, "greet")
	same(f, "payload", string(j.Payload), "hello")
	same(f, "headers", maps.Equal(j.Headers, headers), true)
	same(f, "priority", j.Priority, -3)
	same(f, "attempt", j.Attempt, 1)
	same(f, "max attempts", j.MaxAttempts, 7)
	same(f, "unique key", j.UniqueKey, "key")
	same(f, "created at", j.CreatedAt, info.CreatedAt)
	same(f, "run at", j.RunAt, time.Time{})
	same(f, "errors", len(j.Errors), 0)
	// The job's own lease time counts, not the pop's minute.
	if u := j.LeasedUntil; u.Before(before.Add(90*time.Second)) || u.After(after.Add(90*time.Second)) {
		t.Fatalf("leased until %v, want 90 s after %v to %v", u, before, after)
	}
	if r := j.Remaining(); r <= 60*time.Second || r > 90*time.Second {
		t.Fatalf("%v of the lease remain, want up to 90 s", r)
	}

	info = f.wantState(p.ID, queue.Running)
	same(f, "attempt", info.Attempt, 1)
	same(f, "leased until", info.LeasedUntil, j.LeasedUntil)
	same(f, "node", info.Node, f.q.Node())
}

func pushDefaults(t *testing.T, e Engine) {
	f := start(t, e, nil)
	mine := f.info(f.push(queue.NewJob{Queue: "q", Kind: "k"})[0].ID)
	same(f, "max attempts", mine.MaxAttempts, 10)
	same(f, "priority", mine.Priority, 0)
	same(f, "payload", len(mine.Payload), 0)
	same(f, "headers", len(mine.Headers), 0)
	same(f, "unique key", mine.UniqueKey, "")

	three := f.other(&queue.Options{MaxAttempts: 3})
	p, err := three.Push(f.ctx, queue.NewJob{Queue: "q", Kind: "k"})
	f.must(err)
	same(f, "max attempts of the options", f.info(p.ID).MaxAttempts, 3)
	p, err = three.Push(f.ctx, queue.NewJob{Queue: "q", Kind: "k", MaxAttempts: 1000})
	f.must(err)
	same(f, "max attempts of the job", f.info(p.ID).MaxAttempts, 1000)

	before := f.now()
	jobs, err := f.q.Pop(f.ctx, 1, nil)
	f.must(err)
	after := f.now()
	same(f, "popped", len(jobs), 1)
	if u := jobs[0].LeasedUntil; u.Before(before.Add(queue.DefaultLease)) || u.After(after.Add(queue.DefaultLease)) {
		t.Fatalf("leased until %v, want %v after %v", u, queue.DefaultLease, before)
	}

	none, err := f.q.PushMany(f.ctx, nil, nil)
	f.must(err)
	same(f, "answers to a push of nothing", len(none), 0)
}

func pushMany(t *testing.T, e Engine) {
	f := start(t, e, nil)
	var jobs []queue.NewJob
	for i := range 300 {
		jobs = append(jobs, queue.NewJob{
			Queue: fmt.Sprintf("q%d", i%3), Kind: fmt.Sprintf("k%d", i%7), Payload: fmt.Append(nil, i),
			Priority: i%5 - 2, MaxAttempts: 1 + i%9, Delay: time.Duration(i%2) * time.Hour,
			Headers: map[string]string{"i": fmt.Sprint(i)}, Lease: time.Duration(i%4) * time.Minute,
		})
		if i%3 == 1 {
			jobs[i].UniqueKey = fmt.Sprint("key", i)
		}
	}
	pushed := f.push(jobs...)
	same(f, "answers", len(pushed), len(jobs))
	seen := map[int64]bool{}
	for i, p := range pushed {
		if p.Duplicate || seen[p.ID] {
			t.Fatalf("job %d: %+v, seen before: %t", i, p, seen[p.ID])
		}
		seen[p.ID] = true
	}
	byID := map[int64]queue.JobInfo{}
	for _, info := range f.list(queue.Filter{}) {
		byID[info.ID] = info
	}
	same(f, "jobs", len(byID), len(jobs))
	for i, want := range jobs {
		got := byID[pushed[i].ID]
		state := queue.Ready
		if want.Delay > 0 {
			state = queue.Delayed
			if d := got.RunAt.Sub(got.CreatedAt); d != want.Delay {
				t.Fatalf("job %d is due %v after its push, want %v", i, d, want.Delay)
			}
		}
		if got.Queue != want.Queue || got.Kind != want.Kind || !bytes.Equal(got.Payload, want.Payload) ||
			got.Priority != want.Priority || got.MaxAttempts != want.MaxAttempts || got.State != state ||
			got.UniqueKey != want.UniqueKey || !maps.Equal(got.Headers, want.Headers) {
			t.Fatalf("job %d: got %+v, want %+v", i, got, want)
		}
	}
}

func push10000(t *testing.T, e Engine) {
	f := start(t, e, nil)
	pushed := f.push(jobs(queue.MaxPush)...)
	same(f, "answers", len(pushed), queue.MaxPush)
	same(f, "distinct ids", len(slices.Compact(slices.Sorted(slices.Values(pushedIDs(pushed))))), queue.MaxPush)
	same(f, "counted", f.q.Counters().Pushed, queue.MaxPush)

	i := 0
	for range queue.MaxPush / queue.MaxBatch {
		got := f.pop(queue.MaxBatch)
		same(f, "popped", len(got), queue.MaxBatch)
		for _, j := range got {
			if j.ID != pushed[i].ID || string(j.Payload) != fmt.Sprint(i) {
				t.Fatalf("job %d at place %d, with payload %s and id %d, want id %d", j.ID, i, j.Payload, j.ID, pushed[i].ID)
			}
			i++
		}
		f.must(f.q.Ack(f.ctx, got...))
	}
	f.popNone()
	f.wantStats(0, 0, 0, 0)

	_, err := f.q.PushMany(f.ctx, jobs(queue.MaxPush+1), nil)
	f.wantInvalid("a push of one job more", err, "jobs")
	f.wantStats(0, 0, 0, 0)
}

func push64MiB(t *testing.T, e Engine) {
	f := start(t, e, nil)
	random := rand.New(rand.NewChaCha8([32]byte{}))
	body := make([]byte, queue.DefaultMaxPayload)
	for i := range body {
		body[i] = byte(random.Uint32())
	}
	batch := jobs(queue.MaxPushBytes / len(body))
	for i := range batch {
		batch[i].Payload = slices.Concat(body[i:], body[:i]) // each another one
	}
	pushed := f.push(batch...)
	for i := 0; i < len(batch); i += 8 {
		for k, j := range f.pop(8) {
			if j.ID != pushed[i+k].ID || !bytes.Equal(j.Payload, batch[i+k].Payload) {
				t.Fatalf("job %d came back with another id or payload", i+k)
			}
		}
	}
	f.wantStats(0, 0, int64(len(batch)), 0)

	_, err := f.q.PushMany(f.ctx, append(batch, job("x")), nil)
	f.wantInvalid("a push of one byte more", err, "jobs")
	f.wantStats(0, 0, int64(len(batch)), 0)

	// One payload may be as large, if the options say so.
	large := f.other(&queue.Options{MaxPayload: queue.MaxPushBytes})
	mebibytes := 16
	if e.MaxPayload > 0 {
		mebibytes = min(mebibytes, e.MaxPayload>>20)
	}
	p, err := large.Push(f.ctx, queue.NewJob{Queue: "large", Kind: "k", Payload: bytes.Repeat(body, mebibytes)})
	f.must(err)
	same(f, "a large payload comes back", bytes.Equal(f.info(p.ID).Payload, bytes.Repeat(body, mebibytes)), true)
}

func pushAllOrNone(t *testing.T, e Engine) {
	f := start(t, e, nil)
	kept := f.push(job("kept"))
	f.exec(e.OneBad)
	batch := jobs(queue.MaxPush)
	for i := range batch {
		batch[i].UniqueKey = fmt.Sprint("key", i) // none of these may stay taken
	}
	batch[10].Kind, batch[queue.MaxPush-10].Kind = "bad", "bad"
	for _, opts := range []*queue.PushOptions{nil, {PushID: "id"}} {
		if out, err := f.q.PushMany(f.ctx, batch, opts); err == nil || out != nil {
			t.Fatalf("the push answered %d jobs and %v, want an error", len(out), err)
		}
		f.wantStats(1, 0, 0, 0)
	}
	tx := f.begin()
	if _, err := f.q.PushManyTx(f.ctx, tx, batch, nil); err == nil {
		t.Fatal("the push in a transaction was taken")
	}
	tx.Rollback()
	f.wantStats(1, 0, 0, 0)
	same(f, "counted", f.q.Counters().Pushed, 1)

	// What failed has left nothing behind: neither keys nor push ids.
	batch[10].Kind = "k"
	for i, p := range must(f.q.PushMany(f.ctx, batch, &queue.PushOptions{PushID: "id"}))(f) {
		if p.Duplicate {
			t.Fatalf("job %d: its key stayed taken", i)
		}
	}
	got := f.stats() // beyond StatsExact the numbers may be estimates
	same(f, "estimated", got.Estimated, true)
	if got.Ready < queue.StatsExact || got.Ready > 3*queue.MaxPush || got.Delayed+got.Running+got.Dead != 0 {
		t.Fatalf("stats are %+v, want about %d ready", got, 1+queue.MaxPush)
	}
	same(f, "first", f.popOne().ID, kept[0].ID)
}

// must ends the test on an error, and returns the value else.
func must[T any](v T, err error) func(*fixture) T {
	return func(f *fixture) T {
		f.Helper()
		f.must(err)
		return v
	}
}

func pushTx(t *testing.T, e Engine) {
	f := start(t, e, nil)
	out := f.other(nil)
	f.exec(`CREATE TABLE business (n integer)`)
	count := func() (n int) {
		f.must(f.db.QueryRowContext(f.ctx, `SELECT count(*) FROM business`).Scan(&n))
		return n
	}
	// The first push of a queue makes its lane, the second finds it.
	for round, commit := range []bool{false, true, false, true} {
		tx := f.begin()
		_, err := tx.ExecContext(f.ctx, `INSERT INTO business VALUES (1)`)
		f.must(err)
		one := must(f.q.PushTx(f.ctx, tx, job("one")))(f)
		many := must(f.q.PushManyTx(f.ctx, tx, []queue.NewJob{job("two"), {Queue: "q", Kind: "k", Delay: time.Hour, UniqueKey: "u"}}, nil))(f)
		all := append(pushedIDs(many), one.ID)
		for _, id := range all {
			if _, err := out.Get(f.ctx, id); err == nil {
				t.Fatal("a job can be seen before its transaction has committed")
			}
		}
		jobs, err := out.Pop(f.ctx, 10, nil)
		f.must(err)
		same(f, "popped before the commit", len(jobs), 0)
		if !commit {
			f.must(tx.Rollback())
			same(f, "business rows", count(), round/2)
			for _, id := range all {
				f.wantGone(id)
			}
			f.wantStats(0, 0, 0, 0)
			continue
		}
		f.must(tx.Commit())
		same(f, "business rows", count(), round/2+1)
		f.must(out.Ack(f.ctx, f.popSoon(out, 2)...))
		f.wantStats(0, 1, 0, 0)
		f.must(f.q.Cancel(f.ctx, many[1].ID))
	}
}

func pushTxLane(t *testing.T, e Engine) {
	f := start(t, e, nil)
	for i := range 4 {
		tx := f.begin()
		p := must(f.q.PushTx(f.ctx, tx, queue.NewJob{Queue: fmt.Sprint("q", i), Kind: "k"}))(f)
		f.must(tx.Rollback())
		f.wantGone(p.ID)
	}
	f.wantNothing("four rolled-back pushes")
	// Other queues come into being; they may be given the same lanes.
	for i := range 4 {
		name := fmt.Sprint("q", 3-i)
		p := must(f.q.Push(f.ctx, queue.NewJob{Queue: name, Kind: "k", Payload: []byte(name)}))(f)
		same(f, "queue", f.info(p.ID).Queue, name)
		got := f.popFrom(2, name)
		same(f, "popped", len(got), 1)
		same(f, "id", got[0].ID, p.ID)
		same(f, "queue", got[0].Queue, name)
	}
}

func callsCancelled(t *testing.T, e Engine) {
	f := start(t, e, nil)
	j := f.push(job("1"), job("2"))
	held := f.popOne()
	ended, cancel := context.WithCancel(f.ctx)
	cancel()
	for name, call := range map[string]func() error{
		"Push":         func() error { _, err := f.q.Push(ended, job("x")); return err },
		"Pop":          func() error { _, err := f.q.Pop(ended, 1, nil); return err },
		"PopID":        func() error { _, err := f.q.PopID(ended, j[1].ID, time.Minute); return err },
		"Ack":          func() error { return f.q.Ack(ended, held) },
		"Fail":         func() error { return f.q.Fail(ended, held, nil, nil) },
		"Release":      func() error { return f.q.Release(ended, held) },
		"Extend":       func() error { return f.q.Extend(ended, time.Minute, held) },
		"Cancel":       func() error { return f.q.Cancel(ended, j[1].ID) },
		"Reschedule":   func() error { return f.q.Reschedule(ended, j[1].ID, time.Hour) },
		"Reprioritize": func() error { return f.q.Reprioritize(ended, j[1].ID, 1) },
		"Pause":        func() error { return f.q.Pause(ended, "q") },
		"RequeueNode":  func() error { _, err := f.q.RequeueNode(ended, f.q.Node()); return err },
		"Redrive":      func() error { _, _, err := f.q.Redrive(ended, queue.Redrive{}); return err },
		"Purge":        func() error { _, err := f.q.Purge(ended, queue.Purge{}); return err },
		"Get":          func() error { _, err := f.q.Get(ended, j[1].ID); return err },
		"Stats":        func() error { _, err := f.q.Stats(ended, "q"); return err },
		"Peek":         func() error { _, err := f.q.Peek(ended, "q", 1); return err },
		"Queues":       func() error { _, err := f.q.Queues(ended); return err },
		"Migrate":      func() error { return f.q.Migrate(ended) },
		"Jobs": func() error {
			for _, err := range f.q.Jobs(ended, queue.Filter{}) {
				return err
			}
			return nil
		},
	} {
		f.wantErr(name, call(), context.Canceled)
	}
	f.wantStats(1, 0, 1, 0)
	same(f, "running", f.wantState(held.ID, queue.Running).LeasedUntil, held.LeasedUntil)
	same(f, "attempt", f.info(j[1].ID).Attempt, 0)
	same(f, "connections in use", f.db.Stats().InUse, 0)
	f.must(f.q.Ack(f.ctx, held))
	same(f, "the other", f.popOne().ID, j[1].ID)
}
