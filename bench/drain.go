package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sqlqueue/queue"
)

// A Drain fills fresh tables and takes the time until all jobs are popped and
// acked. The fill, and what brings the table to rest after it, lie outside.
type Drain struct {
	Jobs      int
	Payload   int // bytes of each
	Consumers int // of each process
	Batch     int
	// Conns of each process's pool. Default: Consumers.
	Conns int
	// Shards is Options.Shards. Default 1.
	Shards int
	// Processes that drain at the same time. 0: this one. Otherwise so many
	// others; see RunProcesses.
	Processes int
	// Bare drains without the library; see RunBare.
	Bare bool
	// Due drains jobs that come back: each was popped and failed once before, and
	// is due again.
	Due bool
	// Hold is what another session holds from before the fill; see Target.Hold.
	Hold string
}

// A DrainResult is what a Drain measured.
type DrainResult struct {
	Result
	// Filled is how long the fill took.
	Filled time.Duration
	// DeadRows is how many the server says there are in the table of jobs at the
	// end, or how many transactions left them, with a Hold; -1 without, or if it
	// does not tell.
	DeadRows int64
}

const (
	drainQueue = "drain"
	// lost is for how long no job may be found before a drain fails.
	lost = time.Minute
)

// Run drops the target's tables, makes them anew, and leaves them empty.
func (d Drain) Run(ctx context.Context, t Target) (DrainResult, error) {
	out := DrainResult{DeadRows: -1}
	if d.Bare && (d.Due || d.Processes > 0) {
		return out, errors.New("bench: the bare loop knows ready jobs and one process only")
	}
	conns := d.Conns
	if conns == 0 {
		conns = d.Consumers
	}
	db, err := t.Open(conns)
	if err != nil {
		return out, err
	}
	defer db.Close()
	if err := t.Drop(ctx, db); err != nil {
		return out, err
	}
	q, err := t.Queue(db, &queue.Options{Shards: d.Shards})
	if err != nil {
		return out, err
	}
	defer q.Close()
	if err := q.Migrate(ctx); err != nil {
		return out, err
	}
	loop := Loop{Queue: drainQueue, Consumers: d.Consumers, Batch: d.Batch}
	if err := loop.Warm(ctx, q); err != nil {
		return out, err
	}
	if d.Hold != "" {
		release, err := t.Hold(ctx, d.Hold)
		if err != nil {
			return out, err
		}
		defer release()
	}
	began := time.Now()
	if _, err := (Fill{Queue: loop.Queue, Jobs: d.Jobs, Payload: d.Payload}).Run(ctx, q); err != nil {
		return out, err
	}
	if d.Due {
		if err := d.failAll(ctx, q, loop, time.Since(began)); err != nil {
			return out, err
		}
	}
	out.Filled = time.Since(began)
	if err := t.Settle(ctx, db); err != nil {
		return out, err
	}
	loop.Jobs, loop.Quiet = int64(d.Jobs), lost
	switch {
	case d.Processes > 0:
		out.Result, err = loop.RunProcesses(ctx, t, d.Processes, conns, d.Shards)
	case d.Bare:
		out.Result, err = loop.RunBare(ctx, t, db)
	default:
		out.Result, err = loop.Run(ctx, q)
	}
	if err != nil {
		return out, err
	}
	if out.Jobs != int64(d.Jobs) {
		return out, fmt.Errorf("bench: %d of %d jobs were found", out.Jobs, d.Jobs)
	}
	if d.Hold != "" && t.Engine.deadRows != nil {
		// A connection that is closed has told the server what it did.
		q.Close()
		db.Close()
		if out.DeadRows, err = t.deadRows(ctx); err != nil {
			return out, err
		}
	}
	return out, nil
}

// failAll pops every job once and fails it, and returns when all are due again.
// They come due at one time, by when all should have failed: those that come
// back too early wait once more.
func (d Drain) failAll(ctx context.Context, q *queue.Queue, loop Loop, filled time.Duration) error {
	const again = 200 * time.Millisecond
	cause := errors.New("try again")
	due := time.Now().Add(300*time.Millisecond + 3*filled)
	opts := &queue.PopOptions{Queues: []string{loop.Queue}}
	loop.Jobs, loop.Quiet = int64(d.Jobs), lost
	result, err := loop.run(ctx, func(int) cycle {
		return func(ctx context.Context, n int) (int, error) {
			jobs, err := q.Pop(ctx, n, opts)
			if err != nil || len(jobs) == 0 {
				return 0, err
			}
			wait := max(time.Until(due), again)
			first := 0
			failures := make([]queue.Failure, len(jobs))
			for i, j := range jobs {
				if j.Attempt == 1 {
					first++
				}
				failures[i] = queue.Failure{Job: j, Err: cause, FailOptions: queue.FailOptions{RetryIn: wait}}
			}
			return first, q.FailMany(ctx, failures)
		}
	})
	if err == nil && result.Jobs != int64(d.Jobs) {
		err = fmt.Errorf("bench: %d of %d jobs were found", result.Jobs, d.Jobs)
	}
	time.Sleep(max(time.Until(due), again) + 50*time.Millisecond)
	return err
}
