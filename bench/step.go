package bench

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/sqlqueue/queue"
)

// A Step measures consumers at a standing backlog: in rounds, in each of which
// the consumers take up to half of the backlog away. Between rounds the clock
// stops, and the backlog is filled up again. So the backlog is between half of
// Backlog and all of it while anything is measured, pushes never compete with
// pops, and a fast database cannot run the step dry.
type Step struct {
	Loop
	// Backlog is how many jobs wait at the start of each round.
	Backlog int
	Payload int // bytes of each job's payload
	// Duration is how long to measure. The last round ends with it.
	Duration time.Duration
	// Limit starts no more rounds after so long in all, whatever was measured
	// until then. 0: none.
	Limit time.Duration
	// Filled and Measured, if set, are told how far the step is; Filled by several
	// goroutines, and Measured of jobs and time alone.
	Filled   func(done, of int)
	Measured func(sofar Result)
}

// A StepResult is what a step measured.
type StepResult struct {
	Result
	// Rounds of filling and measuring.
	Rounds int
	// Left is the backlog at the end.
	Left int
	// Short: the step came to its limit before it had measured for its duration.
	Short bool
}

// Run measures a step, on a queue that holds backlog jobs of its own making. It
// ends early with ctx or an error; the result is of what was measured until
// then.
func (s Step) Run(ctx context.Context, q *queue.Queue, backlog int) (StepResult, error) {
	out := StepResult{Left: backlog}
	out.Latency = &Latency{}
	began := time.Now()
	for out.Elapsed < s.Duration {
		if out.Rounds > 0 && s.Limit > 0 && time.Since(began) >= s.Limit {
			out.Short = true
			break
		}
		fill := Fill{Queue: s.Queue, Jobs: s.Backlog - out.Left, Payload: s.Payload}
		if s.Filled != nil {
			fill.Progress = func(done int) { s.Filled(done, fill.Jobs) }
		}
		stored, err := fill.Run(ctx, q)
		out.Left += stored
		if err != nil {
			return out, err
		}
		round := s.Loop
		round.Jobs = int64(max(1, out.Left-s.Backlog/2))
		round.Duration = s.Duration - out.Elapsed
		result, err := s.measure(ctx, q, round, out.Result)
		out.Then(result)
		out.Left -= int(result.Jobs)
		out.Rounds++
		if err != nil {
			return out, err
		}
		if result.Jobs == 0 {
			out.Elapsed += round.Duration // nothing was found for all that time
		}
	}
	return out, nil
}

// tellEvery is how often Measured is called.
const tellEvery = 100 * time.Millisecond

// measure runs a round and tells of it while it runs, beside the consumers: a
// terminal that is slow to write to must not hold them up.
func (s Step) measure(ctx context.Context, q *queue.Queue, round Loop, before Result) (Result, error) {
	if s.Measured == nil {
		return round.Run(ctx, q)
	}
	var acked atomic.Int64
	round.Acked = func(n int) { acked.Add(int64(n)) }
	began := time.Now()
	tell := func() {
		s.Measured(Result{Jobs: before.Jobs + acked.Load(), Elapsed: before.Elapsed + time.Since(began)})
	}
	done, told := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(told)
		ticker := time.NewTicker(tellEvery)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				tell()
			case <-done:
				tell()
				return
			}
		}
	}()
	result, err := round.Run(ctx, q)
	close(done)
	<-told
	return result, err
}
