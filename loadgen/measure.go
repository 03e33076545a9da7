package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/sqlqueue/queue"
	"github.com/sqlqueue/queue/bench"
	"github.com/sqlqueue/queue/loadgen/report"
	"github.com/sqlqueue/queue/loadgen/target"
)

const (
	queueName = "loadgen"
	// maxConns bounds the pool: a consumer beyond it waits for a connection, as in
	// a program of yours, and the wait is part of the latency.
	maxConns = 64
	// connectTime is how long a server may take to answer for the first time.
	connectTime = 10 * time.Second
	// cleanTime is how long cleaning up may take after Ctrl-C.
	cleanTime = 30 * time.Second
	// leastMeasured is what a step must have measured to count when it was ended
	// early.
	leastMeasured = 50 * time.Millisecond
	// patience is how many times its duration a step may take in all.
	patience = 3
)

// errForeign refuses tables that hold somebody's jobs.
var errForeign = errors.New("tables of prefix " + target.Prefix + " hold jobs, of another loadgen that runs or was killed: use -force to drop them")

// measure runs the steps. It returns what there is when ctx ends, without an
// error, and with the error when the database fails. Only this function's own
// tables are touched; cleanUp drops them.
func measure(ctx context.Context, c config, t *target.Target, p *progress) (*report.Report, error) {
	defer p.end()
	db, err := t.Open(1)
	if err != nil {
		return nil, err
	}
	defer db.Close()
	r := &report.Report{
		Engine: t.Engine.Name, Title: t.Engine.Title, Database: t.Label,
		Jobs: c.jobs, Batch: c.batch, Payload: c.payload, Duration: c.duration.Seconds(), TargetRate: c.target,
		Steps: []report.Step{},
	}
	if err := prepare(ctx, c, t, db, r); err != nil {
		return orInterrupted(ctx, r, err)
	}
	p.begin(len(c.consumers))
	for i, n := range c.consumers {
		p.step(i, n)
		step, err := measureStep(ctx, c, t, db, n, p)
		if step != nil {
			r.Steps = append(r.Steps, *step)
		}
		if err != nil {
			return orInterrupted(ctx, r, err)
		}
	}
	return r, nil
}

// orInterrupted drops an error that comes of Ctrl-C.
func orInterrupted(ctx context.Context, r *report.Report, err error) (*report.Report, error) {
	if ctx.Err() != nil {
		r.Interrupted = true
		return r, nil
	}
	return r, err
}

// prepare connects and makes sure that the tables are nobody's.
func prepare(ctx context.Context, c config, t *target.Target, db *sql.DB, r *report.Report) error {
	first, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	if err := db.PingContext(first); err != nil {
		return err
	}
	q, err := t.Queue(db, nil)
	if err != nil {
		return err
	}
	defer q.Close()
	if !c.force {
		switch held, err := holdsJobs(ctx, q); {
		case err != nil:
			return err
		case held:
			return errForeign
		}
	}
	t.Ours = true
	if err := t.Drop(ctx, db); err != nil {
		return err
	}
	if err := q.Migrate(ctx); err != nil {
		return err
	}
	engine, version, err := q.Server(ctx)
	if err != nil {
		return err
	}
	t.Found(engine)
	r.Engine, r.Title, r.Version = t.Engine.Name, t.Engine.Title, version
	return nil
}

// holdsJobs reports whether there are jobs, live or archived, or tables of a
// version that this program cannot read.
func holdsJobs(ctx context.Context, q *queue.Queue) (bool, error) {
	for _, err := range q.Jobs(ctx, queue.Filter{}) {
		switch {
		case err == nil, errors.Is(err, queue.ErrSchemaNew), errors.Is(err, queue.ErrSchemaOld):
			return true, nil
		case errors.Is(err, queue.ErrSchemaMissing):
			return false, nil
		}
		return false, err
	}
	return false, nil
}

// measureStep measures so many consumers on fresh tables, so that no step
// inherits another's dead rows. The step is nil if too little was measured.
func measureStep(ctx context.Context, c config, t *target.Target, admin *sql.DB, consumers int, p *progress) (*report.Step, error) {
	if err := t.Drop(ctx, admin); err != nil {
		return nil, err
	}
	db, err := t.Open(min(consumers, maxConns))
	if err != nil {
		return nil, err
	}
	defer db.Close()
	q, err := t.Queue(db, nil)
	if err != nil {
		return nil, err
	}
	defer q.Close()
	if err := q.Migrate(ctx); err != nil {
		return nil, err
	}
	s := bench.Step{
		Loop:    bench.Loop{Queue: queueName, Consumers: consumers, Batch: c.batch},
		Backlog: c.jobs, Payload: c.payload, Duration: c.duration, Limit: patience * c.duration,
		Filled: p.filled, Measured: func(sofar bench.Result) { p.measured(sofar, c.duration) },
	}
	if err := s.Warm(ctx, q); err != nil {
		return nil, err
	}
	result, err := s.Run(ctx, q, 0)
	if result.Jobs == 0 || err != nil && result.Elapsed < min(leastMeasured, c.duration) {
		if err == nil {
			err = fmt.Errorf("%d consumers found no jobs in %v, though some are waiting", consumers, c.duration)
		}
		return nil, err
	}
	step := report.NewStep(consumers, db.Stats().MaxOpenConnections, result, err != nil || result.Short)
	return &step, err
}

// cleanUp leaves the database as it was found.
func cleanUp(ctx context.Context, t *target.Target) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTime)
	defer cancel()
	var errs []error
	if t.Ours {
		db, err := t.Open(1)
		if err == nil {
			err = t.Drop(ctx, db)
			db.Close()
		}
		errs = append(errs, err)
	}
	return errors.Join(append(errs, t.Cleanup(ctx))...)
}
