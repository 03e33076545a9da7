package dialecttest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/sqlqueue/queue"
)

// An operation is a call that changes something, to be broken at each of its
// steps. prepare sets its stage through the fixture's own, sound, pool. The call
// goes through a pool that fails. effect looks at what became of it: 0 nothing,
// 1 what the call says, anything else what must never be.
type operation struct {
	name    string
	prepare func(f *fixture, mark string) (call func(context.Context, *queue.Queue) error, effect func() int)
	// again is what the call is answered with when it took effect before; nil if
	// it then says so again.
	again error
	// grows: when repeated, it takes effect again. Such a call is not harmless.
	grows bool
}

// operations are the library's own transactions, those of one statement and
// those of several.
var operations = []operation{
	{name: "push", grows: true, prepare: pushOp(1, "q", nil)},
	{name: "push of a new queue", grows: true, prepare: func(f *fixture, mark string) (func(context.Context, *queue.Queue) error, func() int) {
		return pushOp(1, "new "+mark, nil)(f, mark)
	}},
	{name: "push many", grows: true, prepare: pushOp(20, "q", nil)},
	{name: "push with an id", prepare: pushOp(20, "q", &queue.PushOptions{})},
	{name: "ack", again: queue.ErrLeaseLost, prepare: leaseOp("q", 1, ackOp)},
	{name: "ack of two pops", again: queue.ErrLeaseLost, prepare: leaseOp("q", 2, ackOp)},
	{name: "ack into the archive", again: queue.ErrLeaseLost, prepare: leaseOp("kept", 2, ackOp)},
	{name: "fail", again: queue.ErrLeaseLost, prepare: leaseOp("q", 1, func(ctx context.Context, q *queue.Queue, held []*queue.Job) error {
		return q.Fail(ctx, held[0], errBoom, &queue.FailOptions{RetryIn: time.Hour})
	})},
	{name: "fail many", again: queue.ErrLeaseLost, prepare: leaseOp("q", 2, func(ctx context.Context, q *queue.Queue, held []*queue.Job) error {
		return q.FailMany(ctx, []queue.Failure{
			{Job: held[0], Err: errBoom, FailOptions: queue.FailOptions{RetryIn: time.Hour}},
			{Job: held[1], Err: errBoom, FailOptions: queue.FailOptions{Dead: true}},
		})
	})},
	{name: "release", again: queue.ErrLeaseLost, prepare: leaseOp("q", 3, func(ctx context.Context, q *queue.Queue, held []*queue.Job) error {
		return q.Release(ctx, held...)
	})},
	{name: "cancel", again: queue.ErrNotFound, prepare: jobOp("q", queue.NewJob{UniqueKey: "key"}, func(ctx context.Context, q *queue.Queue, id int64) error {
		return q.Cancel(ctx, id)
	}, func(i *queue.JobInfo) bool { return i == nil })},
	{name: "cancel into the archive", again: queue.ErrNotWaiting, prepare: jobOp("kept", queue.NewJob{UniqueKey: "key"}, func(ctx context.Context, q *queue.Queue, id int64) error {
		return q.Cancel(ctx, id)
	}, func(i *queue.JobInfo) bool { return i != nil && i.State == queue.Cancelled })},
	{name: "reprioritize", prepare: jobOp("q", queue.NewJob{}, func(ctx context.Context, q *queue.Queue, id int64) error {
		return q.Reprioritize(ctx, id, 5)
	}, func(i *queue.JobInfo) bool { return i != nil && i.Priority == 5 })},
	{name: "reschedule", prepare: jobOp("q", queue.NewJob{}, func(ctx context.Context, q *queue.Queue, id int64) error {
		return q.Reschedule(ctx, id, time.Hour)
	}, func(i *queue.JobInfo) bool { return i != nil && i.State == queue.Delayed })},
	{name: "redrive", again: queue.ErrNotFound, prepare: redriveOp},
	{name: "configure", prepare: func(f *fixture, mark string) (func(context.Context, *queue.Queue) error, func() int) {
		return func(ctx context.Context, q *queue.Queue) error { return q.Pause(ctx, mark) },
			func() int {
				names, err := f.q.Queues(f.ctx)
				f.must(err)
				for _, name := range names {
					if name != mark {
						continue
					}
					if s, err := f.q.Stats(f.ctx, mark); err != nil || !s.Paused {
						return -1 // known, but not as set
					}
					return 1
				}
				return 0
			}
	}},
	{name: "purge", prepare: func(f *fixture, mark string) (func(context.Context, *queue.Queue) error, func() int) {
		j, err := f.q.PopID(f.ctx, f.push(queue.NewJob{Queue: "kept", Kind: mark})[0].ID, time.Hour)
		f.must(err)
		f.must(f.q.Ack(f.ctx, j))
		return func(ctx context.Context, q *queue.Queue) error {
			_, err := q.Purge(ctx, queue.Purge{Queue: "kept", States: []queue.State{queue.Done}})
			return err
		}, func() int { return 1 - len(f.list(queue.Filter{Kind: mark})) }
	}},
}

