package dialecttest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sqlqueue/queue"
)

func init() {
	add("node: what it holds is requeued while it lives", requeueLiving)
	add("node: requeued again and again while it works", requeueWorking)
	add("load: a high priority goes first", priorityUnderLoad)
	addAlone("load: a pause is obeyed within a second", pauseUnderLoad)
}

// requeueLiving: a supervisor believes a node dead that is not. Its leases are
// over, and only those; it goes on with new ones.
func requeueLiving(t *testing.T, e Engine) {
	f := start(t, e, nil)
	const n = 1300 // more than one transaction's worth
	a, c := f.other(&queue.Options{Node: "a"}), f.other(&queue.Options{Node: "c"})
	f.bulk(n/2, job("ready"))
	f.bulk(n/2, queue.NewJob{Queue: "q", Kind: "k", Payload: []byte("due"), Delay: time.Minute})
	f.age(e.AgeDue, time.Hour)
	take := func(q *queue.Queue, n int) (out []*queue.Job) {
		f.within(5*time.Second, "jobs are popped", func() bool {
			jobs, err := q.Pop(f.ctx, min(n-len(out), 500), &queue.PopOptions{Queues: []string{"q"}, Lease: time.Hour})
			f.must(err)
			out = append(out, jobs...)
			return len(out) == n
		})
		return out
	}
	f.bulk(20, queue.NewJob{Queue: "q", Kind: "k", Priority: 1})
	others := take(c, 20)
	held := take(a, n)
	requeued, err := f.q.RequeueNode(f.ctx, "a")
	f.must(err)
	if requeued != n {
		t.Errorf("%d were requeued, want %d", requeued, n)
	}
	for i, err := range batchErrors(a.Ack(f.ctx, held...), n) {
		if !errors.Is(err, queue.ErrLeaseLost) {
			t.Fatalf("the late ack of job %d: %v", i, err)
		}
	}
	f.must(c.Ack(f.ctx, others...))
	f.wantStats(n, 0, 0, 0)
	again := take(a, n/2) // itself, too
	again = append(again, take(f.q, n/2)...)
	seen := map[int64]bool{}
	for _, j := range again {
		if j.Attempt != 2 || seen[j.ID] {
			t.Fatalf("job %d in attempt %d, popped before: %v", j.ID, j.Attempt, seen[j.ID])
		}
		seen[j.ID] = true
	}
	f.must(a.Ack(f.ctx, again[:n/2]...))
	f.must(f.q.Ack(f.ctx, again[n/2:]...))
	f.wantStats(0, 0, 0, 0)
	if n, err := f.q.RequeueNode(f.ctx, "a"); n != 0 || err != nil {
		t.Errorf("of a node that holds nothing: %d, %v", n, err)
	}
	if n, err := f.q.RequeueNode(f.ctx, "nobody"); n != 0 || !errors.Is(err, queue.ErrNotFound) {
		t.Errorf("of a node never seen: %d, %v", n, err)
	}
}

// requeueWorking: each job is acked once, whoever gets it how often.
func requeueWorking(t *testing.T, e Engine) {
	f := start(t, e, nil)
	const part = 500
	like := queue.NewJob{Queue: "q", Kind: "k", MaxAttempts: 1000}
	a := f.other(&queue.Options{Node: "a", MaxAttempts: 1000})
	f.bulk(3*part, like)
	var mu sync.Mutex
	acked := map[int64]int{}
	total, lost := 3*part, 0
	var wg sync.WaitGroup
	done := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(acked) == total || f.ctx.Err() != nil
	}
	for _, q := range []*queue.Queue{a, a, a, f.other(nil)} {
		wg.Go(func() {
			for !done() {
				jobs, err := q.Pop(f.ctx, 20, &queue.PopOptions{Queues: []string{"q"}, Lease: time.Hour})
				if err != nil {
					t.Error(err)
					return
				}
				if len(jobs) == 0 {
					time.Sleep(5 * time.Millisecond)
					continue
				}
				time.Sleep(2 * time.Millisecond)
				errs := batchErrors(q.Ack(f.ctx, jobs...), len(jobs))
				mu.Lock()
				for i, err := range errs {
					switch {
					case err == nil:
						acked[jobs[i].ID]++
					case errors.Is(err, queue.ErrLeaseLost):
						lost++
					default:
						t.Error(err)
					}
				}
				mu.Unlock()
			}
		})
	}
	requeued := 0
	for !done() {
		n, err := f.q.RequeueNode(f.ctx, "a")
		if err != nil && !errors.Is(err, queue.ErrNotFound) {
			t.Error(err)
			break
		}
		requeued += n
		// On a slow machine the jobs may be done before any was requeued.
		mu.Lock()
		more := requeued < part && total-len(acked) < part
		if more {
			total += part
		}
		mu.Unlock()
		if more {
			f.bulk(part, like)
		}
		time.Sleep(time.Millisecond)
	}
	wg.Wait()
	for id, n := range acked {
		if n != 1 {
			t.Errorf("job %d was acked %d times", id, n)
		}
	}
	f.wantStats(0, 0, 0, 0)
	if len(acked) != total || requeued == 0 || requeued != lost {
		t.Errorf("%d acked, %d requeued, %d leases lost", len(acked), requeued, lost)
	}
	t.Logf("%d requeued", requeued)
}

