package dialecttest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/sqlqueue/queue"
)

func init() {
	add("get: a job in each state, found by its id for ever", getForEver)
	add("jobs: filters", jobsFilters)
	add("jobs: pages, order and an early end", jobsPages)
	add("jobs: that come and go meanwhile", jobsMoving)
	add("stats: exact small numbers", stats)
	add("stats: age of the oldest ready job", statsAge)
	add("queues: all that ever held a job or have settings", queuesList)
}

func getForEver(t *testing.T, e Engine) {
	f := start(t, e, &queue.Options{Shards: 4, KeepFinished: true})
	j := queue.NewJob{Queue: "q", Kind: "k", Payload: []byte("x"), MaxAttempts: 2, Headers: map[string]string{"a": "b"}, Delay: time.Hour}
	var id int64
	for range 7 { // another lane each time
		id = f.push(j)[0].ID
	}
	created := f.info(id).CreatedAt
	is := func(state queue.State, priority, attempt, errs int) {
		f.Helper()
		info := f.wantState(id, state)
		same(f, "created at", info.CreatedAt, created)
		same(f, "queue", info.Queue, "q")
		same(f, "kind", info.Kind, "k")
		same(f, "payload", string(info.Payload), "x")
		same(f, "header", info.Headers["a"], "b")
		same(f, "max attempts", info.MaxAttempts, 2)
		same(f, "priority", info.Priority, priority)
		same(f, "attempt", info.Attempt, attempt)
		same(f, "errors", len(info.Errors), errs)
		same(f, "has a due time", info.RunAt.IsZero(), state == queue.Dead || state == queue.Done)
		same(f, "has ended", info.FinishedAt.IsZero(), state != queue.Dead && state != queue.Done)
	}
	popID := func() *queue.Job { f.Helper(); return must(f.q.PopID(f.ctx, id, time.Minute))(f) }
	is(queue.Delayed, 0, 0, 0)
	f.must(f.q.Reprioritize(f.ctx, id, 7))
	is(queue.Delayed, 7, 0, 0)
	f.must(f.q.Configure(f.ctx, "q", queue.Settings{Shards: ptr(2)}))
	held := popID()
	is(queue.Running, 7, 1, 0)
	f.must(f.q.Fail(f.ctx, held, errBoom, &queue.FailOptions{RetryIn: time.Hour}))
	is(queue.Delayed, 7, 1, 1)
	f.must(f.q.Reprioritize(f.ctx, id, -9))
	f.must(f.q.Reschedule(f.ctx, id, 0))
	is(queue.Ready, -9, 1, 1)
	f.must(f.q.Fail(f.ctx, popID(), errBoom, nil))
	is(queue.Dead, -9, 2, 2)
	redriven, skipped, err := f.q.Redrive(f.ctx, queue.Redrive{ID: id})
	f.must(err)
	same(f, "redriven", redriven, 1)
	same(f, "skipped", skipped, 0)
	is(queue.Ready, -9, 0, 2)
	f.must(f.q.Reprioritize(f.ctx, id, 9))
	held = popID()
	is(queue.Running, 9, 1, 2)
	f.must(f.q.Release(f.ctx, held))
	f.must(f.q.Fail(f.ctx, popID(), errBoom, &queue.FailOptions{Dead: true}))
	is(queue.Dead, 9, 1, 3) // dead a second time
	_, _, err = f.q.Redrive(f.ctx, queue.Redrive{})
	f.must(err)
	f.must(f.q.Ack(f.ctx, popID()))
	is(queue.Done, 9, 1, 3)
	same(f, "records of it", len(f.list(queue.Filter{Queue: "q", States: []queue.State{queue.Done, queue.Dead}})), 1)

	for _, id := range []int64{0, -1, 5, id + 1, 1 << 43, 1<<63 - 1, -1 << 63} {
		f.wantGone(id)
	}
}

