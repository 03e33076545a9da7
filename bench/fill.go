package bench

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sqlqueue/queue"
)

// Kind is the kind of every job that the scenarios push.
const Kind = "bench"

// A Fill pushes a backlog in bulk.
type Fill struct {
	Queue string
	// Queues spreads the jobs over so many queues, named Queue and a number. 0:
	// one queue, named Queue.
	Queues  int
	Jobs    int
	Payload int           // bytes of each job's payload
	Delay   time.Duration // of each job; 0: ready at once
	// Batch is how many jobs go into a push. Default 2,500, or fewer so that a
	// push stays under 16 MiB.
	Batch int
	// Producers push at the same time. Default 2.
	Producers int
	// Progress, if set, is told how many jobs are stored so far. It is called by
	// several goroutines.
	Progress func(done int)
}

// Run pushes. When it ends early, through ctx or an error, some jobs may have
// been stored: the number is returned.
func (f Fill) Run(ctx context.Context, q *queue.Queue) (stored int, err error) {
	const bytes = 16 << 20
	batch := f.Batch
	if batch == 0 {
		batch = 2500
	}
	batch = max(1, min(batch, queue.MaxPush, bytes/max(1, f.Payload)))
	payload := Payload(f.Payload)
	var next, done atomic.Int64
	var wg sync.WaitGroup
	producers := f.Producers
	if producers == 0 {
		producers = 2
	}
	errs := make([]error, producers)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for p := range producers {
		wg.Go(func() {
			for ctx.Err() == nil {
				from := int(next.Add(int64(batch))) - batch
				n := min(batch, f.Jobs-from)
				if n <= 0 {
					return
				}
				jobs := make([]queue.NewJob, n)
				for i := range jobs {
					jobs[i] = queue.NewJob{Queue: f.queue(from + i), Kind: Kind, Payload: payload, Delay: f.Delay}
				}
				if _, err := q.PushMany(ctx, jobs, nil); err != nil {
					errs[p] = err
					cancel()
					return
				}
				if d := done.Add(int64(n)); f.Progress != nil {
					f.Progress(int(d))
				}
			}
			errs[p] = ctx.Err()
		})
	}
	wg.Wait()
	return int(done.Load()), firstError(errs)
}

func (f Fill) queue(i int) string {
	if f.Queues == 0 {
		return f.Queue
	}
	return f.Queue + strconv.Itoa(i%f.Queues)
}

// Payload returns n bytes that do not compress, the same ones each time.
func Payload(n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{1}).Read(b)
	return b
}

// firstError prefers a cause to the cancellation that it led to.
func firstError(errs []error) error {
	var cancelled error
	for _, err := range errs {
		switch {
		case err == nil:
		case errors.Is(err, context.Canceled):
			cancelled = err
		default:
			return err
		}
	}
	return cancelled
}
