package dialecttest

import (
	"os"
	"time"

	"github.com/sqlqueue/queue"
)

// heavy reports whether the cases with a million rows are to run.
func heavy() bool { return os.Getenv("QUEUE_TEST_HEAVY") == "1" }

// bulk pushes n jobs of queue "q", in large batches.
func (f *fixture) bulk(n int, like queue.NewJob) {
	f.Helper()
	for n > 0 {
		batch := make([]queue.NewJob, min(n, queue.MaxPush))
		for i := range batch {
			batch[i] = like
		}
		f.push(batch...)
		n -= len(batch)
	}
}

// take pops n jobs of queue "q", in large batches, with a lease that outlasts
// the test.
func (f *fixture) take(n int) []*queue.Job {
	f.Helper()
	var out []*queue.Job
	for n > 0 {
		jobs, err := f.q.Pop(f.ctx, min(n, queue.MaxBatch), &queue.PopOptions{Queues: []string{"q"}, Lease: time.Hour})
		f.must(err)
		if len(jobs) == 0 {
			f.Fatalf("%d jobs are missing", n)
		}
		out = append(out, jobs...)
		n -= len(jobs)
	}
	return out
}

// drain acks whatever is in queue "q", and returns how many that were.
func (f *fixture) drain() (n int) {
	f.Helper()
	for {
		jobs := f.pop(queue.MaxBatch)
		f.must(f.q.Ack(f.ctx, jobs...))
		n += len(jobs)
		if len(jobs) == 0 {
			return n
		}
	}
}

// A busyLane is a lane that never runs empty while it is popped: the hard place
// for whatever a cursor has passed.
type busyLane struct {
	f     *fixture
	q     *queue.Queue
	n     int
	stock int
	pops  int // so far
	short int // of them, those that got less than they asked for
}

const busyLease = time.Minute

// busyLane fills queue "q", to be popped by a process of its own, n at a time.
func (f *fixture) busyLane(n int) *busyLane {
	f.Helper()
	b := &busyLane{f: f, q: f.other(nil), n: n}
	b.fill()
	// Until the cursor is well within.
	for range 5 {
		b.pop()
	}
	return b
}

func (b *busyLane) fill() {
	b.f.Helper()
	b.f.bulk(40*b.n, queue.NewJob{Queue: "q", Kind: "filler"})
	b.stock += 40 * b.n
}

// pop pops once, acks what only fills the lane, and returns the rest.
func (b *busyLane) pop() []*queue.Job {
	b.f.Helper()
	if b.stock < 20*b.n {
		b.fill()
	}
	jobs, err := b.q.Pop(b.f.ctx, b.n, &queue.PopOptions{Queues: []string{"q"}, Lease: busyLease})
	b.f.must(err)
	b.pops++
	if len(jobs) < b.n {
		b.short++
	}
	var rest, fillers []*queue.Job
	for _, j := range jobs {
		if j.Kind == "filler" {
			fillers = append(fillers, j)
		} else {
			rest = append(rest, j)
		}
	}
	b.stock -= len(fillers)
	b.f.must(b.q.Ack(b.f.ctx, fillers...))
	return rest
}

// wasBusy fails if pops came back short: then they found by other means.
func (b *busyLane) wasBusy() {
	b.f.Helper()
	if b.short > 0 {
		b.f.Errorf("%d of %d pops of the busy lane came back short: proves nothing", b.short, b.pops)
	}
}

// claimedAt is when a job was claimed with a lease, by the database's clock.
func claimedAt(j *queue.Job, lease time.Duration) time.Time { return j.LeasedUntil.Add(-lease) }
