package dialecttest

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sqlqueue/queue"
)

func init() {
	addAlone("heavy: an empty pop among many queues and future jobs", emptyPop)
	addAlone("heavy: delayed jobs come when due among many due ones", dueAmongDue)
	addAlone("heavy: many lanes beside a backlog of due jobs", lanesBesideDue)
	addAlone("heavy: a hundred thousand in flight", manyInFlight)
}

// scale picks a size for this run.
func scale(short, usual, most int) int {
	switch {
	case heavy():
		return most
	case testing.Short():
		return short
	}
	return usual
}

// manyQueues makes n queues, each with one job, acked by the time it returns.
func (f *fixture) manyQueues(n int) []string {
	f.Helper()
	names := make([]string, n)
	batch := make([]queue.NewJob, n)
	for i := range batch {
		names[i] = fmt.Sprintf("queue-%05d", i)
		batch[i] = queue.NewJob{Queue: names[i], Kind: "k"}
	}
	tx := f.begin() // or each lane has a commit of its own
	_, err := f.q.PushManyTx(f.ctx, tx, batch, nil)
	f.must(err)
	f.must(tx.Commit())
	for left := n; left > 0; {
		jobs := f.popFrom(1000)
		left -= len(jobs)
		f.must(f.q.Ack(f.ctx, jobs...))
		if f.ctx.Err() != nil {
			f.Fatalf("%d jobs are missing", left)
		}
	}
	return names
}

// emptyPop: what a pop costs that finds nothing, of one queue, of many and of
// all, where nearly all queues are empty and a million jobs are to come.
func emptyPop(t *testing.T, e Engine) {
	f := start(t, e, nil)
	names := f.manyQueues(scale(300, 1000, 10_000))
	future := scale(10_000, 50_000, 1_000_000)
	for n := 0; n < future; n += queue.MaxPush {
		batch := make([]queue.NewJob, queue.MaxPush)
		for i := range batch {
			batch[i] = queue.NewJob{Queue: names[(n+i)%len(names)], Kind: "k", Delay: time.Hour}
		}
		f.push(batch...)
	}
	if e.Analyze != "" {
		f.exec(e.Analyze)
	}
	db, d := f.faulty()
	q := f.queue(db, nil)
	var serverTime func() time.Duration
	if e.ServerTime != nil {
		serverTime = e.ServerTime(t, f.open(f.dsn))
	}
	f.db.Close()
	for what, queues := range map[string][]string{"one queue": names[:1], "a hundred": names[:100], "a thousand": names[:min(1000, len(names))], "all": nil} {
		pop := func() (statements int64, took time.Duration) {
			d.inject(func(c driverCall) driverFault {
				// What opens a transaction is a part of its beginning.
				if (c.op == "query" || c.op == "exec") && c.text != f.statements().TxOptions.First {
					statements++
				}
				return driverFault{}
			})
			defer d.inject(nil)
			began := time.Now()
			jobs, err := q.Pop(f.ctx, 10, &queue.PopOptions{Queues: queues})
			f.must(err)
			if len(jobs) != 0 {
				t.Fatalf("%s: popped %d jobs", what, len(jobs))
			}
			return statements, time.Since(began)
		}
		pop()
		// Polling is spread over time, as rechecks and a catalog's life are.
		most, times, onServer := int64(0), []time.Duration{}, "not known"
		began := time.Duration(0)
		if serverTime != nil {
			began = serverTime()
		}
		const polls = 40
		for range polls {
			n, took := pop()
			most, times = max(most, n), append(times, took)
			time.Sleep(10 * time.Millisecond)
		}
		if serverTime != nil {
			db.SetMaxIdleConns(-1) // a server may add up a connection's times at its end
			time.Sleep(200 * time.Millisecond)
			db.SetMaxIdleConns(e.MaxConns)
			onServer = ((serverTime() - began) / polls).String()
		}
		slices.Sort(times)
		t.Logf("an empty pop of %s, with %d queues and %d future jobs: %d statements at most, median %v, 95 %% %v; on the server %s on average",
			what, len(names), future, most, times[polls/2], times[polls*95/100], onServer)
		if most > 2 {
			t.Errorf("%s: an empty pop took %d statements", what, most)
		}
	}
}

