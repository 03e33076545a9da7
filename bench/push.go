package bench

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sqlqueue/queue"
)

// A Push measures pushes of a fixed size.
type Push struct {
	Queue     string
	Producers int // that push at the same time, each in a closed loop
	Batch     int // jobs in a call
	Calls     int // of all producers together
	Payload   int // bytes of each job's payload
}

// Run pushes; the latency is that of the calls, and Pops stays 0.
func (p Push) Run(ctx context.Context, q *queue.Queue) (Result, error) {
	var (
		mu     sync.Mutex
		wg     sync.WaitGroup
		calls  atomic.Int64
		before = retriesOf(q)
		result = Result{Latency: &Latency{}}
		errs   = make([]error, p.Producers)
		jobs   = make([]queue.NewJob, p.Batch)
	)
	for i := range jobs {
		jobs[i] = queue.NewJob{Queue: p.Queue, Kind: Kind, Payload: Payload(p.Payload)}
	}
	result.Began = time.Now()
	for i := range p.Producers {
		wg.Go(func() {
			own := &Latency{}
			n := int64(0)
			for errs[i] == nil && calls.Add(1) <= int64(p.Calls) {
				began := time.Now()
				if _, errs[i] = q.PushMany(ctx, jobs, nil); errs[i] == nil {
					own.Record(time.Since(began))
					n += int64(p.Batch)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			result.Latency.Merge(own)
			result.Jobs += n
		})
	}
	wg.Wait()
	result.Ended = time.Now()
	result.Elapsed = result.Ended.Sub(result.Began)
	result.Retries = retriesOf(q).plus(before, -1)
	return result, firstError(errs)
}
