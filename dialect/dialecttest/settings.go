package dialecttest

import (
	"fmt"
	"testing"
	"time"

	"github.com/sqlqueue/queue"
)

func init() {
	add("pause: every process obeys within a second", pause)
	add("pause: when all queues are popped from", pauseAll)
	add("configure: shards up and down lose nothing", configureShards)
	add("configure: what is kept", configureKeep)
	add("requeue node: whatever a dead node holds", requeueNode)
	add("requeue node: more than one batch", requeueMany)
	add("close: later calls are refused", closeQueue)
}

func pause(t *testing.T, e Engine) {
	f := start(t, e, nil)
	out := f.other(nil)
	f.push(jobs(3)...)
	held := f.popOne()
	theirs := f.popSoon(out, 1)
	empty := func(q *queue.Queue) bool {
		jobs, err := q.Pop(f.ctx, 1, &queue.PopOptions{Queues: []string{"q"}})
		f.must(err)
		f.must(q.Release(f.ctx, jobs...))
		return len(jobs) == 0
	}
	for range 2 {
		f.must(f.q.Pause(f.ctx, "q"))
		f.must(f.q.Pause(f.ctx, "q")) // twice is no error
		same(f, "this process obeys at once", empty(f.q), true)
		f.within(within1s, "another process obeys the pause", func() bool { return empty(out) })
		same(f, "paused", f.stats().Paused, true)
		for range 20 {
			if !empty(f.q) || !empty(out) {
				t.Fatal("popped from a paused queue")
			}
		}
		f.must(f.q.Resume(f.ctx, "q"))
		same(f, "this process resumes at once", empty(f.q), false)
		f.within(within1s, "another process resumes", func() bool { return !empty(out) })
		same(f, "paused", f.stats().Paused, false)
	}

	// Everything else goes on.
	f.must(out.Pause(f.ctx, "q"))
	f.within(within1s, "this process obeys", func() bool { return empty(f.q) })
	f.must(f.q.Ack(f.ctx, held))
	f.must(out.Extend(f.ctx, time.Minute, theirs...))
	f.must(out.Fail(f.ctx, theirs[0], errBoom, &queue.FailOptions{RetryIn: -1}))
	p := f.push(job("pushed while paused"))[0]
	f.wantStats(3, 0, 0, 0)
	f.must(f.q.Cancel(f.ctx, p.ID))
	// Also in a process that starts only now.
	same(f, "a new process obeys", empty(f.other(nil)), true)

	// A queue can be paused before it has a job.
	f.must(f.q.Pause(f.ctx, "new"))
	must(f.q.Push(f.ctx, queue.NewJob{Queue: "new", Kind: "k"}))(f)
	same(f, "popped from a new queue", len(f.popFrom(1, "new")), 0)
	same(f, "paused", must(f.q.Stats(f.ctx, "new"))(f).Paused, true)
	f.must(f.q.Resume(f.ctx, "new"))
	same(f, "popped from a new queue", len(f.popFrom(1, "new")), 1)
	sameList(f, "queues", must(f.q.Queues(f.ctx))(f), []string{"clock", "new", "q"}[1:])
}

func pauseAll(t *testing.T, e Engine) {
	f := start(t, e, nil)
	for _, name := range []string{"a", "b", "c"} {
		must(f.q.Push(f.ctx, queue.NewJob{Queue: name, Kind: "k", Priority: 1}))(f)
		must(f.q.Push(f.ctx, queue.NewJob{Queue: name, Kind: "k", Delay: time.Millisecond}))(f)
	}
	f.must(f.q.Pause(f.ctx, "b"))
	time.Sleep(5 * time.Millisecond)
	for _, names := range [][]string{nil, {"a", "b", "c"}} {
		got := f.popFrom(10, names...)
		same(f, "popped", len(got), 4)
		for _, j := range got {
			if j.Queue == "b" {
				t.Fatal("popped from a paused queue")
			}
		}
		f.must(f.q.Release(f.ctx, got...))
	}
	f.must(f.q.Pause(f.ctx, "a"))
	f.must(f.q.Pause(f.ctx, "c"))
	same(f, "popped with every queue paused", len(f.popFrom(10)), 0)
	for _, name := range []string{"a", "b", "c"} {
		f.must(f.q.Resume(f.ctx, name))
	}
	same(f, "popped with every queue resumed", len(f.popFrom(10)), 6)
}

