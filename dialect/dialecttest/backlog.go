package dialecttest

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/sqlqueue/queue"
)

func init() {
	add("backlog: a bound refuses", backlogRefuses)
	add("backlog: a push waits for room", backlogWaits)
	add("backlog: a queue's own bound", backlogSetting)
}

func backlogRefuses(t *testing.T, e Engine) {
	f := start(t, e, &queue.Options{MaxBacklog: 5})
	f.push(jobs(3)...)
	f.push(queue.NewJob{Queue: "q", Kind: "k", Delay: time.Hour, Priority: 2})
	held := f.popOne() // running jobs count, too
	f.push(job("fifth"))

	_, err := f.q.Push(f.ctx, job("sixth"))
	f.wantErr("the sixth job", err, queue.ErrBacklogFull)
	if text := err.Error(); !strings.Contains(text, `"q"`) || !strings.Contains(text, "bound is 5") {
		t.Fatalf("%q does not name the queue and its bound", text)
	}
	tx := f.begin()
	_, err = f.q.PushTx(f.ctx, tx, job("sixth"))
	f.wantErr("the sixth job, in a transaction", err, queue.ErrBacklogFull)
	p := must(f.q.PushTx(f.ctx, tx, queue.NewJob{Queue: "r", Kind: "k"}))(f) // which goes on
	f.must(tx.Commit())
	f.wantState(p.ID, queue.Ready)

	// All or none, though one of the two queues has room.
	_, err = f.q.PushMany(f.ctx, []queue.NewJob{{Queue: "s", Kind: "k"}, job("sixth")}, nil)
	f.wantErr("a push to two queues", err, queue.ErrBacklogFull)
	same(f, "jobs", len(f.list(queue.Filter{})), 6)
	f.wantStats(3, 1, 1, 0)

	f.must(f.q.Ack(f.ctx, held))
	f.within(soon, "a push has room again", func() bool {
		_, err := f.q.Push(f.ctx, job("again"))
		if err != nil {
			f.wantErr("full", err, queue.ErrBacklogFull)
		}
		return err == nil
	})
	_, err = f.q.Push(f.ctx, job("one too many"))
	f.wantErr("full again", err, queue.ErrBacklogFull)
	f.wantStats(4, 1, 0, 0)

	// Another process counts what is there.
	_, err = f.other(&queue.Options{MaxBacklog: 5}).Push(f.ctx, job("x"))
	f.wantErr("another process", err, queue.ErrBacklogFull)
	must(f.other(nil).Push(f.ctx, job("x")))(f) // this one has no bound
}

func backlogWaits(t *testing.T, e Engine) {
	f := start(t, e, &queue.Options{MaxBacklog: 2})
	f.push(jobs(2)...)
	wait := &queue.PushOptions{WaitForRoom: true}
	short, cancel := context.WithTimeout(f.ctx, 100*time.Millisecond)
	defer cancel()
	_, err := f.q.PushMany(short, jobs(1), wait)
	f.wantErr("no room until the context ended", err, context.DeadlineExceeded)

	// What never fits is not waited for.
	_, err = f.q.PushMany(f.ctx, jobs(3), wait)
	f.wantErr("a push beyond the bound", err, queue.ErrBacklogFull)
	_, err = f.q.PushManyTx(f.ctx, nil, jobs(1), wait)
	f.wantInvalid("to wait in a transaction", err, "PushOptions.WaitForRoom")
	f.wantStats(2, 0, 0, 0)

	done := make(chan error, 1)
	go func() {
		_, err := f.q.PushMany(f.ctx, jobs(1), wait)
		done <- err
	}()
	select {
	case err := <-done:
		t.Fatalf("the push did not wait: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	out := f.other(nil)
	got := f.popSoon(out, 1)
	select {
	case err := <-done:
		t.Fatalf("the push did not wait while the job was running: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	f.must(out.Ack(f.ctx, got...))
	select {
	case err := <-done:
		f.must(err)
	case <-time.After(2 * time.Second):
		t.Fatal("the push still waits though there is room")
	}
	f.wantStats(2, 0, 0, 0)
}

func backlogSetting(t *testing.T, e Engine) {
	f := start(t, e, nil)
	bounded := f.other(&queue.Options{MaxBacklog: 1})
	refuses := func(q *queue.Queue) bool {
		p, err := q.Push(f.ctx, job("x"))
		if err != nil {
			f.wantErr("full", err, queue.ErrBacklogFull)
			return true
		}
		f.must(f.q.Cancel(f.ctx, p.ID))
		return false
	}
	f.push(jobs(2)...)
	same(f, "no bound refuses", refuses(f.q), false)
	same(f, "the options' bound refuses", refuses(bounded), true)

	f.must(f.q.Configure(f.ctx, "q", queue.Settings{MaxBacklog: ptr(int64(2))}))
	same(f, "the queue's bound refuses at once here", refuses(f.q), true)
	f.must(f.q.Configure(f.ctx, "q", queue.Settings{MaxBacklog: ptr(int64(3))}))
	f.within(within1s, "another process obeys a wider bound", func() bool { return !refuses(bounded) })
	f.must(f.q.Configure(f.ctx, "q", queue.Settings{MaxBacklog: ptr(int64(0))}))
	f.within(within1s, "no bound", func() bool {
		_, err := bounded.PushMany(f.ctx, jobs(20), nil)
		return err == nil
	})
	f.must(f.q.Configure(f.ctx, "q", queue.Settings{MaxBacklog: ptr(int64(-1))}))
	f.within(within1s, "the options' bound again", func() bool { return refuses(bounded) })
	same(f, "no bound refuses", refuses(f.q), false)

	// A transaction obeys as well, in a process that does nothing else.
	txOnly := f.other(nil)
	refusesTx := func() bool {
		tx := f.begin()
		defer tx.Rollback()
		_, err := txOnly.PushTx(f.ctx, tx, job("x"))
		if err != nil {
			f.wantErr("full", err, queue.ErrBacklogFull)
		}
		return err != nil
	}
	same(f, "a transaction, no bound", refusesTx(), false)
	f.must(f.q.Configure(f.ctx, "q", queue.Settings{MaxBacklog: ptr(int64(2))}))
	f.within(within1s, "a transaction is refused", refusesTx)
	must(txOnly.Get(f.ctx, f.list(queue.Filter{Queue: "q"})[0].ID))(f) // the pool's cache is filled …
	_, err := txOnly.Push(f.ctx, job("x"))
	f.wantErr("full", err, queue.ErrBacklogFull)
	f.must(f.q.Configure(f.ctx, "q", queue.Settings{MaxBacklog: ptr(int64(0))}))
	f.within(within1s, "a transaction is taken again", func() bool { return !refusesTx() }) // … and obeys still
}
