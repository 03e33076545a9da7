package bench

import (
	"time"

	"github.com/sqlqueue/queue"
)

// A Result is what a closed loop measured.
type Result struct {
	// Jobs that were popped and acked.
	Jobs int64 `json:"jobs"`
	// Began is when the consumers were let go, Ended when the last ack returned.
	Began time.Time `json:"began"`
	Ended time.Time `json:"ended"`
	// Elapsed is the time measured: from Began to Ended, or the sum over rounds.
	Elapsed time.Duration `json:"elapsed_ns"`
	// Latency of cycles: from the call of a pop that found jobs to the return of
	// their ack. What a cycle waits for a connection or in a retry is part of it.
	Latency *Latency `json:"latency"`
	// Pops are calls of Pop; EmptyPops those that found nothing.
	Pops      int64 `json:"pops"`
	EmptyPops int64 `json:"empty_pops"`
	// Retries are transactions of the library's own that were run again.
	Retries Retries `json:"retries"`
	// Memory is the largest resident size of the process so far, in bytes, where
	// the system tells it. Only RunProcesses sets it.
	Memory int64 `json:"memory,omitempty"`
}

// Retries by cause.
type Retries struct {
	Deadlock      int64 `json:"deadlock"`
	Serialization int64 `json:"serialization"`
	Busy          int64 `json:"busy"`
}

// Total of all causes.
func (r Retries) Total() int64 { return r.Deadlock + r.Serialization + r.Busy }

func retriesOf(q *queue.Queue) Retries { return Retries(q.Counters().Retries) }

func (r Retries) plus(o Retries, sign int64) Retries {
	return Retries{r.Deadlock + sign*o.Deadlock, r.Serialization + sign*o.Serialization, r.Busy + sign*o.Busy}
}

// Rate is jobs per second of the time measured.
func (r Result) Rate() float64 {
	if r.Elapsed <= 0 {
		return 0
	}
	return float64(r.Jobs) / r.Elapsed.Seconds()
}

// sum adds counts and distributions, and leaves the times alone.
func (r *Result) sum(o Result) {
	r.Jobs += o.Jobs
	r.Pops += o.Pops
	r.EmptyPops += o.EmptyPops
	r.Retries = r.Retries.plus(o.Retries, 1)
	r.Memory = max(r.Memory, o.Memory)
	if r.Latency == nil {
		r.Latency = &Latency{}
	}
	r.Latency.Merge(o.Latency)
	if r.Began.IsZero() || !o.Began.IsZero() && o.Began.Before(r.Began) {
		r.Began = o.Began
	}
	if o.Ended.After(r.Ended) {
		r.Ended = o.Ended
	}
}

// Then adds a result that was measured after this one.
func (r *Result) Then(o Result) {
	r.sum(o)
	r.Elapsed += o.Elapsed
}

// Beside adds a result that was measured at the same time as this one.
func (r *Result) Beside(o Result) {
	r.sum(o)
	r.Elapsed = r.Ended.Sub(r.Began)
}
