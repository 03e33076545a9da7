package dialecttest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sqlqueue/queue"
)

func init() {
	addAlone("concurrency: everything at once, one shard", func(t *testing.T, e Engine) { turmoil(t, e, 1) })
	addAlone("concurrency: everything at once, eight shards", func(t *testing.T, e Engine) { turmoil(t, e, 8) })
	add("concurrency: order in a lane", orderInLane)
	add("concurrency: order among several producers", orderAmongProducers)
	add("concurrency: all of a push or none", allOrNone)
	add("concurrency: sixteen push one unique key", uniqueRace)
	add("concurrency: an ack races pushes of its unique key", uniqueAckRace)
	addAlone("concurrency: cancelled pops give back", cancelledPops)
	add("concurrency: close while popping", closeWhilePopping)
}

// errBoom is why jobs fail here.
var errBoom = errors.New("boom")

// turmoil lets several processes push, pop and settle in every way at once.
func turmoil(t *testing.T, e Engine, shards int) {
	f := start(t, e, &queue.Options{Shards: shards})
	total, processes := 6000, 3
	if testing.Short() {
		total = 2000
	}
	opts := &queue.Options{Shards: shards, MaxAttempts: 1000}
	l := newLedger()
	var queues []*queue.Queue
	var pools []*sql.DB
	for range processes {
		db := f.open(f.dsn)
		pools = append(pools, db)
		queues = append(queues, f.queue(db, opts))
	}
	ctx, cancel := context.WithTimeout(f.ctx, 2*time.Minute)
	defer cancel()
	var left atomic.Int64 // to push
	left.Store(int64(total))
	var wg sync.WaitGroup
	work := func(n int, fn func(q *queue.Queue) error) {
		for _, q := range queues {
			for range n {
				wg.Go(func() {
					if err := fn(q); err != nil {
						t.Error(err)
						cancel()
					}
				})
			}
		}
	}
	work(2, func(q *queue.Queue) error {
		for {
			n := 1 + rand.Int64N(100)
			after := left.Add(-n)
			if n = min(n, n+after); n <= 0 {
				return nil
			}
			batch := make([]queue.NewJob, n)
			for i := range batch {
				batch[i] = queue.NewJob{Queue: "q", Kind: "k", Priority: rand.IntN(3) - 1}
			}
			pushed, err := q.PushMany(ctx, batch, nil)
			if err != nil {
				return fmt.Errorf("push: %w", err)
			}
			l.push(pushed)
		}
	})
	work(3, func(q *queue.Queue) error {
		for l.done() < total {
			if err := l.turn(ctx, q); err != nil {
				return err
			}
		}
		return nil
	})
	wg.Wait()
	l.check(t)
	var c queue.Counters
	for i, q := range queues {
		q.Close()
		n := q.Counters()
		c.Pushed, c.Acked = c.Pushed+n.Pushed, c.Acked+n.Acked
		c.Retries.Deadlock += n.Retries.Deadlock
		c.Retries.Serialization += n.Retries.Serialization
		c.Retries.Busy += n.Retries.Busy
		f.idle(pools[i])
	}
	if c.Pushed != int64(total) || c.Acked != int64(total) {
		t.Errorf("counters: %d pushed and %d acked, want %d", c.Pushed, c.Acked, total)
	}
	if s := f.stats(); s.Ready+s.Delayed+s.Running+s.Dead != 0 {
		t.Errorf("jobs are left: %+v", s)
	}
	t.Logf("retries: %+v", c.Retries)
	f.noGoroutines()
}

// turn is one pop and what follows it. One pop in ten is given a context that
// ends about when it returns.
func (l *ledger) turn(ctx context.Context, q *queue.Queue) error {
	lease := 10 * time.Second
	patient := rand.IntN(2) == 0
	if !patient {
		lease = time.Duration(300+rand.IntN(2)*300) * time.Millisecond
	}
	pop, stop := ctx, context.CancelFunc(func() {})
	if patient && rand.IntN(5) == 0 {
		pop, stop = context.WithTimeout(ctx, time.Duration(rand.IntN(4000))*time.Microsecond)
	}
	jobs, err := q.Pop(pop, 1+rand.IntN(100), &queue.PopOptions{Queues: []string{"q"}, Lease: lease})
	stop()
	if err != nil && ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("pop: %w", err)
	}
	held := l.pop(jobs, lease)
	if len(held) == 0 {
		time.Sleep(time.Duration(rand.IntN(10)) * time.Millisecond)
		return nil
	}
	if rand.IntN(4) == 0 {
		time.Sleep(time.Duration(rand.IntN(50)) * time.Millisecond)
	}
	if rand.IntN(10) == 0 {
		const longer = time.Second
		err := l.extend(held, longer, func(jobs []*queue.Job) error { return q.Extend(ctx, longer, jobs...) })
		if err != nil {
			return fmt.Errorf("extend: %w", err)
		}
	}
	// The batch is cut in two, and each part fares in its own way.
	cut := rand.IntN(len(held) + 1)
	for _, part := range [][]*holding{held[:cut], held[cut:]} {
		if len(part) == 0 {
			continue
		}
		var err error
		switch n := rand.IntN(10); {
		case n < 6:
			err = l.settle("ack", part, func(jobs []*queue.Job) error { return q.Ack(ctx, jobs...) })
		case n < 8:
			err = l.settle("fail", part, func(jobs []*queue.Job) error { return failAll(ctx, q, jobs) })
		case n < 9 || patient:
			err = l.settle("release", part, func(jobs []*queue.Job) error { return q.Release(ctx, jobs...) })
		}
		if err != nil {
			return fmt.Errorf("settle: %w", err)
		}
	}
	return nil
}