func jobsFilters(t *testing.T, e Engine) {
	f := start(t, e, &queue.Options{KeepFinished: true})
	// One job of each state, in two queues and of two kinds.
	byState := map[queue.State][]int64{}
	for _, name := range []string{"q", "r"} {
		for _, kind := range []string{"a", "b"} {
			one := queue.NewJob{Queue: name, Kind: kind, Priority: len(kind)}
			end := func(state queue.State, change func(*queue.Job)) {
				id := must(f.q.Push(f.ctx, one))(f).ID
				byState[state] = append(byState[state], id)
				if change != nil {
					change(must(f.q.PopID(f.ctx, id, time.Minute))(f))
				}
			}
			end(queue.Ready, nil)
			end(queue.Running, func(*queue.Job) {})
			end(queue.Delayed, func(j *queue.Job) {
				f.must(f.q.Fail(f.ctx, j, errBoom, &queue.FailOptions{RetryIn: time.Hour}))
			})
			end(queue.Done, func(j *queue.Job) { f.must(f.q.Ack(f.ctx, j)) })
			end(queue.Dead, func(j *queue.Job) { f.must(f.q.Fail(f.ctx, j, errBoom, &queue.FailOptions{Dead: true})) })
			end(queue.Cancelled, func(j *queue.Job) {
				f.must(f.q.Release(f.ctx, j))
				f.must(f.q.Cancel(f.ctx, j.ID))
			})
		}
	}
	all := []queue.State{queue.Ready, queue.Running, queue.Delayed, queue.Done, queue.Dead, queue.Cancelled}
	filters := [][]queue.State{nil, all, {queue.Ready}, {queue.Running}, {queue.Delayed}, {queue.Done}, {queue.Dead}, {queue.Cancelled}, {queue.Dead, queue.Ready}, {queue.Dead, queue.Dead, queue.Ready, queue.Ready}}
	for _, name := range []string{"", "q", "r", "s"} {
		for _, kind := range []string{"", "a", "b", "c"} {
			for _, states := range filters {
				filter := queue.Filter{Queue: name, Kind: kind, States: states}
				var want []int64
				for _, s := range all {
					if states != nil && !slices.Contains(states, s) {
						continue
					}
					for i, id := range byState[s] { // q a, q b, r a, r b
						if (name == "" || name == []string{"q", "r"}[i/2]) && (kind == "" || kind == []string{"a", "b"}[i%2]) {
							want = append(want, id)
						}
					}
				}
				got := f.list(filter)
				for _, info := range got {
					if !slices.Contains(byState[info.State], info.ID) || (name != "" && info.Queue != name) || (kind != "" && info.Kind != kind) {
						t.Fatalf("%+v: got job %+v", filter, info)
					}
				}
				found := infoIDs(got)
				slices.Sort(found)
				slices.Sort(want)
				sameList(f, fmt.Sprintf("%+v", filter), found, want)
			}
		}
	}
	for field, filter := range map[string]queue.Filter{
		"Filter.States": {States: []queue.State{queue.Ready, "lost"}},
		"Filter.Queue":  {Queue: "a\x00"},
		"Filter.Kind":   {Kind: "\xff"},
	} {
		n := 0
		for _, err := range f.q.Jobs(f.ctx, filter) {
			f.wantInvalid(field, err, field)
			n++
		}
		same(f, "answers to a bad filter", n, 1)
	}
}

func jobsPages(t *testing.T, e Engine) {
	f := start(t, e, &queue.Options{Shards: 2})
	const n = 1010 // several pages
	batch := jobs(n)
	for i := range batch {
		batch[i].Priority = i % 2
		if i%5 == 0 {
			batch[i].Delay = time.Hour
		}
		if i%3 == 0 {
			batch[i].Kind = "third"
		}
	}
	pushed := pushedIDs(f.push(batch...))
	for what, filter := range map[string]queue.Filter{
		"all": {}, "of the queue": {Queue: "q"}, "ready": {Queue: "q", States: []queue.State{queue.Ready}},
		"delayed": {States: []queue.State{queue.Delayed}}, "of a kind": {Kind: "third"},
	} {
		var want []int64
		for i, id := range pushed {
			delayed := i%5 == 0
			if (filter.States == nil || delayed == (filter.States[0] == queue.Delayed)) && (filter.Kind == "" || i%3 == 0) {
				want = append(want, id)
			}
		}
		got := infoIDs(f.list(filter))
		slices.Sort(got)
		slices.Sort(want)
		sameList(f, what, got, want)
	}
	// Within a lane in the order of the ids.
	last := map[string]int64{}
	for _, info := range f.list(queue.Filter{Queue: "q", States: []queue.State{queue.Ready}}) {
		lane := fmt.Sprint(info.ID>>43, info.Priority)
		if info.ID <= last[lane] {
			t.Fatalf("job %d came after %d of the same lane", info.ID, last[lane])
		}
		last[lane] = info.ID
	}

	// The archive has pages, too.
	for range 2 {
		for _, j := range f.pop(500) {
			j := j
			f.must(f.q.Fail(f.ctx, j, nil, &queue.FailOptions{Dead: true}))
		}
	}
	dead := infoIDs(f.list(queue.Filter{States: []queue.State{queue.Dead}}))
	same(f, "dead", len(dead), n-n/5)
	same(f, "in the order of their ids", slices.IsSorted(dead), true)
	same(f, "distinct", len(slices.Compact(dead)), n-n/5)
	same(f, "live and dead", len(f.list(queue.Filter{})), n)

	// An early end frees the connection, and a second walk begins anew.
	for _, stop := range []int{1, 199, 200, 201, 202, 900} {
		seen := 0
		walk := f.q.Jobs(f.ctx, queue.Filter{})
		for range 2 {
			seen = 0
			for _, err := range walk {
				f.must(err)
				if seen++; seen == stop {
					break
				}
				if f.db.Stats().InUse != 0 {
					t.Fatal("the walk holds a connection")
				}
			}
			same(f, "seen", seen, stop)
		}
	}
	same(f, "connections in use", f.db.Stats().InUse, 0)
}