// dueAmongDue: while a backlog of due jobs is being drained, delayed ones of
// another queue come when they are due: never before, and soon after.
func dueAmongDue(t *testing.T, e Engine) {
	f := start(t, e, nil)
	backlog := scale(5000, 50_000, 300_000)
	f.bulk(backlog, queue.NewJob{Queue: "backlog", Kind: "k", Delay: time.Hour})
	f.age(e.AgeDue, 2*time.Hour)
	const n, lease = 100, time.Minute
	var stop atomic.Bool
	var drained atomic.Int64
	var wg sync.WaitGroup
	for range 2 {
		q := f.other(nil)
		wg.Go(func() {
			for !stop.Load() && drained.Load() < int64(backlog) {
				jobs, err := q.Pop(f.ctx, 100, &queue.PopOptions{Queues: []string{"backlog"}})
				if err == nil {
					err = q.Ack(f.ctx, jobs...)
				}
				if err != nil {
					t.Error(err)
					return
				}
				drained.Add(int64(len(jobs)))
			}
		})
	}
	batch := make([]queue.NewJob, n)
	for i := range batch {
		batch[i] = queue.NewJob{Queue: "q", Kind: "k", Delay: 200*time.Millisecond + time.Duration(i)*20*time.Millisecond}
	}
	f.push(batch...)
	consumer := f.other(nil)
	var slowest, longest time.Duration
	pops := 0
	for got := 0; got < n; pops++ {
		began := time.Now()
		jobs, err := consumer.Pop(f.ctx, 10, &queue.PopOptions{Queues: []string{"q"}, Lease: lease})
		f.must(err)
		longest = max(longest, time.Since(began))
		for _, j := range jobs {
			late := claimedAt(j, lease).Sub(j.RunAt)
			if late < -time.Millisecond { // the resolution of the coarsest clock
				t.Errorf("a job was popped %v before it was due", -late)
			}
			slowest = max(slowest, late)
		}
		f.must(consumer.Ack(f.ctx, jobs...))
		got += len(jobs)
		time.Sleep(5 * time.Millisecond)
	}
	busy := drained.Load()
	stop.Store(true)
	wg.Wait()
	t.Logf("popped %v after it was due at most, with %d pops of at most %v, beside %d due jobs, of which %d were drained", slowest, pops, longest, backlog, busy)
	if slowest > time.Second {
		t.Errorf("popped %v after it was due, want within a second", slowest)
	}
}

// lanesBesideDue: a process that pops many queues, all of them empty but one,
// beside a backlog of another queue that nobody pops. Each lane's recheck must
// not walk that backlog each time.
func lanesBesideDue(t *testing.T, e Engine) {
	if !heavy() {
		t.Skip("this case takes minutes and gigabytes: set QUEUE_TEST_HEAVY=1 to run it")
	}
	f := start(t, e, nil)
	names := f.manyQueues(100)
	q := f.other(nil)
	rate := func() (float64, time.Duration) {
		began, pops, longest := time.Now(), 0, time.Duration(0)
		for ; time.Since(began) < 2*time.Second; pops++ {
			_, err := f.q.Push(f.ctx, queue.NewJob{Queue: names[pops%len(names)], Kind: "k"})
			f.must(err)
			popped := time.Now()
			for got := 0; got == 0; {
				jobs, err := q.Pop(f.ctx, 10, &queue.PopOptions{Queues: names})
				f.must(err)
				f.must(q.Ack(f.ctx, jobs...))
				got = len(jobs)
				if time.Since(popped) > 10*time.Second {
					t.Fatal("the job was not popped")
				}
			}
			longest = max(longest, time.Since(popped))
		}
		return float64(pops) / time.Since(began).Seconds(), longest
	}
	rate()
	free, _ := rate()
	const backlog = 200_000
	for n := 0; n < backlog; n += queue.MaxPush {
		batch := make([]queue.NewJob, queue.MaxPush)
		for i := range batch {
			batch[i] = queue.NewJob{Queue: "backlog", Kind: "k", Delay: time.Hour + time.Duration(n+i)*time.Millisecond}
		}
		f.push(batch...)
	}
	f.age(e.AgeDue, 2*time.Hour)
	slow, longest := rate()
	t.Logf("%.0f jobs/s one by one, %.0f beside %d due jobs, the slowest after %v", free, slow, backlog, longest)
	if slow < 0.3*free {
		t.Errorf("%.0f jobs/s, and only %.0f beside %d due jobs that are none of this process's", free, slow, backlog)
	}
}

// manyInFlight: a hundred thousand long jobs slow down neither a pop nor an ack
// of others.
func manyInFlight(t *testing.T, e Engine) {
	f := start(t, e, nil)
	inFlight := scale(10_000, 50_000, 100_000)
	rate := func() float64 {
		b := f.busyLane(10)
		began, pops := time.Now(), 0
		for ; time.Since(began) < 300*time.Millisecond; pops++ {
			b.pop()
		}
		spent := time.Since(began).Seconds()
		b.q.Close()
		f.drain()
		return float64(pops) / spent
	}
	free := max(rate(), rate(), rate())
	f.bulk(inFlight, job("long"))
	held := f.take(inFlight)
	slow := max(rate(), rate(), rate())
	began := time.Now()
	for len(held) > 0 {
		n := min(1000, len(held))
		f.must(f.q.Extend(f.ctx, time.Hour, held[:n]...))
		held = held[n:]
	}
	t.Logf("%.0f pops/s, %.0f with %d in flight; extending them all took %v", free, slow, inFlight, time.Since(began))
	if slow < 0.2*free {
		t.Errorf("%.0f pops/s, and only %.0f with %d in flight", free, slow, inFlight)
	}
}