func failAll(ctx context.Context, q *queue.Queue, jobs []*queue.Job) error {
	failures := make([]queue.Failure, len(jobs))
	for i, j := range jobs {
		failures[i] = queue.Failure{Job: j, Err: errBoom, FailOptions: queue.FailOptions{RetryIn: time.Duration(rand.IntN(30)-5) * time.Millisecond}}
		if failures[i].RetryIn == 0 {
			failures[i].RetryIn = -1
		}
	}
	return q.FailMany(ctx, failures)
}

// idle fails unless the pool's connections all come back.
func (f *fixture) idle(db *sql.DB) {
	f.Helper()
	f.within(5*time.Second, "every connection is back in the pool", func() bool { return db.Stats().InUse == 0 })
}

// noGoroutines fails if a goroutine is still in the library or its database
// calls, which all must have ended by now.
func (f *fixture) noGoroutines() {
	f.Helper()
	var stacks string
	leaked := func() bool {
		b := make([]byte, 4<<20)
		stacks = string(b[:runtime.Stack(b, true)])
		for g := range strings.SplitSeq(stacks, "\n\n") {
			if strings.Contains(g, "dialecttest.(*fixture).noGoroutines") {
				continue
			}
			if strings.Contains(g, "sqlqueue/queue.(*") || strings.Contains(g, "database/sql.(*Tx)") || strings.Contains(g, "database/sql.(*Rows)") {
				stacks = g
				return true
			}
		}
		return false
	}
	for deadline := time.Now().Add(5 * time.Second); leaked(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			f.Fatalf("a goroutine has leaked:\n%s", stacks)
		}
	}
}

// orderInLane: with one shard and one consumer, jobs come in the order in which
// they were pushed, one after the other or in batches, while the consumer runs.
func orderInLane(t *testing.T, e Engine) {
	f := start(t, e, nil)
	const total = 3000
	producer := f.other(nil)
	var wg sync.WaitGroup
	wg.Go(func() {
		for n := 0; n < total; {
			batch := make([]queue.NewJob, min(1+rand.IntN(60), total-n))
			for i := range batch {
				batch[i] = job(fmt.Sprint(n + i))
			}
			if _, err := producer.PushMany(f.ctx, batch, nil); err != nil {
				t.Error(err)
				return
			}
			n += len(batch)
		}
	})
	defer wg.Wait()
	for next := 0; next < total; {
		jobs := f.pop(1 + rand.IntN(50))
		for _, j := range jobs {
			if string(j.Payload) != fmt.Sprint(next) {
				t.Fatalf("popped %s, want %d", j.Payload, next)
			}
			next++
		}
		f.must(f.q.Ack(f.ctx, jobs...))
		if f.ctx.Err() != nil {
			t.Fatalf("%d of %d came", next, total)
		}
	}
	f.popNone()
}