func ackOp(ctx context.Context, q *queue.Queue, held []*queue.Job) error { return q.Ack(ctx, held...) }

// pushOp pushes n jobs of the kind mark; with opts, under that push id.
func pushOp(n int, name string, opts *queue.PushOptions) func(*fixture, string) (func(context.Context, *queue.Queue) error, func() int) {
	return func(f *fixture, mark string) (func(context.Context, *queue.Queue) error, func() int) {
		batch := make([]queue.NewJob, n)
		for i := range batch {
			batch[i] = queue.NewJob{Queue: name, Kind: mark, Priority: i % 2}
		}
		opts := opts // this run's own: cases run beside one another
		if opts != nil {
			opts = &queue.PushOptions{PushID: mark}
		}
		return func(ctx context.Context, q *queue.Queue) error {
				_, err := q.PushMany(ctx, batch, opts)
				return err
			}, func() int {
				stored := len(f.list(queue.Filter{Kind: mark}))
				if stored%n != 0 {
					return -1
				}
				return stored / n
			}
	}
}

// leaseOp settles leases, each with a token of its own. The effect is on want of
// the four.
func leaseOp(name string, want int, settle func(context.Context, *queue.Queue, []*queue.Job) error) func(*fixture, string) (func(context.Context, *queue.Queue) error, func() int) {
	return func(f *fixture, mark string) (func(context.Context, *queue.Queue) error, func() int) {
		var held []*queue.Job
		for range 4 {
			j, err := f.q.PopID(f.ctx, f.push(queue.NewJob{Queue: name, Kind: mark})[0].ID, time.Hour)
			f.must(err)
			held = append(held, j)
		}
		return func(ctx context.Context, q *queue.Queue) error { return settle(ctx, q, held[:want]) },
			func() int {
				changed := 4
				for _, i := range f.list(queue.Filter{Kind: mark}) {
					if i.State == queue.Running {
						changed--
					}
					if len(i.Errors) > 1 {
						return -1
					}
				}
				switch changed {
				case 0:
					return 0
				case want:
					return 1
				}
				return -1
			}
	}
}

// jobOp changes one waiting job.
func jobOp(name string, like queue.NewJob, change func(context.Context, *queue.Queue, int64) error, changed func(*queue.JobInfo) bool) func(*fixture, string) (func(context.Context, *queue.Queue) error, func() int) {
	return func(f *fixture, mark string) (func(context.Context, *queue.Queue) error, func() int) {
		like := like
		like.Queue, like.Kind = name, mark
		if like.UniqueKey != "" {
			like.UniqueKey = mark
		}
		id := f.push(like)[0].ID
		return func(ctx context.Context, q *queue.Queue) error { return change(ctx, q, id) },
			func() int {
				found := f.list(queue.Filter{Kind: mark})
				switch {
				case len(found) > 1:
					return -1
				case len(found) == 0:
					return one(changed(nil))
				}
				return one(changed(&found[0]))
			}
	}
}

// redriveOp brings back a dead job that has a unique key.
func redriveOp(f *fixture, mark string) (func(context.Context, *queue.Queue) error, func() int) {
	id := f.push(queue.NewJob{Queue: "q", Kind: mark, UniqueKey: mark})[0].ID
	j, err := f.q.PopID(f.ctx, id, time.Minute)
	f.must(err)
	f.must(f.q.Fail(f.ctx, j, errBoom, &queue.FailOptions{Dead: true}))
	return func(ctx context.Context, q *queue.Queue) error {
			_, _, err := q.Redrive(ctx, queue.Redrive{ID: id})
			return err
		}, func() int {
			found := f.list(queue.Filter{Kind: mark})
			if len(found) != 1 {
				return -1
			}
			return one(found[0].State == queue.Ready)
		}
}

// settled makes sure of what the call is answered with when it is repeated over
// a sound connection, and of its effect in the end.
func (o operation) settled(t *testing.T, f *fixture, call func(context.Context, *queue.Queue) error, effect func() int, before int) {
	t.Helper()
	err := call(f.ctx, f.q)
	for began := time.Now(); before == 0 && err != nil && time.Since(began) < 5*time.Second; err = call(f.ctx, f.q) {
		time.Sleep(5 * time.Millisecond) // until the server has noticed that the connection is gone
	}
	switch {
	case before == 1 && o.again != nil && !errors.Is(err, o.again):
		t.Errorf("%s, repeated after it took effect: %v, want %v", o.name, err, o.again)
	case (before == 0 || o.again == nil) && err != nil:
		t.Errorf("%s, repeated: %v", o.name, err)
	}
	want := 1
	if o.grows {
		want += before
	}
	if n := effect(); n != want {
		t.Errorf("%s: after the repetition the effect is %d, want %d", o.name, n, want)
	}
}
