package dialecttest

import (
	"sync"
	"testing"
	"time"

	"github.com/sqlqueue/queue"
)

func init() {
	add("push id: a repeated push stores nothing and gets the same answer", pushIDRepeat)
	add("push id: a second push waits for the first one's transaction", pushIDTx)
	add("push id: many processes push with it at once", pushIDConcurrent)
	add("push id: is forgotten after its life", pushIDLife)
	add("push id: a repeated push fits into a full queue", pushIDFull)
}

func pushIDRepeat(t *testing.T, e Engine) {
	f := start(t, e, nil)
	taken := f.push(queue.NewJob{Queue: "q", Kind: "k", UniqueKey: "u", Priority: -1})[0]
	batch := []queue.NewJob{
		job("one"),
		{Queue: "q", Kind: "k", UniqueKey: "u"}, // answered with the job above
		{Queue: "r", Kind: "k", Priority: 3, Headers: map[string]string{"a": "1", "b": "2", "c": "3"}, RunAt: time.Now().Add(time.Hour)},
	}
	opts := &queue.PushOptions{PushID: "id"}
	first := must(f.q.PushMany(f.ctx, batch, opts))(f)
	sameList(f, "duplicates", []bool{first[0].Duplicate, first[1].Duplicate, first[2].Duplicate}, []bool{false, true, false})
	same(f, "holder of the key", first[1].ID, taken.ID)

	restarted := f.other(&queue.Options{MaxAttempts: 3, Shards: 2}) // another process, with a pool and options of its own
	for what, q := range map[string]*queue.Queue{"same process": f.q, "another process": restarted} {
		sameList(f, what, must(q.PushMany(f.ctx, batch, opts))(f), first)
		tx := f.begin()
		sameList(f, what+", in a transaction", must(q.PushManyTx(f.ctx, tx, batch, opts))(f), first)
		f.must(tx.Commit())
	}
	same(f, "jobs", len(f.list(queue.Filter{})), 3)
	same(f, "counted", f.q.Counters().Pushed, 3)

	// What became of the jobs does not matter.
	f.must(f.q.Ack(f.ctx, f.pop(3)...))
	f.must(f.q.Cancel(f.ctx, first[2].ID))
	sameList(f, "after the ack", must(f.q.PushMany(f.ctx, batch, opts))(f), first)
	same(f, "jobs", len(f.list(queue.Filter{})), 0)

	// Anything else under this id is refused.
	for what, change := range map[string]func([]queue.NewJob) []queue.NewJob{
		"payload":  func(b []queue.NewJob) []queue.NewJob { b[0].Payload = []byte("other"); return b },
		"queue":    func(b []queue.NewJob) []queue.NewJob { b[0].Queue = "other"; return b },
		"kind":     func(b []queue.NewJob) []queue.NewJob { b[0].Kind = "other"; return b },
		"priority": func(b []queue.NewJob) []queue.NewJob { b[0].Priority++; return b },
		"order":    func(b []queue.NewJob) []queue.NewJob { b[0], b[1] = b[1], b[0]; return b },
		"fewer":    func(b []queue.NewJob) []queue.NewJob { return b[:2] },
		"more":     func(b []queue.NewJob) []queue.NewJob { return append(b, job("more")) },
	} {
		out, err := f.q.PushMany(f.ctx, change(append([]queue.NewJob(nil), batch...)), opts)
		f.wantErr(what, err, queue.ErrPushIDReused)
		same(f, "answers", len(out), 0)
	}
	same(f, "jobs", len(f.list(queue.Filter{})), 0)

	// Another id is another push.
	again := must(f.q.PushMany(f.ctx, batch, &queue.PushOptions{PushID: "id2"}))(f)
	for i, p := range again {
		if p.Duplicate || p.ID == first[i].ID {
			t.Fatalf("job %d under another push id: %+v", i, p)
		}
	}
}

