package dialecttest

import (
	"fmt"
	"testing"
	"time"

	"github.com/sqlqueue/queue"
	"github.com/sqlqueue/queue/dialect"
)

func init() {
	add("comeback: behind the cursor of a busy lane", comeback)
	add("comeback: neither side starves the other", sidesTakeTurns)
	add("comeback: two queues popped in turn starve no side and no shard", queuesInTurn)
	add("comeback: many come back at once", manyComeBack)
	add("comeback: due jobs of a paused queue hide no others", pausedDue)
}

// comeback: what comes back into a lane that never runs empty is popped within
// a few pops, whichever way it comes.
func comeback(t *testing.T, e Engine) {
	f := start(t, e, nil)
	const each = 5
	f.bulk(each*5, queue.NewJob{Queue: "q", Kind: "back"})
	held := f.take(each * 5)
	// Those that come by another way than a lease.
	var low, later []queue.Pushed
	for range each {
		low = append(low, f.push(queue.NewJob{Queue: "q", Kind: "back", Priority: -3})...)
		later = append(later, f.push(queue.NewJob{Queue: "q", Kind: "back", Delay: time.Hour})...)
	}
	for _, j := range held[:each] {
		f.must(f.q.Fail(f.ctx, j, errBoom, &queue.FailOptions{Dead: true}))
	}
	b := f.busyLane(10)
	for _, way := range []struct {
		name string
		back func(i int) (id int64)
	}{
		{"redrive", func(i int) int64 {
			n, skipped, err := f.q.Redrive(f.ctx, queue.Redrive{ID: held[i].ID})
			f.must(err)
			if n != 1 || skipped != 0 {
				t.Fatalf("redriven %d, skipped %d", n, skipped)
			}
			return held[i].ID
		}},
		{"release", func(i int) int64 {
			f.must(f.q.Release(f.ctx, held[each+i]))
			return held[each+i].ID
		}},
		{"fail", func(i int) int64 {
			f.must(f.q.Fail(f.ctx, held[2*each+i], errBoom, &queue.FailOptions{RetryIn: -1}))
			return held[2*each+i].ID
		}},
		{"fail in a transaction", func(i int) int64 {
			tx := f.begin()
			f.must(f.q.FailTx(f.ctx, tx, held[3*each+i], errBoom, &queue.FailOptions{RetryIn: -1}))
			f.must(tx.Commit())
			return held[3*each+i].ID
		}},
		{"reprioritize", func(i int) int64 {
			f.must(f.q.Reprioritize(f.ctx, low[i].ID, 0))
			return low[i].ID
		}},
		{"reschedule", func(i int) int64 {
			f.must(f.q.Reschedule(f.ctx, later[i].ID, 0))
			return later[i].ID
		}},
	} {
		most, slowest := 0, time.Duration(0)
		for i := range each {
			id := way.back(i)
			came, pops := time.Now(), 0
			for found := false; !found; pops++ {
				for _, j := range b.pop() {
					if j.ID != id {
						t.Fatalf("%s: popped job %d of kind %s, which nobody gave back", way.name, j.ID, j.Kind)
					}
					found = true
					f.must(b.q.Ack(f.ctx, j))
				}
				if pops > 1000 {
					t.Fatalf("%s: not found in %d pops", way.name, pops)
				}
			}
			most, slowest = max(most, pops), max(slowest, time.Since(came))
		}
		t.Logf("%s: found after %d pops and %v at most", way.name, most, slowest)
		if most > 20 {
			t.Errorf("%s: found after %d pops, want a few", way.name, most)
		}
	}
	b.wasBusy()
}

// sidesTakeTurns: with plenty of ready and of due jobs, each side gets its part.
func sidesTakeTurns(t *testing.T, e Engine) {
	for _, shards := range []int{1, 4} {
		f := start(t, e, &queue.Options{Shards: shards})
		f.bulk(1000, queue.NewJob{Queue: "q", Kind: "due", Delay: time.Minute})
		f.bulk(1000, queue.NewJob{Queue: "q", Kind: "ready"})
		f.age(e.AgeDue, time.Hour)
		got := map[string]int{}
		for range 80 {
			for _, j := range f.pop(10) {
				got[j.Kind]++
			}
		}
		if got["due"]+got["ready"] != 800 || got["due"] < 160 || got["ready"] < 160 {
			t.Errorf("%d shards: of 800 jobs popped: %v", shards, got)
		}
	}
}

