package bench

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/sqlqueue/queue"
)

// Pops measures single pops at a backlog that is kept constant: what a pop took
// is acked, and pushed anew, outside the time measured.
type Pops struct {
	Queue   string
	Pops    int
	Batch   int
	Payload int // bytes of the jobs that are pushed anew
}

// Run returns the latency of the pops alone.
func (p Pops) Run(ctx context.Context, q *queue.Queue) (*Latency, error) {
	out := &Latency{}
	opts := &queue.PopOptions{Queues: []string{p.Queue}}
	again := make([]queue.NewJob, p.Batch)
	for i := range again {
		again[i] = queue.NewJob{Queue: p.Queue, Kind: Kind, Payload: Payload(p.Payload)}
	}
	for range p.Pops {
		began := time.Now()
		jobs, err := q.Pop(ctx, p.Batch, opts)
		out.Record(time.Since(began))
		if err != nil {
			return out, err
		}
		if len(jobs) != p.Batch {
			return out, fmt.Errorf("bench: popped %d jobs of %d from a backlog", len(jobs), p.Batch)
		}
		if err := q.Ack(ctx, jobs...); err != nil {
			return out, err
		}
		if _, err := q.PushMany(ctx, again, nil); err != nil {
			return out, err
		}
	}
	return out, nil
}

// EmptyPops measures pops that find nothing.
type EmptyPops struct {
	// Queues to pop from; empty: all.
	Queues []string
	Pops   int
	// Every is the pause between pops; 0: none.
	Every time.Duration
}

// An EmptyPop is what one costs on average.
type EmptyPop struct {
	Latency *Latency
	// Statements sent to the server, transactions' ends included.
	Statements float64
	// Server is the time that the server spent, or 0 where it does not tell.
	Server time.Duration
}

// Run measures. The pops use a queue of their own on one connection.
func (e EmptyPops) Run(ctx context.Context, t Target) (EmptyPop, error) {
	out := EmptyPop{Latency: &Latency{}}
	db, err := t.Open(2)
	if err != nil {
		return out, err
	}
	defer db.Close()
	rec := newRecorder(db)
	counted := sql.OpenDB(rec)
	defer counted.Close()
	counted.SetMaxOpenConns(1)
	q, err := t.Queue(counted, nil)
	if err != nil {
		return out, err
	}
	defer q.Close()
	opts := &queue.PopOptions{Queues: e.Queues}
	pop := func() error {
		jobs, err := q.Pop(ctx, 1, opts)
		if err == nil && len(jobs) > 0 {
			err = fmt.Errorf("bench: a pop that should be empty found %d jobs", len(jobs))
		}
		return err
	}
	for range 3 { // reads the catalog, prepares the claim
		if err := pop(); err != nil {
			return out, err
		}
	}
	rec.reset()
	var before time.Duration
	told := false
	if t.Engine.serverTime != nil {
		before, told = t.Engine.serverTime(ctx, db)
	}
	for range e.Pops {
		began := time.Now()
		if err := pop(); err != nil {
			return out, err
		}
		out.Latency.Record(time.Since(began))
		time.Sleep(e.Every)
	}
	out.Statements = float64(len(rec.since(nil))) / float64(e.Pops)
	if told {
		after, _ := t.Engine.serverTime(ctx, db)
		out.Server = (after - before) / time.Duration(e.Pops)
	}
	return out, nil
}
