package dialecttest

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/sqlqueue/queue"
)

func init() {
	addAlone("expired: found within 1 s among 100,000 leased", expiredAmongLeased)
	addAlone("expired: found within 5 s among dead rows", expiredAmongDead)
	addAlone("expired: ten thousand at once", massExpiry)
	add("expired: the last attempt", lastAttemptCrashed)
	add("expired: the late holder", lateHolder)
	add("expired: a lane that others pop too", expiredInSharedLane)
}

// expire lets the leases of a few jobs of kind "lost" run out, one after the
// other, while a lane is busy, and wants each to be popped again within a limit
// of that, by the database's clock. On a machine that others use, too, it has
// three attempts.
func (f *fixture) expire(limit time.Duration, lose func() []*queue.Job) {
	f.Helper()
	for attempt := 1; ; attempt++ {
		slowest := f.expireOnce(lose(), limit)
		if slowest <= limit {
			return
		}
		if attempt == 3 {
			f.Fatalf("an expired lease was found after %v, want %v", slowest, limit)
		}
	}
}

func (f *fixture) expireOnce(lost []*queue.Job, limit time.Duration) time.Duration {
	f.Helper()
	until := map[int64]time.Time{}
	last := time.Time{}
	for _, j := range lost {
		until[j.ID] = j.LeasedUntil
		if j.LeasedUntil.After(last) {
			last = j.LeasedUntil
		}
	}
	b := f.busyLane(50)
	defer f.drain()
	slowest := time.Duration(0)
	for len(until) > 0 {
		for _, j := range b.pop() {
			end, ok := until[j.ID]
			if !ok {
				f.Fatalf("popped job %d of kind %q, which nobody lost", j.ID, j.Kind)
			}
			delete(until, j.ID)
			late := claimedAt(j, busyLease).Sub(end)
			if late < 0 {
				f.Errorf("job %d was popped %v before its lease ended", j.ID, -late)
			}
			slowest = max(slowest, late)
			f.must(b.q.Ack(f.ctx, j))
		}
		if late := time.Since(last); late > limit+5*time.Second {
			f.Fatalf("%d expired jobs were not found for %v", len(until), late)
		}
	}
	b.wasBusy()
	f.Logf("an expired lease was found after %v at most; %d pops", slowest, b.pops)
	return slowest
}

// lose pops n jobs, each with a lease of its own between 1 and 3 s, for nobody.
func (f *fixture) lose(n int) []*queue.Job {
	f.Helper()
	var out []*queue.Job
	for i := range n {
		lease := time.Second + time.Duration(i)*2*time.Second/time.Duration(n)
		jobs, err := f.q.Pop(f.ctx, 1, &queue.PopOptions{Queues: []string{"q"}, Lease: lease})
		f.must(err)
		if len(jobs) != 1 || jobs[0].Kind != "lost" {
			f.Fatalf("popped %v, want one to lose", jobs)
		}
		out = append(out, jobs[0])
	}
	return out
}

// expiredAmongLeased: before and behind a hundred thousand that others hold.
func expiredAmongLeased(t *testing.T, e Engine) {
	f := start(t, e, nil)
	held := 100_000
	if testing.Short() {
		held = 20_000
	}
	f.bulk(30, queue.NewJob{Queue: "q", Kind: "lost"})
	first := f.take(30)
	f.bulk(held, queue.NewJob{Queue: "q", Kind: "held"})
	f.take(held)
	f.expire(time.Second, func() []*queue.Job { return f.loseBoth(&first) })
}

// loseBoth loses ten jobs at the head of the lane, which were taken before, and
// ten at its end.
func (f *fixture) loseBoth(first *[]*queue.Job) []*queue.Job {
	f.Helper()
	f.bulk(10, queue.NewJob{Queue: "q", Kind: "lost"})
	lost := f.lose(10)
	head := (*first)[:10]
	*first = (*first)[10:]
	f.must(f.q.Extend(f.ctx, 1500*time.Millisecond, head...))
	for _, j := range head {
		j.LeasedUntil = f.info(j.ID).LeasedUntil
	}
	return append(lost, head...)
}

// expiredAmongDead: the table is full of rows that are gone but that a snapshot
// keeps from being cleared away.
func expiredAmongDead(t *testing.T, e Engine) {
	if e.HoldSnapshot == nil {
		t.Skip("on this engine a snapshot keeps no dead rows in the table")
	}
	f := start(t, e, nil)
	dead := scale(20_000, 100_000, 1_000_000)
	release := e.HoldSnapshot(f.ctx, t, f.open(f.dsn))
	defer release()
	f.bulk(30, queue.NewJob{Queue: "q", Kind: "lost"})
	first := f.take(30) // they lie before all that is dead
	for n := 0; n < dead; n += 50_000 {
		f.bulk(min(50_000, dead-n), queue.NewJob{Queue: "q", Kind: "dead"})
		f.drain()
	}
	f.expire(5*time.Second, func() []*queue.Job { return f.loseBoth(&first) })
}

