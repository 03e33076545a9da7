package dialecttest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sqlqueue/queue"
)

func init() {
	add("pop: higher priorities first", popPriorities)
	add("pop: higher priorities first, though lower ones have come due", popPrioritiesDue)
	add("pop: first in, first out", popFIFO)
	add("pop: a delay", popDelay)
	add("pop: a due time", popRunAt)
	add("pop: due jobs in the order of their due times", popDueOrder)
	add("pop: of one queue, several and all", popQueues)
	add("pop: more than there is", popMore)
	add("pop: every shard is found", popShards)
	add("pop: the lease", popLease)
	add("pop: from 300 queues", popManyQueues)
}

func popPriorities(t *testing.T, e Engine) {
	f := start(t, e, nil)
	var want []string
	var batch []queue.NewJob
	for p := queue.MaxPriority; p >= queue.MinPriority; p-- {
		for i := range 3 {
			payload := fmt.Sprintf("%d.%d", p, i)
			want = append(want, payload)
			batch = append(batch, queue.NewJob{Queue: "q", Kind: "k", Priority: p, Payload: []byte(payload)})
		}
	}
	// In any order of the priorities, but in order within each.
	rand.Shuffle(len(batch), func(i, j int) { batch[i], batch[j] = batch[j], batch[i] })
	slices.SortStableFunc(batch, func(a, b queue.NewJob) int {
		return int(a.Payload[len(a.Payload)-1]) - int(b.Payload[len(b.Payload)-1])
	})
	f.push(batch...)
	got := append(f.pop(1), f.pop(2)...)
	got = append(got, f.pop(10)...)
	got = append(got, f.pop(100)...)
	sameList(f, "popped", payloads(got), want)

	// A job of a higher priority that comes later goes first, too.
	f.push(queue.NewJob{Queue: "q", Kind: "k", Priority: -1, Payload: []byte("low")})
	f.push(queue.NewJob{Queue: "q", Kind: "k", Priority: 1, Payload: []byte("high")})
	same(f, "first", string(f.popOne().Payload), "high")
	same(f, "second", string(f.popOne().Payload), "low")
}

func popPrioritiesDue(t *testing.T, e Engine) {
	f := start(t, e, nil)
	for i := range 3 {
		f.push(queue.NewJob{Queue: "q", Kind: "k", Priority: -1, Payload: fmt.Append(nil, "low", i), Delay: time.Millisecond * time.Duration(1+i)})
		f.push(queue.NewJob{Queue: "q", Kind: "k", Priority: 1, Payload: fmt.Append(nil, "high", i)})
	}
	f.within(time.Second, "all due", func() bool { return f.stats().Ready == 6 })
	var got []string
	for range 6 {
		got = append(got, string(f.popOne().Payload))
	}
	sameList(f, "popped", got, []string{"high0", "high1", "high2", "low0", "low1", "low2"})

	// The same for leases that ran out.
	f.age(e.AgeLeases, time.Hour)
	f.push(queue.NewJob{Queue: "q", Kind: "k", Priority: 1, Payload: []byte("new")})
	got = nil
	f.within(soon, "all found again", func() bool {
		got = append(got, payloads(f.pop(1))...)
		return len(got) == 7
	})
	for _, payload := range got[:slices.Index(got, "new")] {
		if strings.HasPrefix(payload, "low") {
			t.Fatalf("popped %q: a lower priority went before the new job", got)
		}
	}
}