func configureShards(t *testing.T, e Engine) {
	f := start(t, e, nil)
	out := f.other(nil)
	lanes := func() int {
		var rows []struct {
			N int `db:"n"`
		}
		f.must(f.session().Select(f.ctx, &rows, `SELECT count(*) AS n FROM (`+f.statements().Lanes+`) AS lanes WHERE queue = 'q'`, nil))
		return rows[0].N
	}
	total := 0
	for i, shards := range []int{1, 8, 64, 3, 1, -1} {
		f.must(f.q.Configure(f.ctx, "q", queue.Settings{Shards: ptr(shards)}))
		f.push(jobs(64)...)
		if i == 1 { // another process spreads as well
			f.within(soon, "another process obeys", func() bool {
				must(out.PushMany(f.ctx, jobs(64), nil))(f)
				total += 64
				return lanes() == 8
			})
		}
		total += 64
		same(f, fmt.Sprint("lanes with shards ", shards), lanes(), []int{1, 8, 64, 64, 64, 64}[i])
		f.wantStats(int64(total), 0, 0, 0)
	}
	seen := map[int64]bool{}
	f.within(soon, "all popped", func() bool {
		for _, j := range f.pop(queue.MaxBatch) {
			if seen[j.ID] {
				t.Fatal("popped twice")
			}
			seen[j.ID] = true
		}
		return len(seen) == total
	})
	f.popNone()

	// One shard again: first in, first out.
	pushed := f.push(jobs(30)...)
	sameList(f, "popped", ids(f.pop(30)), pushedIDs(pushed))

	// What is not named stays.
	f.must(f.q.Configure(f.ctx, "q", queue.Settings{Shards: ptr(5)}))
	f.must(f.q.Configure(f.ctx, "q", queue.Settings{MaxBacklog: ptr(int64(7)), KeepFinished: ptr(1)}))
	f.must(f.q.Pause(f.ctx, "q"))
	f.must(f.q.Configure(f.ctx, "q", queue.Settings{}))
	var rows []struct {
		Name       string `db:"name"`
		Paused     int    `db:"paused"`
		Shards     int    `db:"shards"`
		Keep       int    `db:"keep"`
		MaxBacklog int64  `db:"max_backlog"`
	}
	f.must(f.session().Select(f.ctx, &rows, f.statements().Queues, nil))
	same(f, "settings", len(rows), 1)
	same(f, "settings", fmt.Sprint(rows[0]), "{q 1 5 1 7}")
	f.must(f.q.Configure(f.ctx, "q", queue.Settings{Shards: ptr(-7), KeepFinished: ptr(-7), MaxBacklog: ptr(int64(-7))}))
	rows = nil
	f.must(f.session().Select(f.ctx, &rows, f.statements().Queues, nil))
	same(f, "settings", fmt.Sprint(rows[0]), "{q 1 -1 -1 -1}")
}

