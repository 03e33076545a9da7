package dialecttest

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/sqlqueue/queue"
)

func init() {
	addAlone("restart: in good order", func(t *testing.T, e Engine) { survive(t, e, false) })
	addAlone("restart: after a crash", func(t *testing.T, e Engine) { survive(t, e, true) })
}

// survive restarts the server under jobs in every state. The Queue goes on over
// the same pool.
func survive(t *testing.T, e Engine, crash bool) {
	if e.Restart == nil {
		t.Skip("this engine is no server: it lives and dies with the process")
	}
	dsn, restart := e.Restart(t)
	e.NewDatabase = func(testing.TB) string { return dsn }
	f := start(t, e, nil)
	f.must(f.q.Configure(f.ctx, "q", queue.Settings{KeepFinished: ptr(1)}))

	push := func(j queue.NewJob) int64 {
		j.Queue, j.Kind = "q", "k"
		j.Payload, j.Headers = []byte{0, 1, 255}, map[string]string{"a": "ä"}
		return f.push(j)[0].ID
	}
	hold := func(id int64) *queue.Job {
		j, err := f.q.PopID(f.ctx, id, time.Hour)
		f.must(err)
		return j
	}
	push(queue.NewJob{})
	push(queue.NewJob{Priority: 4})
	push(queue.NewJob{Delay: time.Hour})
	retried := hold(push(queue.NewJob{}))
	f.must(f.q.Fail(f.ctx, retried, errBoom, &queue.FailOptions{RetryIn: time.Hour}))
	dead := hold(push(queue.NewJob{UniqueKey: "free again"}))
	f.must(f.q.Fail(f.ctx, dead, errBoom, &queue.FailOptions{Dead: true}))
	f.must(f.q.Ack(f.ctx, hold(push(queue.NewJob{}))))
	f.must(f.q.Cancel(f.ctx, push(queue.NewJob{})))
	released := hold(push(queue.NewJob{}))
	f.must(f.q.Release(f.ctx, released))
	unique := queue.NewJob{Queue: "q", Kind: "k", UniqueKey: "key"}
	uniqueID := f.push(unique)[0].ID
	batch := []queue.NewJob{{Queue: "paused", Kind: "k"}, {Queue: "paused", Kind: "k"}}
	once, err := f.q.PushMany(f.ctx, batch, &queue.PushOptions{PushID: "once"})
	f.must(err)
	f.must(f.q.Pause(f.ctx, "paused"))
	held := hold(push(queue.NewJob{}))
	acked := hold(push(queue.NewJob{}))
	tx := f.begin() // what is open is gone
	_, err = f.q.PushTx(f.ctx, tx, queue.NewJob{Queue: "q", Kind: "lost"})
	f.must(err)
	f.must(f.q.AckTx(f.ctx, tx, acked))

	snapshot := func() []string {
		var out []string
		for _, i := range f.list(queue.Filter{}) {
			out = append(out, fmt.Sprintf("%+v", i))
		}
		slices.Sort(out)
		return out
	}
	before, stats := snapshot(), f.stats()
	states := map[queue.State]bool{}
	for _, i := range f.list(queue.Filter{}) {
		states[i.State] = true
	}
	if len(states) != 6 {
		t.Fatalf("states before: %v", states)
	}

	restart(crash)

	down := time.Now()
	var failures []error
	f.within(20*time.Second, "the queue works again", func() bool {
		_, err := f.q.Get(f.ctx, held.ID)
		if err != nil {
			failures = append(failures, err)
		}
		return err == nil
	})
	t.Logf("works after %v and %d errors: %v", time.Since(down), len(failures), failures)
	// Each stale connection may fail once.
	f.within(20*time.Second, "all of the pool works again", func() bool {
		ok := true
		for range 20 {
			_, err := f.q.Peek(f.ctx, "q", 1)
			ok = ok && err == nil
		}
		return ok
	})
	if err := tx.Commit(); err == nil {
		t.Error("a transaction outlived the server")
	}
	if after := snapshot(); !slices.Equal(after, before) {
		t.Errorf("jobs before:\n%q\nafter:\n%q", before, after)
	}
	after := f.stats()
	after.OldestReady = stats.OldestReady
	if after != stats {
		t.Errorf("stats before %+v, after %+v", stats, after)
	}
	again := func(what string, call func() error) {
		t.Helper()
		if err := call(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	again("push id", func() error {
		p, err := f.q.PushMany(f.ctx, batch, &queue.PushOptions{PushID: "once"})
		if err == nil && !slices.Equal(p, once) {
			err = fmt.Errorf("the repeated push was answered with %v, before with %v", p, once)
		}
		return err
	})
	again("unique key", func() error {
		p, err := f.q.Push(f.ctx, unique)
		if err == nil && (!p.Duplicate || p.ID != uniqueID) {
			err = fmt.Errorf("stored again: %+v", p)
		}
		return err
	})
	again("ack by the old lease", func() error { return f.q.Ack(f.ctx, held) })
	again("ack whose transaction was lost", func() error { return f.q.Ack(f.ctx, acked) })
	if jobs := f.popFrom(10, "paused"); len(jobs) != 0 {
		t.Error("the pause is forgotten")
	}
	again("resume", func() error { return f.q.Resume(f.ctx, "paused") })
	if jobs := f.popFrom(10, "paused"); len(jobs) != 2 {
		t.Errorf("%d jobs of the paused queue", len(jobs))
	}
	again("redrive", func() error {
		n, skipped, err := f.q.Redrive(f.ctx, queue.Redrive{})
		if err == nil && (n != 1 || skipped != 0) {
			err = fmt.Errorf("%d redriven, %d skipped", n, skipped)
		}
		return err
	})
	got := f.pop(100)
	if len(got) != 5 || got[0].Priority != 4 {
		t.Errorf("popped %d jobs, want the ready five", len(got))
	}
	again("ack", func() error { return f.q.Ack(f.ctx, got...) })
	if err := f.q.Ack(f.ctx, released); !errors.Is(err, queue.ErrLeaseLost) {
		t.Errorf("ack of a released job: %v", err)
	}
}