// queuesInTurn: a process that pops one queue and then another, and so on, must
// not come to the same side, or the same shard, of each every time.
func queuesInTurn(t *testing.T, e Engine) {
	for _, queues := range []int{2, 4} {
		f := start(t, e, &queue.Options{Shards: 2})
		got := map[string]int{}
		for i := range queues {
			f.bulk(500, queue.NewJob{Queue: fmt.Sprint("q", i), Kind: "due", Delay: time.Minute})
			f.bulk(500, queue.NewJob{Queue: fmt.Sprint("q", i), Kind: "ready"})
		}
		f.age(e.AgeDue, time.Hour)
		const rounds = 60
		for range rounds {
			for i := range queues {
				jobs := f.popFrom(5, fmt.Sprint("q", i))
				if len(jobs) != 5 {
					t.Fatalf("popped %d jobs", len(jobs))
				}
				for _, j := range jobs {
					got[fmt.Sprintf("%s %s, shard %d", j.Queue, j.Kind, dialect.LaneOf(j.ID)%2)]++
				}
			}
		}
		if len(got) != 4*queues {
			t.Errorf("popped from %d sides of %d: %v", len(got), 4*queues, got)
		}
		for what, n := range got {
			if n < rounds*5/4/5 {
				t.Errorf("%d of %d jobs came from %s", n, rounds*5, what)
			}
		}
	}
}

// manyComeBack: a thousand jobs that fail together while their lane is busy.
func manyComeBack(t *testing.T, e Engine) {
	f := start(t, e, nil)
	const n = 1000
	f.bulk(n, queue.NewJob{Queue: "q", Kind: "back"})
	held := f.take(n)
	b := f.busyLane(50)
	failures := make([]queue.Failure, n)
	for i, j := range held {
		failures[i] = queue.Failure{Job: j, Err: errBoom, FailOptions: queue.FailOptions{RetryIn: -1}}
	}
	f.must(f.q.FailMany(f.ctx, failures))
	pops, got := b.pops, 0
	for got < n {
		jobs := b.pop()
		got += len(jobs)
		f.must(b.q.Ack(f.ctx, jobs...))
		if b.pops-pops > 1000 {
			t.Fatalf("%d of %d came in %d pops", got, n, b.pops-pops)
		}
	}
	b.wasBusy()
	if pops = b.pops - pops; pops > 4*n/50 {
		t.Errorf("it took %d pops of 50, want about %d", pops, 2*n/50)
	}
}

// pausedDue: with many queues, those that hold due jobs are looked for among the
// first due jobs of all. A paused queue, or one that others pop, must not fill
// that place for ever.
func pausedDue(t *testing.T, e Engine) {
	f := start(t, e, nil)
	const queues = 200
	batch := make([]queue.NewJob, 0, 2*queues)
	for i := range queues {
		batch = append(batch, queue.NewJob{Queue: fmt.Sprint("q", i), Kind: "k"})
	}
	f.push(batch...)
	for {
		jobs := f.popFrom(1000)
		if f.must(f.q.Ack(f.ctx, jobs...)); len(jobs) == 0 {
			break
		}
	}
	f.bulk(3000, queue.NewJob{Queue: "paused", Kind: "k", Delay: time.Minute})
	f.must(f.q.Pause(f.ctx, "paused"))
	f.age(e.AgeDue, time.Hour)
	p := f.push(queue.NewJob{Queue: "q7", Kind: "k", Delay: time.Millisecond})[0]
	time.Sleep(5 * time.Millisecond)
	f.within(2*time.Second, "the due job of a queue that is not paused is popped", func() bool {
		jobs := f.popFrom(10)
		return len(jobs) == 1 && jobs[0].ID == p.ID
	})
}