// massExpiry: a consumer with ten thousand leases dies. Two others, in a lane
// that is busy all the time, get through them as fast as they pop, and not one
// batch in each recheck.
func massExpiry(t *testing.T, e Engine) {
	f := start(t, e, nil)
	const held = 10_000
	f.bulk(held, queue.NewJob{Queue: "q", Kind: "lost"})
	f.take(held)
	b, c := f.busyLane(100), f.busyLane(100)
	for range 20 {
		if n := len(b.pop()) + len(c.pop()); n > 0 {
			t.Fatalf("%d jobs came before their lease ended", n)
		}
	}
	f.age(e.AgeLeases, 2*time.Hour)
	started, pops := time.Now(), b.pops+c.pops
	again := map[int64]bool{}
	for len(again) < held {
		for _, l := range []*busyLane{b, c} {
			jobs := l.pop()
			for _, j := range jobs {
				if again[j.ID] || j.Attempt != 2 {
					t.Fatalf("job %d came again in attempt %d; before: %v", j.ID, j.Attempt, again[j.ID])
				}
				again[j.ID] = true
			}
			f.must(l.q.Ack(f.ctx, jobs...))
		}
		if time.Since(started) > 60*time.Second {
			t.Fatalf("%d of %d were found in a minute", len(again), held)
		}
	}
	b.wasBusy()
	c.wasBusy()
	pops = b.pops + c.pops - pops
	t.Logf("%d expired leases were taken in %v with %d pops of 100", held, time.Since(started), pops)
	if most := 8 * held / 100; pops > most {
		t.Errorf("it took %d pops, want at most %d", pops, most)
	}
}

// lastAttemptCrashed: a job whose last holder never came back is dead, with the
// reason, and not popped for ever.
func lastAttemptCrashed(t *testing.T, e Engine) {
	f := start(t, e, nil)
	f.push(queue.NewJob{Queue: "q", Kind: "k", MaxAttempts: 2, UniqueKey: "key"}, job("another"))
	j := f.popOne()
	f.must(f.q.Fail(f.ctx, j, errBoom, &queue.FailOptions{RetryIn: -1}))
	j = f.popOne()
	if j.Attempt == 1 { // the other one came first
		f.must(f.q.Ack(f.ctx, j))
		j = f.popOne()
	} else {
		f.must(f.q.Ack(f.ctx, f.popOne()))
	}
	f.age(e.AgeLeases, time.Hour)
	f.push(job("behind"))
	f.within(5*time.Second, "the job is dead", func() bool {
		for _, other := range f.pop(1) {
			if other.ID == j.ID {
				t.Fatalf("popped in attempt %d of 2", other.Attempt)
			}
		}
		info, err := f.q.Get(f.ctx, j.ID)
		f.must(err)
		return info.State == queue.Dead
	})
	info, err := f.q.Get(f.ctx, j.ID)
	f.must(err)
	if info.Attempt != 2 && info.Attempt != 3 || len(info.Errors) != 2 || info.Errors[0].Error != "boom" || info.Errors[1].Attempt != 2 ||
		!strings.Contains(info.Errors[1].Error, "the lease of the last attempt (2 of 2) ran out") {
		t.Errorf("the dead job: %+v", info)
	}
	if n := f.q.Counters().Buried; n != 1 {
		t.Errorf("%d jobs were buried, want 1", n)
	}
	f.lost(j)
	if after, err := f.q.Get(f.ctx, j.ID); err != nil || after.State != queue.Dead || len(after.Errors) != 2 {
		t.Errorf("the late holder changed the dead job: %+v, %v", after, err)
	}
	if p := f.push(queue.NewJob{Queue: "q", Kind: "k", UniqueKey: "key"})[0]; p.Duplicate {
		t.Error("the dead job keeps its unique key")
	}
}