func configureKeep(t *testing.T, e Engine) {
	f := start(t, e, nil)
	keeper := f.other(&queue.Options{KeepFinished: true})
	// ends acks one job and cancels another, and reports how many are kept.
	ends := func(q *queue.Queue) (kept int) {
		pushed := must(q.PushMany(f.ctx, jobs(2), nil))(f)
		f.must(q.Ack(f.ctx, f.popSoon(q, 1)...))
		f.must(q.Cancel(f.ctx, pushed[1].ID))
		for i, want := range []queue.State{queue.Done, queue.Cancelled} {
			if info, err := q.Get(f.ctx, pushed[i].ID); err == nil {
				same(f, "state", info.State, want)
				kept++
			} else {
				f.wantErr("not kept", err, queue.ErrNotFound)
			}
		}
		return kept
	}
	same(f, "kept by default", ends(f.q), 0)
	same(f, "kept by the options", ends(keeper), 2)
	f.must(f.q.Configure(f.ctx, "q", queue.Settings{KeepFinished: ptr(1)}))
	same(f, "kept by the queue's setting", ends(f.q), 2)
	f.must(f.q.Configure(f.ctx, "q", queue.Settings{KeepFinished: ptr(0)}))
	f.within(within1s, "another process deletes against its options", func() bool { return ends(keeper) == 0 })
	f.must(f.q.Configure(f.ctx, "q", queue.Settings{KeepFinished: ptr(-1)}))
	f.within(within1s, "the options decide again", func() bool { return ends(keeper) == 2 })
	same(f, "kept by default", ends(f.q), 0)
}

func requeueNode(t *testing.T, e Engine) {
	f := start(t, e, nil)
	dead := f.other(&queue.Options{Node: "dead node"})
	living := f.other(&queue.Options{Node: "living node"})
	f.push(
		queue.NewJob{Queue: "q", Kind: "k", Payload: []byte("a"), UniqueKey: "u"},
		queue.NewJob{Queue: "q", Kind: "k", Payload: []byte("last"), MaxAttempts: 1},
		queue.NewJob{Queue: "q", Kind: "k", Payload: []byte("due"), Delay: time.Millisecond, Priority: -2},
	)
	time.Sleep(5 * time.Millisecond)
	held := f.popSoon(dead, 3)
	expired := f.push(job("expired"))[0].ID
	must(dead.PopID(f.ctx, expired, time.Minute))(f)
	f.age(e.AgeLeases, 2*time.Minute)
	f.must(dead.Extend(f.ctx, time.Hour, held...)) // all but the last one still stand
	f.push(job("other"))
	others := must(living.PopID(f.ctx, f.list(queue.Filter{Queue: "q", States: []queue.State{queue.Ready}})[1].ID, time.Minute))(f)
	f.wantStats(1, 0, 4, 0)

	n, err := f.q.RequeueNode(f.ctx, "unknown node")
	f.wantErr("an unknown node", err, queue.ErrNotFound)
	same(f, "requeued", n, 0)
	_, err = f.q.RequeueNode(f.ctx, "")
	f.wantInvalid("no node", err, "node")

	same(f, "requeued", must(f.q.RequeueNode(f.ctx, "dead node"))(f), 3)
	same(f, "requeued again", must(f.q.RequeueNode(f.ctx, "dead node"))(f), 0)
	f.wantStats(4, 0, 1, 0)
	same(f, "the other node's lease", f.wantState(others.ID, queue.Running).LeasedUntil, others.LeasedUntil)
	for _, j := range held {
		info := f.wantState(j.ID, queue.Ready)
		same(f, "attempt", info.Attempt, 1) // it counts
		same(f, "node", info.Node, "")
		same(f, "leased until", info.LeasedUntil, time.Time{})
		same(f, "errors", len(info.Errors), 0)
	}
	same(f, "the key stays taken", f.push(keyed("u"))[0].Duplicate, true)

	// It was not dead after all.
	f.wantErr("its ack", dead.Ack(f.ctx, held...), queue.ErrLeaseLost)
	f.wantErr("its failure", dead.Fail(f.ctx, held[0], errBoom, nil), queue.ErrLeaseLost)
	f.wantErr("its heartbeat", dead.Extend(f.ctx, time.Hour, held[1]), queue.ErrLeaseLost)
	f.wantStats(4, 0, 1, 0)

	var got []*queue.Job
	f.within(soon, "what is left to do popped", func() bool {
		got = append(got, f.pop(10)...)
		return len(got) >= 3
	})
	same(f, "popped", len(got), 3)
	for _, j := range got {
		same(f, "attempt of "+string(j.Payload), j.Attempt, 2)
		if string(j.Payload) == "last" {
			t.Fatal("a job without attempts left was popped")
		}
	}
	last := f.wantState(held[1].ID, queue.Dead)
	same(f, "payload", string(last.Payload), "last")
	same(f, "attempt", last.Attempt, 1)
	same(f, "errors", len(last.Errors), 1)
	same(f, "buried", f.q.Counters().Buried, 1)
	f.wantStats(0, 0, 4, 1)
}

