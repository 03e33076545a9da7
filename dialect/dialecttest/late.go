package dialecttest

import (
	"database/sql"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sqlqueue/queue"
)

func init() {
	add("late commit: in a busy lane", lateBusy)
	add("late commit: in a lane that runs empty", lateShort)
	addAlone("late commit: eight producers", lateProducers)
	add("restore: ids begin anew", regressedIDs)
	add("restore: lanes are gone", forgottenLanes)
	add("restore: lanes are other queues'", exchangedLanes)
	add("lane: created in a transaction", laneInTx)
}

const oneWriterWhy = "on this engine an open transaction that has pushed holds back every other push: no commit is late"

// lateBusy: a job whose transaction commits when its lane's cursor is far past
// it is found, though no pop of the lane comes back short.
func lateBusy(t *testing.T, e Engine) {
	if e.OneWriter {
		t.Skip(oneWriterWhy)
	}
	f := start(t, e, nil)
	f.push(queue.NewJob{Queue: "q", Kind: "filler"}) // the lane exists
	var txs []*sql.Tx
	ids := map[int64]bool{}
	for range 5 {
		tx := f.begin()
		p, err := f.q.PushTx(f.ctx, tx, job("late"))
		f.must(err)
		ids[p.ID], txs = true, append(txs, tx)
	}
	b := f.busyLane(20)
	b.stock++
	var slowest time.Duration
	for i, tx := range txs {
		// The first commits when it is still in the lookback, the others later.
		for began := time.Now(); time.Since(began) < time.Duration(200+500*i)*time.Millisecond; {
			if n := len(b.pop()); n > 0 {
				t.Fatal("popped before the commit")
			}
		}
		f.must(tx.Commit())
		committed := time.Now()
		for found := false; !found; {
			for _, j := range b.pop() {
				if found = ids[j.ID]; !found {
					t.Fatalf("popped %+v", j)
				}
				delete(ids, j.ID)
				f.must(b.q.Ack(f.ctx, j))
			}
			if time.Since(committed) > 10*time.Second {
				t.Fatal("a job was not found within 10 s of its commit")
			}
		}
		slowest = max(slowest, time.Since(committed))
	}
	b.wasBusy()
	t.Logf("found %v after the commit at most", slowest)
	if slowest > 1500*time.Millisecond {
		t.Errorf("found %v after the commit, want about a second at most", slowest)
	}
}

// lateShort: in a lane that runs empty, the very next pop after the commit finds
// what the cursor passed a moment ago.
func lateShort(t *testing.T, e Engine) {
	if e.OneWriter {
		t.Skip(oneWriterWhy)
	}
	f := start(t, e, nil)
	f.push(job("the lane exists"))
	f.must(f.q.Ack(f.ctx, f.popOne()))
	for i := range 10 {
		tx := f.begin()
		late, err := f.q.PushTx(f.ctx, tx, job("late"))
		f.must(err)
		next := f.push(job("next"))[0]
		if j := f.popOne(); j.ID != next.ID {
			t.Fatalf("popped %+v", j)
		} else {
			f.must(f.q.Ack(f.ctx, j))
		}
		f.popNone()
		time.Sleep(time.Duration(i*50) * time.Millisecond)
		f.popNone()
		f.must(tx.Commit())
		j := f.popOne()
		if j.ID != late.ID {
			t.Fatalf("popped %+v", j)
		}
		f.must(f.q.Ack(f.ctx, j))
	}
}

