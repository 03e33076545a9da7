package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sqlqueue/queue"
)

// A Loop is a closed loop: each consumer pops a batch, acks it, and only then
// pops again. The jobs do no work, so its rate is the most that the queue can
// carry with so many consumers, and its latency is that of the queue alone.
type Loop struct {
	Queue     string
	Consumers int
	Batch     int
	// Lease of each pop. Default queue.DefaultLease.
	Lease time.Duration
	// Jobs ends the loop when so many jobs are acked. No more are popped.
	Jobs int64
	// Quiet, instead of Jobs, ends the loop when none of its pops has found a job
	// for so long. The time measured ends with the last ack.
	Quiet time.Duration
	// Duration ends the loop after so long, whatever else.
	Duration time.Duration
	// Acked, if set, is told the size of each batch that was acked. It is called
	// by all consumers.
	Acked func(n int) `json:"-"`
}

// Run lets the consumers go and waits for their end. It ends early with ctx, or
// with an error of any consumer; the result is then of what was done until
// then. A cycle under way is finished even when ctx ends, for two seconds.
func (l Loop) Run(ctx context.Context, q *queue.Queue) (Result, error) {
	before := retriesOf(q)
	opts := &queue.PopOptions{Queues: []string{l.Queue}, Lease: l.Lease}
	result, err := l.run(ctx, func(int) cycle {
		return func(ctx context.Context, n int) (int, error) {
			jobs, err := q.Pop(ctx, n, opts)
			if err != nil || len(jobs) == 0 {
				return 0, err
			}
			return len(jobs), q.Ack(ctx, jobs...)
		}
	})
	result.Retries = retriesOf(q).plus(before, -1)
	return result, err
}

// A cycle claims up to n jobs and deletes them.
type cycle func(ctx context.Context, n int) (int, error)

// An empty pop is followed by a pause, which grows while there is nothing.
const (
	firstPause = time.Millisecond
	lastPause  = 16 * time.Millisecond
)

func (l Loop) run(ctx context.Context, consumer func(i int) cycle) (Result, error) {
	if l.Consumers < 1 || l.Batch < 1 {
		return Result{}, fmt.Errorf("bench: a loop of %d consumers × %d", l.Consumers, l.Batch)
	}
	// Cycles under way get some time after ctx ends, so that what was popped is
	// acked and counted.
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	defer context.AfterFunc(ctx, func() {
		time.AfterFunc(2*time.Second, stop)
	})()

	var (
		mu      sync.Mutex
		result  = Result{Latency: &Latency{}}
		errs    = make([]error, l.Consumers)
		wg      sync.WaitGroup
		start   = make(chan struct{})
		failed  atomic.Bool
		quota   atomic.Int64 // jobs that may still be asked for
		acked   atomic.Int64
		lastAck atomic.Int64 // nanoseconds since the start
		began   time.Time
	)
	quota.Store(l.Jobs)
	ended := func() bool {
		return ctx.Err() != nil || failed.Load() ||
			l.Jobs > 0 && acked.Load() >= l.Jobs ||
			l.Duration > 0 && time.Since(began) >= l.Duration ||
			l.Quiet > 0 && time.Since(began)-time.Duration(lastAck.Load()) >= l.Quiet
	}
	for i := range l.Consumers {
		do := consumer(i)
		wg.Go(func() {
			var own Result
			own.Latency = &Latency{}
			defer func() {
				mu.Lock()
				result.sum(own)
				mu.Unlock()
			}()
			<-start
			pause := firstPause
			for !ended() {
				n := l.Batch
				if l.Jobs > 0 {
					if n = take(&quota, l.Batch); n == 0 {
						time.Sleep(firstPause) // others hold the last jobs, or will give some back
						continue
					}
				}
				t := time.Now()
				got, err := do(work, n)
				end := time.Now()
				if l.Jobs > 0 && got < n {
					quota.Add(int64(n - got))
				}
				if err != nil {
					if ctx.Err() == nil {
						failed.Store(true)
						errs[i] = err
					}
					return
				}
				own.Pops++
				if got == 0 {
					own.EmptyPops++
					time.Sleep(pause)
					pause = min(2*pause, lastPause)
					continue
				}
				pause = firstPause
				own.Latency.Record(end.Sub(t))
				own.Jobs += int64(got)
				acked.Add(int64(got))
				atomicMax(&lastAck, int64(end.Sub(began)))
				if l.Acked != nil {
					l.Acked(got)
				}
			}
		})
	}
	began = time.Now()
	close(start)
	wg.Wait()
	result.Began = began
	result.Elapsed = time.Duration(lastAck.Load())
	result.Ended = began.Add(result.Elapsed)
	if err := firstError(errs); err != nil {
		return result, err
	}
	return result, ctx.Err()
}

// take reserves up to n of what is left.
func take(quota *atomic.Int64, n int) int {
	for {
		left := quota.Load()
		n := min(int64(n), left)
		if n <= 0 {
			return 0
		}
		if quota.CompareAndSwap(left, left-n) {
			return int(n)
		}
	}
}

func atomicMax(a *atomic.Int64, v int64) {
	for {
		old := a.Load()
		if v <= old || a.CompareAndSwap(old, v) {
			return
		}
	}
}

// Warm lets every connection and statement that a loop will use come into being
// before anything is measured, on a queue of its own that is empty afterwards.
func (l Loop) Warm(ctx context.Context, q *queue.Queue) error {
	l.Queue = fmt.Sprintf("%s.warm%d", l.Queue, os.Getpid()) // for other processes warm up, too
	l.Jobs, l.Batch = int64(4*l.Consumers), 1
	l.Acked, l.Quiet, l.Duration = nil, 0, time.Minute
	n, err := Fill{Queue: l.Queue, Jobs: int(l.Jobs), Producers: 1}.Run(ctx, q)
	if err != nil {
		return err
	}
	result, err := l.Run(ctx, q)
	if err == nil && result.Jobs != int64(n) {
		err = errors.New("bench: jobs that were pushed are not found within a minute")
	}
	return err
}