func requeueMany(t *testing.T, e Engine) {
	f := start(t, e, &queue.Options{Shards: 3, Node: "me"})
	const n = 1300
	f.push(jobs(n)...)
	for range 2 {
		popped := len(f.pop(1000)) + len(f.pop(1000))
		same(f, "popped", popped, n)
		same(f, "requeued", must(f.q.RequeueNode(f.ctx, "me"))(f), n)
		f.wantStats(n, 0, 0, 0)
	}
}

func closeQueue(t *testing.T, e Engine) {
	f := start(t, e, nil)
	f.push(jobs(2)...)
	q := f.other(nil)
	held := f.popSoon(q, 1)[0]
	id := f.list(queue.Filter{States: []queue.State{queue.Ready}})[0].ID
	f.must(q.Close())
	f.must(q.Close()) // twice is no error
	tx := f.begin()
	defer tx.Rollback()
	for name, call := range map[string]func() error{
		"Push":         func() error { _, err := q.Push(f.ctx, job("x")); return err },
		"PushTx":       func() error { _, err := q.PushTx(f.ctx, tx, job("x")); return err },
		"Pop":          func() error { _, err := q.Pop(f.ctx, 1, nil); return err },
		"PopID":        func() error { _, err := q.PopID(f.ctx, id, time.Minute); return err },
		"Ack":          func() error { return q.Ack(f.ctx, held) },
		"AckTx":        func() error { return q.AckTx(f.ctx, tx, held) },
		"Fail":         func() error { return q.Fail(f.ctx, held, nil, nil) },
		"FailTx":       func() error { return q.FailTx(f.ctx, tx, held, nil, nil) },
		"Release":      func() error { return q.Release(f.ctx, held) },
		"Extend":       func() error { return q.Extend(f.ctx, time.Minute, held) },
		"Cancel":       func() error { return q.Cancel(f.ctx, id) },
		"Reschedule":   func() error { return q.Reschedule(f.ctx, id, time.Hour) },
		"RescheduleAt": func() error { return q.RescheduleAt(f.ctx, id, time.Now()) },
		"Reprioritize": func() error { return q.Reprioritize(f.ctx, id, 1) },
		"Pause":        func() error { return q.Pause(f.ctx, "q") },
		"Configure":    func() error { return q.Configure(f.ctx, "q", queue.Settings{}) },
		"RequeueNode":  func() error { _, err := q.RequeueNode(f.ctx, "n"); return err },
		"Redrive":      func() error { _, _, err := q.Redrive(f.ctx, queue.Redrive{}); return err },
		"Purge":        func() error { _, err := q.Purge(f.ctx, queue.Purge{}); return err },
		"Get":          func() error { _, err := q.Get(f.ctx, id); return err },
		"Stats":        func() error { _, err := q.Stats(f.ctx, "q"); return err },
		"Peek":         func() error { _, err := q.Peek(f.ctx, "q", 1); return err },
		"Queues":       func() error { _, err := q.Queues(f.ctx); return err },
		"Migrate":      func() error { return q.Migrate(f.ctx) },
		"Server":       func() error { _, _, err := q.Server(f.ctx); return err },
		"Jobs": func() error {
			for _, err := range q.Jobs(f.ctx, queue.Filter{}) {
				return err
			}
			return nil
		},
	} {
		f.wantErr(name, call(), queue.ErrClosed)
	}
	f.must(tx.Rollback())
	f.wantStats(1, 0, 1, 0)
	same(f, "counted", q.Counters().Popped, 1) // what needs no database still answers
	f.must(f.q.Ack(f.ctx, held))
}