// lateProducers: eight producers commit, or roll back, in random order and after
// random times, while four consumers pop.
func lateProducers(t *testing.T, e Engine) {
	f := start(t, e, nil)
	each := 60
	if e.OneWriter {
		each = 20
	}
	var mu sync.Mutex
	committed := map[int64]bool{}
	var producers, consumers sync.WaitGroup
	var stop atomic.Bool
	for p := range 8 {
		db := f.open(f.dsn)
		q := f.queue(db, nil)
		producers.Go(func() {
			for n := 0; n < each; n++ {
				tx, err := db.BeginTx(f.ctx, nil)
				if err != nil {
					t.Error(err)
					return
				}
				pushed, err := q.PushManyTx(f.ctx, tx, jobs(1+rand.IntN(3)), nil)
				if (e.OneWriter || e.LanesDeadlock) && f.transient(err) && f.ctx.Err() == nil {
					// As when it read before it wrote and another wrote in between, or when two
					// made the queue's first lane at once: the caller's to begin again.
					tx.Rollback()
					n--
					continue
				}
				if err != nil {
					t.Error(err)
				}
				pause := rand.N(10 * time.Millisecond)
				if p == 0 && !e.OneWriter {
					pause *= 10
				}
				time.Sleep(pause)
				if rand.IntN(10) == 0 {
					if err := tx.Rollback(); err != nil {
						t.Error(err)
					}
					continue
				}
				if err := tx.Commit(); err != nil {
					t.Error(err)
				}
				mu.Lock()
				for _, p := range pushed {
					committed[p.ID] = true
				}
				mu.Unlock()
			}
		})
	}
	popped := map[int64]bool{}
	for range 4 {
		q := f.other(nil)
		consumers.Go(func() {
			for {
				stopping := stop.Load()
				jobs, err := q.Pop(f.ctx, 1+rand.IntN(5), &queue.PopOptions{Queues: []string{"q"}, Lease: time.Hour})
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				for _, j := range jobs {
					if popped[j.ID] {
						t.Errorf("job %d was popped twice", j.ID)
					}
					popped[j.ID] = true
				}
				mu.Unlock()
				if err := q.Ack(f.ctx, jobs...); err != nil {
					t.Error(err)
				}
				if len(jobs) == 0 && stopping {
					return
				}
			}
		})
	}
	producers.Wait()
	f.within(3*time.Second, "all committed jobs are popped", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(popped) == len(committed)
	})
	stop.Store(true)
	consumers.Wait()
	for id := range committed {
		if !popped[id] {
			t.Errorf("job %d was not popped", id)
		}
	}
	if len(popped) != len(committed) || len(popped) < 4*each {
		t.Errorf("%d popped, %d committed", len(popped), len(committed))
	}
}

// regressedIDs: after a restore the ids of new jobs lie far below every cursor.
func regressedIDs(t *testing.T, e Engine) {
	if len(e.RegressIDs) == 0 {
		t.Skip("the ids of this engine come from the table itself: there is no counter that could go back alone")
	}
	f := start(t, e, nil)
	f.bulk(2000, job(""))
	other := f.other(nil)
	if n := f.drain(); n != 2000 {
		t.Fatalf("drained %d", n)
	}
	high := f.push(job("high"))[0]
	j := f.popOne()
	f.must(f.q.Ack(f.ctx, j))
	time.Sleep(2500 * time.Millisecond) // the lookback ends behind all of that
	f.popNone()
	for _, text := range e.RegressIDs {
		f.exec(text)
	}
	pushed := f.push(jobs(500)...)
	if pushed[499].ID >= high.ID {
		t.Fatalf("id %d after %d: RegressIDs does nothing", pushed[499].ID, high.ID)
	}
	for _, q := range []*queue.Queue{f.q, other} {
		n := 0
		f.within(2*time.Second, "half of the jobs are popped", func() bool {
			jobs, err := q.Pop(f.ctx, 50, &queue.PopOptions{Queues: []string{"q"}})
			f.must(err)
			f.must(q.Ack(f.ctx, jobs...))
			n += len(jobs)
			return n >= 250
		})
	}
	f.popNone()
	// One after the other, too.
	for range 3 {
		p := f.push(job("later"))[0]
		f.within(2*time.Second, "a job below the cursor is popped", func() bool {
			jobs := f.pop(1)
			f.must(f.q.Ack(f.ctx, jobs...))
			return len(jobs) == 1 && jobs[0].ID == p.ID
		})
	}
}

func (f *fixture) forgetLanes() {
	f.Helper()
	if len(f.e.ForgetLanes) == 0 {
		f.Fatal("the engine has no ForgetLanes")
	}
	for _, text := range f.e.ForgetLanes {
		f.exec(text)
	}
}

// forgottenLanes: a process that runs on after the catalog lost its lanes.
func forgottenLanes(t *testing.T, e Engine) {
	f := start(t, e, nil)
	producer, consumer := f.other(nil), f.other(nil)
	name := func(i int) queue.NewJob {
		return queue.NewJob{Queue: fmt.Sprint("q", i), Kind: "k", Payload: []byte(fmt.Sprint(i))}
	}
	push := func(i int) {
		if _, err := producer.Push(f.ctx, name(i)); err != nil {
			t.Fatal(err)
		}
	}
	take := func(i int) {
		t.Helper()
		f.within(3*time.Second, fmt.Sprintf("the job of queue q%d is popped", i), func() bool {
			jobs, err := consumer.Pop(f.ctx, 10, &queue.PopOptions{Queues: []string{fmt.Sprint("q", i)}})
			f.must(err)
			for _, j := range jobs {
				if j.Queue != fmt.Sprint("q", i) || string(j.Payload) != fmt.Sprint(i) {
					t.Fatalf("popped the job %s as one of q%d", j.Payload, i)
				}
			}
			f.must(consumer.Ack(f.ctx, jobs...))
			return len(jobs) > 0
		})
	}
	for i := range 4 {
		push(i)
		take(i)
	}
	f.forgetLanes()
	// The producer's catalog still has the lanes, and each push uses it at once;
	// in the caller's transaction, too.
	for i := 3; i >= 2; i-- {
		push(i)
	}
	tx := f.begin()
	if _, err := producer.PushTx(f.ctx, tx, name(1)); err != nil {
		t.Fatal(err)
	}
	f.must(tx.Commit())
	push(0)
	time.Sleep(300 * time.Millisecond) // a catalog's life, by which no restore is faster
	for i := range 4 {
		take(i)
	}
}