func jobsMoving(t *testing.T, e Engine) {
	f := start(t, e, nil)
	f.push(jobs(450)...)
	seen := 0
	for info, err := range f.q.Jobs(f.ctx, queue.Filter{Queue: "q", States: []queue.State{queue.Ready}}) {
		f.must(err)
		f.must(f.q.Cancel(f.ctx, info.ID)) // what was seen may go
		seen++
	}
	same(f, "seen", seen, 450)
	f.wantStats(0, 0, 0, 0)
}

func stats(t *testing.T, e Engine) {
	f := start(t, e, &queue.Options{Shards: 2, KeepFinished: true})
	same(f, "of a queue that is not there", f.stats(), queue.Stats{Queue: "q"})
	sameList(f, "queues", must(f.q.Queues(f.ctx))(f), nil)

	batch := jobs(20)
	for i := range batch {
		batch[i].Priority = i%3 - 1
		if i >= 13 {
			batch[i].Delay = time.Hour
		}
	}
	f.push(batch...)
	must(f.q.Push(f.ctx, queue.NewJob{Queue: "other", Kind: "k"}))(f)
	s := f.wantStats(13, 7, 0, 0)
	same(f, "queue", s.Queue, "q")
	same(f, "paused", s.Paused, false)
	got := f.pop(9)
	f.wantStats(4, 7, 9, 0)
	f.must(f.q.Ack(f.ctx, got[0], got[1]))
	f.wantStats(4, 7, 7, 0)
	f.must(f.q.Release(f.ctx, got[2]))
	f.wantStats(5, 7, 6, 0)
	f.must(f.q.Fail(f.ctx, got[3], errBoom, &queue.FailOptions{RetryIn: time.Hour}))
	f.wantStats(5, 8, 5, 0)
	f.must(f.q.Fail(f.ctx, got[4], errBoom, &queue.FailOptions{RetryIn: -1}))
	f.wantStats(6, 8, 4, 0)
	f.must(f.q.Fail(f.ctx, got[5], errBoom, &queue.FailOptions{Dead: true}))
	f.wantStats(6, 8, 3, 1)
	f.age(e.AgeLeases, time.Hour)
	f.wantStats(9, 8, 0, 1) // leases that ran out count as ready
	f.age(e.AgeDue, 2*time.Hour)
	f.wantStats(17, 0, 0, 1)
	for info := range f.q.Jobs(f.ctx, queue.Filter{Queue: "q", States: []queue.State{queue.Ready}}) {
		f.must(f.q.Cancel(f.ctx, info.ID))
	}
	f.wantStats(0, 0, 0, 1)
	other := must(f.other(nil).Stats(f.ctx, "other"))(f)
	same(f, "ready in the other queue", other.Ready, 1)
}

func statsAge(t *testing.T, e Engine) {
	f := start(t, e, nil)
	before := f.now()
	f.push(job("first"))
	time.Sleep(30 * time.Millisecond)
	f.push(queue.NewJob{Queue: "q", Kind: "k", Priority: 5})
	f.push(queue.NewJob{Queue: "q", Kind: "k", Delay: time.Hour})
	age := f.stats().OldestReady
	if most := f.now().Sub(before); age < 30*time.Millisecond || age > most {
		t.Fatalf("the oldest ready job is %v old, want 30 ms to %v", age, most)
	}
	// For a job with a due time, since that.
	f.age(e.AgeDue, 3*time.Hour)
	age = f.stats().OldestReady
	if age < 2*time.Hour || age > 2*time.Hour+time.Minute {
		t.Fatalf("the oldest ready job is %v old, want 2 hours", age)
	}
	f.within(soon, "all popped", func() bool { f.pop(3); return f.stats().Running == 3 })
	same(f, "age of none", f.stats().OldestReady, 0)
}

func queuesList(t *testing.T, e Engine) {
	f := start(t, e, nil)
	for _, name := range []string{"b", "a", "Z", "é"} {
		must(f.q.Push(f.ctx, queue.NewJob{Queue: name, Kind: "k", Delay: time.Hour}))(f)
		must(f.q.Push(f.ctx, queue.NewJob{Queue: name, Kind: "k", Priority: 3}))(f)
	}
	f.must(f.q.Configure(f.ctx, "settings only", queue.Settings{Shards: ptr(2)}))
	f.must(f.q.Pause(f.ctx, "a"))
	f.must(f.q.Ack(f.ctx, f.popFrom(10, "b")...))
	want := []string{"Z", "a", "b", "settings only", "é"}
	sameList(f, "queues", must(f.q.Queues(f.ctx))(f), want)
	sameList(f, "queues, from another process", must(f.other(nil).Queues(f.ctx))(f), want)
}