// orderAmongProducers: ids are given out before the commit. A push that commits
// after others' later ids were popped comes late, each of its parts in order.
func orderAmongProducers(t *testing.T, e Engine) {
	f := start(t, e, nil)
	const pushes, size = 8, 5000
	big, small := f.other(nil), f.other(nil)
	f.push(job("the lane exists"))
	f.must(f.q.Ack(f.ctx, f.popOne()))
	var wg sync.WaitGroup
	var stop atomic.Bool
	wg.Go(func() {
		defer stop.Store(true)
		for n := range pushes {
			batch := make([]queue.NewJob, size)
			for i := range batch {
				batch[i] = job(fmt.Sprintf("%d %d", n, i))
			}
			if _, err := big.PushMany(f.ctx, batch, nil); err != nil {
				t.Error(err)
				return
			}
		}
	})
	wg.Go(func() {
		for !stop.Load() {
			if _, err := small.Push(f.ctx, job("other")); err != nil {
				t.Error(err)
				return
			}
		}
	})
	defer wg.Wait()
	next := map[int]int{}
	wrong, others, between := 0, 0, 0
	for left := pushes * size; left > 0; {
		jobs := f.pop(1000)
		for _, j := range jobs {
			var n, i int
			if k, _ := fmt.Sscanf(string(j.Payload), "%d %d", &n, &i); k != 2 {
				others++
				continue
			}
			left--
			if next[n] > i {
				wrong++
			}
			next[n] = i
		}
		if len(jobs) < 1000 {
			between++
		}
		f.must(f.q.Ack(f.ctx, jobs...))
		if f.ctx.Err() != nil {
			t.Fatalf("%d jobs did not come", left)
		}
	}
	t.Logf("%d of %d jobs came after a later one of their push", wrong, pushes*size)
	if wrong > pushes*size/100 {
		t.Errorf("%d of %d jobs came after a later one of their push", wrong, pushes*size)
	}
	if others == 0 || between == 0 {
		t.Errorf("%d jobs of another producer, %d short pops: proves nothing", others, between)
	}
}

// allOrNone looks at a lane, in single statements, while batches are pushed
// there, some in more than one statement, and some of which are rolled back.
func allOrNone(t *testing.T, e Engine) {
	f := start(t, e, nil)
	producer := f.other(nil)
	const size, rounds = 6000, 6
	f.push(job("the lane exists"))
	f.must(f.q.Ack(f.ctx, f.popOne()))
	var wg sync.WaitGroup
	var stored atomic.Int64
	var stop atomic.Bool
	wg.Go(func() {
		defer stop.Store(true)
		for i := range rounds {
			opts := &queue.PushOptions{}
			if i%2 == 0 {
				opts.PushID = fmt.Sprint(i)
			}
			ctx, cancel := context.WithCancel(f.ctx)
			if i%3 == 2 {
				cancel()
				ctx, cancel = context.WithTimeout(f.ctx, 20*time.Millisecond)
			}
			_, err := producer.PushMany(ctx, jobs(size), opts)
			cancel()
			if err == nil {
				stored.Add(size)
			}
		}
	})
	looks, partial := 0, int64(0)
	for !stop.Load() {
		s, err := f.q.Stats(f.ctx, "q")
		f.must(err)
		if !s.Estimated && s.Ready%size != 0 {
			partial = s.Ready
		}
		looks++
		// Make room: beyond StatsExact numbers are estimates.
		for left := size; s.Ready >= size && left > 0; {
			batch := f.pop(min(1000, left))
			f.must(f.q.Ack(f.ctx, batch...))
			left -= len(batch)
		}
	}
	wg.Wait()
	if partial != 0 {
		t.Errorf("%d jobs were visible while batches of %d were pushed", partial, size)
	}
	left := f.drain() // exact, as the numbers of Stats need not be
	if left%size != 0 {
		t.Errorf("%d jobs are left, not a multiple of %d", left, size)
	}
	if looks < 5 || stored.Load() < 3*size {
		t.Errorf("%d looks at %d jobs prove nothing", looks, stored.Load())
	}
}

func uniqueRace(t *testing.T, e Engine) {
	f := start(t, e, nil)
	for round := range 20 {
		var stored atomic.Int64
		ids := make([]int64, 16)
		var wg sync.WaitGroup
		begin := make(chan struct{})
		for i := range ids {
			q := f.q
			wg.Go(func() {
				<-begin
				// Priorities and shards are lanes: the key holds across them.
				p, err := q.Push(f.ctx, queue.NewJob{Queue: "q", Kind: "k", UniqueKey: fmt.Sprint("key", round), Priority: i % 3})
				if err != nil {
					t.Error(err)
				}
				if !p.Duplicate {
					stored.Add(1)
				}
				ids[i] = p.ID
			})
		}
		close(begin)
		wg.Wait()
		if n := stored.Load(); n != 1 {
			t.Fatalf("%d of 16 were stored, want 1", n)
		}
		for _, id := range ids {
			if id != ids[0] || id == 0 {
				t.Fatalf("the pushes were answered with different ids: %v", ids)
			}
		}
		j := f.popOne()
		if j.ID != ids[0] {
			t.Fatalf("popped %d, want %d", j.ID, ids[0])
		}
		f.must(f.q.Ack(f.ctx, j))
		f.popNone()
	}
}