// exchangedLanes: the lanes come back under each other's numbers, and as many
// as before, so that their number tells nothing.
func exchangedLanes(t *testing.T, e Engine) {
	f := start(t, e, nil)
	names := []string{"a", "b", "c"}
	push := func(q *queue.Queue, name string) {
		if _, err := q.Push(f.ctx, queue.NewJob{Queue: name, Kind: "k", Payload: []byte(name)}); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range names {
		push(f.q, name)
	}
	old := f.other(nil)
	for _, name := range names {
		jobs, err := old.Pop(f.ctx, 1, &queue.PopOptions{Queues: []string{name}})
		f.must(err)
		if len(jobs) != 1 {
			t.Fatalf("popped %d jobs of %s", len(jobs), name)
		}
		f.must(old.Ack(f.ctx, jobs...))
	}
	f.forgetLanes()
	young := f.other(nil)
	for _, name := range []string{"c", "a", "b"} {
		push(young, name)
	}
	time.Sleep(300 * time.Millisecond) // a catalog's life
	for _, name := range names {
		f.within(3*time.Second, "the job of "+name+" is popped", func() bool {
			jobs, err := old.Pop(f.ctx, 10, &queue.PopOptions{Queues: []string{name}})
			f.must(err)
			for _, j := range jobs {
				if string(j.Payload) != name || j.Queue != name {
					t.Fatalf("a pop of %s returned a job of %s as one of %s", name, j.Payload, j.Queue)
				}
			}
			return len(jobs) > 0
		})
	}
}

// laneInTx: a lane that is created in a transaction is not cached before that
// commits, and is found by everyone afterwards.
func laneInTx(t *testing.T, e Engine) {
	f := start(t, e, nil)
	consumer := f.other(nil)
	take := func(q string, priority int) {
		t.Helper()
		f.within(3*time.Second, "the job is popped", func() bool {
			jobs, err := consumer.Pop(f.ctx, 10, &queue.PopOptions{Queues: []string{q}})
			f.must(err)
			if len(jobs) > 0 && (len(jobs) != 1 || jobs[0].Queue != q || jobs[0].Priority != priority) {
				t.Fatalf("popped %+v", jobs[0])
			}
			f.must(consumer.Ack(f.ctx, jobs...))
			return len(jobs) == 1
		})
	}
	for i := range 3 {
		tx := f.begin()
		_, err := f.q.PushTx(f.ctx, tx, queue.NewJob{Queue: "back", Kind: "k", Priority: i})
		f.must(err)
		f.must(tx.Rollback())
		// The same lane right after, in each way of pushing.
		switch i {
		case 0:
			_, err = f.q.Push(f.ctx, queue.NewJob{Queue: "back", Kind: "k", Priority: i})
		case 1:
			tx := f.begin()
			_, err = f.q.PushTx(f.ctx, tx, queue.NewJob{Queue: "back", Kind: "k", Priority: i})
			f.must(tx.Commit())
		case 2:
			_, err = f.q.PushMany(f.ctx, []queue.NewJob{{Queue: "back", Kind: "k", Priority: i}}, &queue.PushOptions{PushID: "p"})
		}
		f.must(err)
		take("back", i)
	}
	// And one that commits late: nobody sees it before.
	tx := f.begin()
	_, err := f.q.PushTx(f.ctx, tx, queue.NewJob{Queue: "forth", Kind: "k"})
	f.must(err)
	if jobs, err := consumer.Pop(f.ctx, 10, &queue.PopOptions{Queues: []string{"forth"}}); err != nil || len(jobs) != 0 {
		t.Fatalf("popped %d jobs before the commit, %v", len(jobs), err)
	}
	if names, err := consumer.Queues(f.ctx); err != nil || len(names) != 1 {
		t.Fatalf("queues before the commit: %q, %v", names, err)
	}
	f.must(tx.Commit())
	take("forth", 0)
}