// lost makes sure that every call on a lease is answered with ErrLeaseLost.
func (f *fixture) lost(j *queue.Job) {
	f.Helper()
	before := f.q.Counters().LeasesLost
	for what, err := range map[string]error{
		"ack":     f.q.Ack(f.ctx, j),
		"fail":    f.q.Fail(f.ctx, j, errors.New("late"), nil),
		"bury":    f.q.Fail(f.ctx, j, errors.New("late"), &queue.FailOptions{Dead: true}),
		"release": f.q.Release(f.ctx, j),
		"extend":  f.q.Extend(f.ctx, time.Hour, j),
	} {
		if !errors.Is(err, queue.ErrLeaseLost) {
			f.Errorf("late %s: %v, want ErrLeaseLost", what, err)
		}
	}
	if n := f.q.Counters().LeasesLost - before; n != 5 {
		f.Errorf("%d leases lost were counted, want 5", n)
	}
}

// lateHolder: what it does changes nothing for the one who holds the job now.
func lateHolder(t *testing.T, e Engine) {
	f := start(t, e, &queue.Options{Node: "first"})
	f.push(job("a"))
	first := f.popOne()
	f.age(e.AgeLeases, time.Hour)
	q := f.other(&queue.Options{Node: "second"})
	var second *queue.Job
	f.within(5*time.Second, "the job is popped again", func() bool {
		jobs, err := q.Pop(f.ctx, 1, &queue.PopOptions{Queues: []string{"q"}})
		f.must(err)
		if len(jobs) == 1 {
			second = jobs[0]
		}
		return len(jobs) == 1
	})
	if second.ID != first.ID || second.Attempt != 2 {
		t.Fatalf("popped %+v", second)
	}
	before, err := f.q.Get(f.ctx, first.ID)
	f.must(err)
	f.lost(first)
	after, err := f.q.Get(f.ctx, first.ID)
	f.must(err)
	if after.State != queue.Running || after.Node != "second" || !after.LeasedUntil.Equal(before.LeasedUntil) || after.Attempt != 2 || len(after.Errors) != 0 {
		t.Errorf("the late holder changed %+v to %+v", before, after)
	}
	f.must(q.Ack(f.ctx, second))
	f.lost(second) // once acked, it is nobody's
	if _, err := f.q.Get(f.ctx, first.ID); !errors.Is(err, queue.ErrNotFound) {
		t.Errorf("after the ack: %v", err)
	}
}

// expiredInSharedLane: a process that pops several queues never comes to the
// low priority's lane, because the high one always has more; another one pops
// only that lane. The first one's rechecks must not keep the second one's from
// finding what expired.
func expiredInSharedLane(t *testing.T, e Engine) {
	f := start(t, e, nil)
	low := queue.NewJob{Queue: "low", Kind: "filler", Priority: -1}
	f.bulk(3000, queue.NewJob{Queue: "q", Kind: "filler"})
	pop := func(q *queue.Queue, n int, lease time.Duration, queues ...string) []*queue.Job {
		jobs, err := q.Pop(f.ctx, n, &queue.PopOptions{Queues: queues, Lease: lease})
		f.must(err)
		return jobs
	}
	f.push(low)
	// Many who always find enough in "q", with their cursors of "low" at its start.
	var others []*queue.Queue
	for range 6 {
		q := f.other(nil)
		others = append(others, q)
		f.must(q.Ack(f.ctx, pop(q, 1, time.Minute, "q", "low")...))
	}
	f.bulk(1000, low)
	owner := f.other(nil)
	for range 5 {
		f.must(owner.Ack(f.ctx, pop(owner, 100, time.Minute, "low")...))
	}
	until := map[int64]time.Time{}
	for i := range 10 {
		j := pop(owner, 1, time.Second+time.Duration(i)*200*time.Millisecond, "low")[0]
		until[j.ID] = j.LeasedUntil
	}
	var slowest time.Duration
	for started := time.Now(); len(until) > 0; {
		for _, q := range others {
			f.must(q.Ack(f.ctx, pop(q, 1, time.Minute, "q", "low")...))
		}
		for _, j := range pop(owner, 1, busyLease, "low") {
			if end, ok := until[j.ID]; ok {
				slowest = max(slowest, claimedAt(j, busyLease).Sub(end))
				delete(until, j.ID)
			} else {
				f.push(low)
			}
			f.must(owner.Ack(f.ctx, j))
		}
		if time.Since(started) > 20*time.Second {
			t.Fatalf("%d expired leases were not found in 20 s", len(until))
		}
		if s := f.stats(); s.Ready < 1000 {
			f.bulk(2000, queue.NewJob{Queue: "q", Kind: "filler"})
		}
	}
	t.Logf("the slowest was found after %v", slowest)
	if slowest > 2*time.Second {
		t.Errorf("an expired lease was found after %v, want at most 2 s", slowest)
	}
}