func pushIDTx(t *testing.T, e Engine) {
	f := start(t, e, nil)
	out := f.other(nil)
	opts := &queue.PushOptions{PushID: "id"}
	type answer struct {
		pushed []queue.Pushed
		err    error
	}
	for _, commit := range []bool{false, true} {
		tx := f.begin()
		mine := must(f.q.PushManyTx(f.ctx, tx, jobs(2), opts))(f)
		sameList(f, "repeated in the same transaction", must(f.q.PushManyTx(f.ctx, tx, jobs(2), opts))(f), mine)
		second := make(chan answer, 1)
		go func() {
			pushed, err := out.PushMany(f.ctx, jobs(2), opts)
			second <- answer{pushed, err}
		}()
		select {
		case a := <-second:
			t.Fatalf("the second push did not wait for the first one: %+v", a)
		case <-time.After(100 * time.Millisecond):
		}
		if commit {
			f.must(tx.Commit())
		} else {
			f.must(tx.Rollback())
		}
		a := <-second
		f.must(a.err)
		if commit {
			sameList(f, "the second push", a.pushed, mine)
		}
		f.wantStats(2, 0, 0, 0)
		same(f, "counted by the second", out.Counters().Pushed, 2)

		// Begin anew, under another id.
		f.must(f.q.Ack(f.ctx, f.popSoon(f.q, 2)...))
		opts = &queue.PushOptions{PushID: "another"}
	}
}

func pushIDConcurrent(t *testing.T, e Engine) {
	f := start(t, e, nil)
	const processes, each = 3, 3
	answers := make([][]queue.Pushed, processes*each)
	var wg sync.WaitGroup
	for p := range processes {
		q := f.other(nil)
		for i := range each {
			wg.Go(func() {
				out, err := q.PushMany(f.ctx, jobs(50), &queue.PushOptions{PushID: "id"})
				if err != nil {
					t.Errorf("process %d: %v", p, err)
				}
				answers[p*each+i] = out
			})
		}
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	for _, a := range answers {
		same(f, "answers", len(a), 50)
		sameList(f, "answer", a, answers[0])
	}
	f.wantStats(50, 0, 0, 0)
}

func pushIDLife(t *testing.T, e Engine) {
	f := start(t, e, &queue.Options{PushIDLife: time.Second})
	first := must(f.q.PushMany(f.ctx, jobs(1), &queue.PushOptions{PushID: "id"}))(f)
	born := time.Now()
	_, err := f.q.PushMany(f.ctx, jobs(2), &queue.PushOptions{PushID: "id"})
	if time.Since(born) < time.Second {
		f.wantErr("before the end of its life", err, queue.ErrPushIDReused)
	}
	time.Sleep(time.Until(born.Add(1100 * time.Millisecond)))
	// Whoever pushes next clears it away.
	must(f.q.PushMany(f.ctx, jobs(1), &queue.PushOptions{PushID: "next"}))(f)
	again := must(f.q.PushMany(f.ctx, jobs(2), &queue.PushOptions{PushID: "id"}))(f)
	same(f, "answers", len(again), 2)
	if again[0].ID == first[0].ID {
		t.Fatal("the id is still remembered")
	}
}

func pushIDFull(t *testing.T, e Engine) {
	f := start(t, e, &queue.Options{MaxBacklog: 3})
	opts := &queue.PushOptions{PushID: "id"}
	first := must(f.q.PushMany(f.ctx, jobs(3), opts))(f)
	for what, q := range map[string]*queue.Queue{"same process": f.q, "another process": f.other(&queue.Options{MaxBacklog: 3})} {
		sameList(f, what, must(q.PushMany(f.ctx, jobs(3), opts))(f), first)
		_, err := q.PushMany(f.ctx, jobs(1), opts)
		f.wantErr(what+", other jobs", err, queue.ErrPushIDReused)
		_, err = q.PushMany(f.ctx, jobs(1), &queue.PushOptions{PushID: "another"})
		f.wantErr(what+", another id", err, queue.ErrBacklogFull)
	}
	f.wantStats(3, 0, 0, 0)
}