func popFIFO(t *testing.T, e Engine) {
	f := start(t, e, nil)
	out := f.other(nil)
	for i := range 30 {
		q := f.q
		if i%2 == 1 {
			q = out
		}
		must(q.Push(f.ctx, job(fmt.Sprint(i))))(f)
	}
	f.push(jobs(70)...)
	want := make([]string, 0, 100)
	for i := range 30 {
		want = append(want, fmt.Sprint(i))
	}
	for i := range 70 {
		want = append(want, fmt.Sprint(i))
	}
	var got []string
	for i := 0; len(got) < 100; i++ {
		q := f.q
		if i%2 == 1 {
			q = out
		}
		jobs, err := q.Pop(f.ctx, 1+i%5, &queue.PopOptions{Queues: []string{"q"}, Lease: time.Minute})
		f.must(err)
		if len(jobs) == 0 {
			t.Fatalf("popped nothing after %d jobs", len(got))
		}
		got = append(got, payloads(jobs)...)
	}
	sameList(f, "popped", got, want)
}

func popDelay(t *testing.T, e Engine) {
	f := start(t, e, nil)
	const delay = 400 * time.Millisecond
	p := f.push(queue.NewJob{Queue: "q", Kind: "k", Delay: delay})[0]
	info := f.wantState(p.ID, queue.Delayed)
	same(f, "due after", info.RunAt.Sub(info.CreatedAt), delay) // both by the database's clock
	f.wantStats(0, 1, 0, 0)
	f.wantDue(info, delay)
	// The longest delay there can be.
	p = f.push(queue.NewJob{Queue: "q", Kind: "k", Delay: queue.MaxDelay})[0]
	info = f.wantState(p.ID, queue.Delayed)
	same(f, "due after", info.RunAt.Sub(info.CreatedAt), queue.MaxDelay)
}

// wantDue ends the test unless a job that is delayed for d more is popped when
// it is due and not before, by the database's clock.
func (f *fixture) wantDue(info queue.JobInfo, d time.Duration) {
	f.Helper()
	var got []*queue.Job
	f.within(d+soon, "the job is due", func() bool {
		got = f.pop(10)
		return len(got) > 0
	})
	same(f, "jobs", len(got), 1)
	same(f, "id", got[0].ID, info.ID)
	same(f, "run at", got[0].RunAt, info.RunAt)
	popped := got[0].LeasedUntil.Add(-time.Minute) // the lease is a minute
	if popped.Before(info.RunAt) {
		f.Fatalf("popped at %v, %v before it was due", popped, info.RunAt.Sub(popped))
	}
}

func popRunAt(t *testing.T, e Engine) {
	f := start(t, e, nil)
	now := f.now()
	for _, past := range []time.Time{
		now, now.Add(-time.Hour), time.Unix(0, 0), time.Unix(1, 0),
		time.Date(1970, 1, 1, 0, 0, 0, 0, time.FixedZone("", 3600)), now.AddDate(-20, 0, 0),
	} {
		p := f.push(queue.NewJob{Queue: "q", Kind: "k", RunAt: past})[0]
		f.wantState(p.ID, queue.Ready)
		same(f, "popped at once", f.popOne().ID, p.ID)
	}
	far := time.Date(2240, 12, 31, 23, 59, 59, 999999000, time.UTC)
	p := f.push(queue.NewJob{Queue: "q", Kind: "k", RunAt: far})[0]
	same(f, "run at", f.wantState(p.ID, queue.Delayed).RunAt, far)
	farthest := time.Date(9000, 12, 31, 23, 59, 59, 999999000, time.UTC)
	p = f.push(queue.NewJob{Queue: "q", Kind: "k", RunAt: farthest})[0]
	if d := f.wantState(p.ID, queue.Delayed).RunAt.Sub(farthest).Abs(); d > time.Millisecond {
		t.Fatalf("due %v off", d)
	}

	// Whatever time zone it is given in, and rounded to the microsecond.
	at := f.now().Add(500 * time.Millisecond).Add(123 * time.Nanosecond)
	p = f.push(queue.NewJob{Queue: "q", Kind: "k", RunAt: at.In(time.FixedZone("east", 12*3600+45*60))})[0]
	info := f.wantState(p.ID, queue.Delayed)
	same(f, "run at", info.RunAt, at.Truncate(time.Microsecond))
	f.wantDue(info, 500*time.Millisecond)
}