// uniqueAckRace: a push either finds the job of its key alive or stores another.
func uniqueAckRace(t *testing.T, e Engine) {
	f := start(t, e, nil)
	const pushes = 200
	var stored, live atomic.Int64
	var stop atomic.Bool
	var pushers, consumers sync.WaitGroup
	for range 4 {
		q := f.other(nil)
		pushers.Go(func() {
			for i := 0; i < pushes || stored.Load() < 5; i++ {
				p, err := q.Push(f.ctx, queue.NewJob{Queue: "q", Kind: "k", UniqueKey: "key", Priority: rand.IntN(2)})
				switch {
				case err != nil:
					t.Error(err)
					return
				case !p.Duplicate:
					stored.Add(1)
				}
			}
		})
	}
	acked := 0
	consumers.Go(func() {
		for last := false; ; {
			jobs, err := f.q.Pop(f.ctx, 10, &queue.PopOptions{Queues: []string{"q"}})
			if err != nil {
				t.Error(err)
				return
			}
			if n := live.Add(int64(len(jobs))); n > 1 {
				t.Errorf("%d jobs of one unique key are live", n)
			}
			if len(jobs) == 0 && last {
				return
			}
			last = stop.Load()
			live.Add(-int64(len(jobs)))
			if err := f.q.Ack(f.ctx, jobs...); err != nil {
				t.Error(err)
				return
			}
			acked += len(jobs)
		}
	})
	pushers.Wait()
	time.Sleep(time.Second) // a commit that came behind the cursor is found by then
	stop.Store(true)
	consumers.Wait()
	if stored.Load() != int64(acked) || acked < 2 {
		t.Errorf("%d stored, %d acked", stored.Load(), acked)
	}
	if p := f.push(queue.NewJob{Queue: "q", Kind: "k", UniqueKey: "key"})[0]; p.Duplicate {
		t.Error("the key is not free at the end")
	}
}

// cancelledPops: what a pop claimed whose context ended comes back at once, with
// no attempt counted, though its lease is long.
func cancelledPops(t *testing.T, e Engine) {
	f := start(t, e, nil)
	const total = 500
	f.push(jobs(total)...)
	db := f.open(f.dsn)
	q := f.queue(db, nil)
	var wg sync.WaitGroup
	var ended, got atomic.Int64
	for range 16 {
		wg.Go(func() {
			for range 25 {
				patience := time.Duration(rand.IntN(5000)) * time.Microsecond
				if rand.IntN(4) == 0 {
					patience = time.Minute
				}
				ctx, cancel := context.WithTimeout(f.ctx, patience)
				jobs, err := q.Pop(ctx, 20, &queue.PopOptions{Queues: []string{"q"}, Lease: time.Hour})
				cancel()
				switch {
				case err == nil:
					got.Add(int64(len(jobs)))
					if err := q.Release(f.ctx, jobs...); err != nil {
						t.Error(err)
					}
				case errors.Is(err, context.DeadlineExceeded):
					ended.Add(1)
				default:
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if ended.Load() == 0 || got.Load() == 0 {
		t.Errorf("%d pops ended early and %d jobs were popped: proves nothing", ended.Load(), got.Load())
	}
	q.Close() // waits for what is under way
	f.idle(db)
	f.noGoroutines()
	if s := f.stats(); s.Ready != total {
		t.Errorf("after the cancelled pops: %+v", s)
	}
	for left := total; left > 0; {
		jobs := f.pop(100)
		for _, j := range jobs {
			if j.Attempt != 1 {
				t.Fatalf("attempt %d of a job that nobody failed", j.Attempt)
			}
		}
		if left -= len(jobs); len(jobs) == 0 {
			t.Fatalf("%d jobs did not come back", left)
		}
	}
}

// closeWhilePopping: whatever a pop returned is its caller's, and nothing else
// stays leased.
func closeWhilePopping(t *testing.T, e Engine) {
	f := start(t, e, nil)
	const total = 2000
	f.push(jobs(total)...)
	held := int64(0)
	for range 10 {
		db := f.open(f.dsn)
		q := f.queue(db, nil)
		var wg sync.WaitGroup
		var got atomic.Int64
		for range 8 {
			wg.Go(func() {
				for {
					jobs, err := q.Pop(f.ctx, 5, &queue.PopOptions{Queues: []string{"q"}, Lease: time.Hour})
					got.Add(int64(len(jobs)))
					if errors.Is(err, queue.ErrClosed) {
						return
					}
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond)
		f.must(q.Close())
		wg.Wait()
		held += got.Load()
		f.idle(db)
	}
	if s := f.stats(); s.Running != held || s.Ready != total-held {
		t.Errorf("%d jobs were handed out: %+v", held, s)
	}
}