// priorityUnderLoad: the next pop after the push returns it, whatever else there
// is, ready or due.
func priorityUnderLoad(t *testing.T, e Engine) {
	f := start(t, e, nil)
	high := queue.NewJob{Queue: "q", Kind: "high", Priority: 3}
	f.push(high) // the lane exists
	f.must(f.q.Ack(f.ctx, f.popOne()))
	f.bulk(500, queue.NewJob{Queue: "q", Kind: "due", Delay: time.Minute})
	f.age(e.AgeDue, time.Hour)
	b := f.busyLane(5)
	b.q.Close()
	b.q = f.q // which knows the lane
	for i := range 40 {
		if i%2 == 0 {
			high.Delay = 0
		} else {
			high.Delay = time.Millisecond // by way of the due side
		}
		id := f.push(high)[0].ID
		time.Sleep(3 * time.Millisecond)
		found := false
		rest := b.pop()
		for _, j := range rest {
			found = found || j.ID == id
		}
		f.must(f.q.Ack(f.ctx, rest...))
		if !found {
			t.Fatalf("round %d: the next pop did not return the job of the high priority", i)
		}
	}
	b.wasBusy()
}

// pauseUnderLoad: a second after the pause no process gets a job, while pushes,
// acks and other queues go on.
func pauseUnderLoad(t *testing.T, e Engine) {
	f := start(t, e, nil)
	f.bulk(20_000, job(""))
	var stop atomic.Bool
	var mu sync.Mutex
	var lastClaim time.Time // of a job of "q", by the database's clock
	count := map[string]int{}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop.Store(true)
	const lease = time.Minute
	for range 3 {
		q := f.other(nil)
		for range 2 {
			wg.Go(func() {
				for !stop.Load() {
					jobs, err := q.Pop(f.ctx, 10, &queue.PopOptions{Lease: lease})
					if err != nil {
						t.Error(err)
						return
					}
					if err := q.Ack(f.ctx, jobs...); err != nil {
						t.Error(err)
					}
					mu.Lock()
					for _, j := range jobs {
						count[j.Queue]++
						if at := claimedAt(j, lease); j.Queue == "q" && at.After(lastClaim) {
							lastClaim = at
						}
					}
					mu.Unlock()
					time.Sleep(2 * time.Millisecond)
				}
			})
		}
	}
	wg.Go(func() {
		producer := f.other(nil)
		for i := 0; !stop.Load(); i++ {
			for _, name := range []string{"q", "other"} {
				if _, err := producer.Push(f.ctx, queue.NewJob{Queue: name, Kind: "k", Payload: []byte(fmt.Sprint(i))}); err != nil && !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			}
			time.Sleep(2 * time.Millisecond)
		}
	})
	popped := func(name string) int {
		mu.Lock()
		defer mu.Unlock()
		return count[name]
	}
	for round := range 2 {
		before := popped("q")
		f.within(30*time.Second, "the queue is popped", func() bool { return popped("q") > before+100 })
		paused := f.now()
		f.must(f.q.Pause(f.ctx, "q"))
		time.Sleep(1200 * time.Millisecond)
		mu.Lock()
		late := lastClaim.Sub(paused)
		mu.Unlock()
		if late > time.Second {
			t.Errorf("round %d: a job was claimed %v after the pause", round, late)
		}
		in, other := popped("q"), popped("other")
		time.Sleep(500 * time.Millisecond)
		if n := popped("q") - in; n != 0 {
			t.Errorf("round %d: %d jobs were popped while paused", round, n)
		}
		if popped("other") == other {
			t.Errorf("round %d: the other queue stood still", round)
		}
		if s := f.stats(); !s.Paused || s.Ready == 0 {
			t.Errorf("round %d: %+v", round, s)
		}
		f.must(f.q.Resume(f.ctx, "q"))
		f.within(time.Second, "the resumed queue is popped", func() bool { return popped("q") > in })
		t.Logf("the last claim came %v after the pause", late)
	}
	stop.Store(true)
	wg.Wait()
}