func popDueOrder(t *testing.T, e Engine) {
	f := start(t, e, nil)
	var want []string
	var batch []queue.NewJob
	for i := range 20 {
		payload := fmt.Sprint(i)
		want = append(want, payload)
		batch = append(batch, queue.NewJob{Queue: "q", Kind: "k", Payload: []byte(payload), Delay: time.Duration(i+1) * time.Minute})
	}
	rand.Shuffle(len(batch), func(i, j int) { batch[i], batch[j] = batch[j], batch[i] })
	f.push(batch...)
	f.popNone()
	f.age(e.AgeDue, 15*time.Minute+30*time.Second)
	f.wantStats(15, 5, 0, 0)
	var got []string
	f.within(soon, "what has come due is popped", func() bool {
		got = append(got, payloads(f.pop(4))...)
		return len(got) >= 15
	})
	sameList(f, "popped", got, want[:15])
	f.popNone()
}

func popQueues(t *testing.T, e Engine) {
	f := start(t, e, nil)
	all := map[string]int64{}
	for _, name := range []string{"a", "b", "c", "d"} {
		all[name] = must(f.q.Push(f.ctx, queue.NewJob{Queue: name, Kind: "k"}))(f).ID
	}
	popped := func(want []string, queues ...string) {
		f.Helper()
		jobs := f.popFrom(10, queues...)
		var names []string
		for _, j := range jobs {
			names = append(names, j.Queue)
			same(f, "id of the job of queue "+j.Queue, j.ID, all[j.Queue])
		}
		slices.Sort(names)
		sameList(f, fmt.Sprintf("popped from %q", queues), names, want)
		f.must(f.q.Release(f.ctx, jobs...))
	}
	popped([]string{"b"}, "b")
	popped([]string{"a", "c"}, "c", "a")
	popped([]string{"a"}, "a", "a", "unknown", "a")
	popped(nil, "unknown")
	popped(nil, "unknown", "A", "ab")
	popped([]string{"a", "b", "c", "d"})
	popped([]string{"a", "b", "c", "d"}, "a", "b", "c", "d", "e")
	sameList(f, "queues", must(f.q.Queues(f.ctx))(f), []string{"a", "b", "c", "d"})

	// Priorities hold across queues, and a queue that is full keeps none waiting.
	f.push(jobs(50)...)
	high := must(f.q.Push(f.ctx, queue.NewJob{Queue: "high", Kind: "k", Priority: 1}))(f)
	same(f, "first", f.popFrom(1, "q", "high")[0].ID, high.ID)
	must(f.q.Push(f.ctx, queue.NewJob{Queue: "equal", Kind: "k"}))(f)
	got := 0
	for i := 0; ; i++ {
		if i == 10 {
			t.Fatal("ten pops of one job all came from the same of two queues")
		}
		if f.popFrom(1, "q", "equal")[0].Queue == "equal" {
			break
		}
		got++
	}
	f.wantStats(int64(50-got), 0, int64(got), 0)
}

func popMore(t *testing.T, e Engine) {
	f := start(t, e, nil)
	jobs, err := f.q.Pop(f.ctx, 10, nil) // there is no queue at all
	f.must(err)
	same(f, "popped", len(jobs), 0)
	pushed := f.push(job("1"), job("2"), job("3"))
	sameList(f, "popped", ids(f.pop(queue.MaxBatch)), pushedIDs(pushed))
	f.popNone()
	f.popNone()
	c := f.q.Counters()
	same(f, "pops", c.Pops, 4)
	same(f, "empty pops", c.EmptyPops, 3)
	same(f, "popped jobs", c.Popped, 3)
	if c.Claims < 1 || c.Claims > 4 {
		t.Fatalf("%d claims for 4 pops", c.Claims)
	}
}

func popShards(t *testing.T, e Engine) {
	f := start(t, e, &queue.Options{Shards: 5})
	for i := range 20 {
		f.push(job(fmt.Sprint("single", i)))
	}
	f.push(jobs(101)...)
	seen := map[int64]bool{}
	for i := 0; len(seen) < 121; i++ {
		n := 1 + i%7
		got := f.pop(n)
		if want := min(n, 121-len(seen)); len(got) != want {
			t.Fatalf("popped %d after %d, want %d", len(got), len(seen), want)
		}
		for _, j := range got {
			if seen[j.ID] {
				t.Fatalf("job %d popped twice", j.ID)
			}
			seen[j.ID] = true
		}
	}
	f.popNone()
	f.wantStats(0, 0, 121, 0)
}

func popLease(t *testing.T, e Engine) {
	f := start(t, e, nil)
	f.push(job("pop's"), queue.NewJob{Queue: "q", Kind: "k", Lease: 1500 * time.Millisecond}, job("pop's"))
	before := f.now()
	got := must(f.q.Pop(f.ctx, 3, &queue.PopOptions{Lease: queue.MaxLease}))(f)
	after := f.now()
	same(f, "popped", len(got), 3)
	for i, want := range []time.Duration{queue.MaxLease, 1500 * time.Millisecond, queue.MaxLease} {
		if u := got[i].LeasedUntil; u.Before(before.Add(want)) || u.After(after.Add(want)) {
			t.Fatalf("job %d is leased until %v, want %v after %v to %v", i, u, want, before, after)
		}
	}
	f.wantStats(0, 0, 3, 0)
	f.must(f.q.Ack(f.ctx, got...))

	// The shortest lease runs out, and the job is there again.
	f.push(job("short"))
	first := must(f.q.Pop(f.ctx, 1, &queue.PopOptions{Lease: queue.MinLease}))(f)
	same(f, "popped", len(first), 1)
	var second []*queue.Job
	f.within(soon, "the job is found again", func() bool {
		second = f.pop(1)
		return len(second) == 1
	})
	same(f, "id", second[0].ID, first[0].ID)
	same(f, "attempt", second[0].Attempt, 2)
	if !second[0].LeasedUntil.Add(-time.Minute).After(first[0].LeasedUntil) {
		t.Fatalf("popped before the first lease ended at %v", first[0].LeasedUntil)
	}
	if r := first[0].Remaining(); r > 0 {
		t.Fatalf("%v of the first lease remain", r)
	}
	f.wantErr("the first holder's ack", f.q.Ack(f.ctx, first...), queue.ErrLeaseLost)
	f.must(f.q.Ack(f.ctx, second...))
}

func popManyQueues(t *testing.T, e Engine) {
	f := start(t, e, nil)
	const n = 300
	var batch []queue.NewJob
	var names []string
	for i := range n {
		names = append(names, fmt.Sprintf("q%03d", i))
		batch = append(batch, queue.NewJob{Queue: names[i], Kind: "k", Payload: []byte(names[i])})
	}
	for i := range batch {
		if i%50 == 0 { // a few of them are delayed, and have come due
			batch[i].Delay = time.Millisecond
		}
		if i%10 != 0 {
			batch[i].Payload = nil
		}
	}
	f.push(batch...)
	f.must(f.q.Pause(f.ctx, names[7]))
	var got []string
	f.within(soon, "every queue's job popped", func() bool {
		for _, j := range f.popFrom(20) {
			got = append(got, j.Queue)
		}
		return len(got) >= n-1
	})
	slices.Sort(got)
	sameList(f, "popped from", got, slices.Delete(slices.Clone(names), 7, 8))
	f.must(f.q.Resume(f.ctx, names[7]))
	f.within(soon, "the resumed queue's job popped", func() bool { return len(f.popFrom(1, names[7])) == 1 })
	same(f, "popped from a list of many", len(f.popFrom(10, names...)), 0)
	must(f.q.Push(f.ctx, queue.NewJob{Queue: names[200], Kind: "k"}))(f)
	f.within(soon, "one more popped from a list of many", func() bool { return len(f.popFrom(10, names...)) == 1 })
}
