package queue

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/sqlqueue/queue/dialect"
)

// DefaultBackoff waits 1, 2, 4, … seconds, at most an hour, and up to a quarter
// more or less by chance.
func DefaultBackoff(attempt int) time.Duration {
	d := time.Duration(math.Min(float64(time.Hour), float64(time.Second)*math.Pow(2, float64(max(attempt, 1)-1))))
	return d*3/4 + rand.N(d/2)
}

// Ack finishes jobs that are done: they are deleted, or moved to the archive
// where the queue keeps finished jobs. Each is answered for itself: with one
// job the error is its own, with several a *BatchError says which failed.
//
// The errors are ErrLeaseLost for a lease that is no longer the current one,
// and ErrOutcomeUnknown when the connection broke at the end: then Ack may be
// called again, and ErrLeaseLost from that call means that the first one worked
// or that the lease was lost.
func (q *Queue) Ack(ctx context.Context, jobs ...*Job) error {
	return q.settle(ctx, nil, jobs, q.acks, &q.counters.acked)
}

// AckTx is Ack in the caller's transaction: the job is done exactly when its
// effects in that transaction are. Until it ends the job's row is locked, and
// Extend passes it over with ErrLeaseBusy. At REPEATABLE READ or above, an
// extension after the transaction's snapshot makes AckTx fail with a
// serialization error: call it early, or use READ COMMITTED.
func (q *Queue) AckTx(ctx context.Context, tx Tx, jobs ...*Job) error {
	return q.settle(ctx, tx, jobs, q.acks, &q.counters.acked)
}

// A Failure is a job that failed.
type Failure struct {
	Job *Job
	// Err is why. Its text is kept with the job, cut to MaxErrorBytes.
	Err error
	FailOptions
}

// FailOptions of a failure. nil is the zero value.
type FailOptions struct {
	// RetryIn is the delay before the next attempt. 0: Options.Backoff decides;
	// negative: none.
	RetryIn time.Duration
	// Dead makes the job dead whatever attempts it has left.
	Dead bool
}

// Fail ends an attempt that did not work out: the job is tried again after a
// delay, or is dead when this was its last attempt. The error's text is kept
// with the job. For the errors of Fail see Ack.
func (q *Queue) Fail(ctx context.Context, job *Job, err error, opts *FailOptions) error {
	return q.FailMany(ctx, []Failure{failure(job, err, opts)})
}

// FailTx is Fail in the caller's transaction: note that it vanishes, with the
// error's text, if that rolls back.
func (q *Queue) FailTx(ctx context.Context, tx Tx, job *Job, err error, opts *FailOptions) error {
	return q.failMany(ctx, tx, []Failure{failure(job, err, opts)})
}

// FailMany is Fail for many jobs, each with its own error.
func (q *Queue) FailMany(ctx context.Context, failures []Failure) error {
	return q.failMany(ctx, nil, failures)
}

func failure(job *Job, err error, opts *FailOptions) Failure {
	f := Failure{Job: job, Err: err}
	if opts != nil {
		f.FailOptions = *opts
	}
	return f
}

func (q *Queue) failMany(ctx context.Context, tx Tx, failures []Failure) error {
	jobs := make([]*Job, len(failures))
	for i, f := range failures {
		if f.RetryIn > MaxDelay {
			return invalid("FailOptions.RetryIn", f.RetryIn, fmt.Sprintf("use at most %v", MaxDelay))
		}
		jobs[i] = f.Job
	}
	verdicts := func(*catalog, []*Job) []dialect.Settlement { return q.verdicts(failures) }
	return q.settle(ctx, tx, jobs, verdicts, &q.counters.failed)
}

// Release gives jobs back at once, the attempt not counted.
func (q *Queue) Release(ctx context.Context, jobs ...*Job) error {
	return q.settle(ctx, nil, jobs, q.releases, nil)
}

// Extend moves the end of leases to d from now, by the database's clock. A
// lease that ran out but that nobody else has taken is extended, too. Errors
// are answered as by Ack, and ErrLeaseBusy for a job whose row another
// transaction has locked: it delays none of the others.
func (q *Queue) Extend(ctx context.Context, d time.Duration, jobs ...*Job) error {
	if err := checkLease("d", d); err != nil {
		return err
	}
	verdicts := func(_ *catalog, jobs []*Job) []dialect.Settlement {
		out := make([]dialect.Settlement, len(jobs))
		for i, j := range jobs {
			out[i] = q.settlement(j, dialect.Settlement{Verdict: dialect.Extend, Delay: d})
		}
		return out
	}
	return q.settle(ctx, nil, jobs, verdicts, nil)
}

// settle applies verdicts to leases and answers each.
func (q *Queue) settle(ctx context.Context, tx Tx, jobs []*Job, verdicts func(*catalog, []*Job) []dialect.Settlement, count interface{ Add(int64) int64 }) error {
	if len(jobs) == 0 {
		return nil
	}
	if err := checkCount("jobs", len(jobs), MaxPush); err != nil {
		return err
	}
	for i, j := range jobs {
		if j == nil || j.lease.token == 0 {
			return invalid(fmt.Sprintf("jobs[%d]", i), "no lease", "pass jobs that Pop or PopID returned")
		}
	}
	var outcomes []dialect.Outcome
	run := func(ctx context.Context, s *dialect.Session) error {
		c, err := q.lookup(ctx, s)
		if err != nil {
			return err
		}
		settlements := verdicts(c, jobs)
		outcomes, err = q.engine.Settle(ctx, s, settlements)
		for _, s := range settlements {
			if s.Verdict == dialect.Return {
				q.occupiedLanes.note(dueSide(s.Lane))
			}
		}
		return err
	}
	var err error
	if tx != nil {
		err = q.inTx(ctx, tx, run)
	} else {
		err = q.write(ctx, run)
	}
	if err != nil {
		return err
	}
	var failed bool
	applied := int64(0)
	errs := make([]error, len(jobs))
	for i, outcome := range outcomes {
		switch outcome {
		case dialect.Applied:
			applied++
			continue
		case dialect.Locked:
			errs[i] = fmt.Errorf("queue: job %d: %w", jobs[i].ID, ErrLeaseBusy)
		default:
			q.counters.lost.Add(1)
			errs[i] = fmt.Errorf("queue: job %d: %w", jobs[i].ID, ErrLeaseLost)
		}
		failed = true
	}
	if count != nil {
		count.Add(applied)
	}
	switch {
	case !failed:
		return nil
	case len(jobs) == 1:
		return errs[0]
	}
	return &BatchError{Errs: errs}
}

func (q *Queue) settlement(j *Job, s dialect.Settlement) dialect.Settlement {
	s.Lane, s.RunAt, s.ID, s.Token, s.Keyed = j.lease.lane, j.lease.runAt, j.ID, j.lease.token, j.UniqueKey != ""
	return s
}

func (q *Queue) acks(c *catalog, jobs []*Job) []dialect.Settlement {
	out := make([]dialect.Settlement, len(jobs))
	for i, j := range jobs {
		s := dialect.Settlement{Verdict: dialect.Delete}
		if q.keeps(c, j.Queue) {
			s = dialect.Settlement{Verdict: dialect.Archive, State: dialect.Done}
		}
		out[i] = q.settlement(j, s)
	}
	return out
}

func (q *Queue) releases(_ *catalog, jobs []*Job) []dialect.Settlement {
	out := make([]dialect.Settlement, len(jobs))
	for i, j := range jobs {
		out[i] = q.settlement(j, dialect.Settlement{Verdict: dialect.Return, Attempt: j.Attempt - 1})
	}
	return out
}

func (q *Queue) verdicts(failures []Failure) []dialect.Settlement {
	out := make([]dialect.Settlement, len(failures))
	for i, f := range failures {
		cause := f.Err
		if cause == nil {
			cause = errors.New("failed, without an error")
		}
		s := dialect.Settlement{Verdict: dialect.Archive, State: dialect.Dead, Errors: q.appendError(f.Job, cause.Error())}
		if !f.Dead && f.Job.Attempt < f.Job.MaxAttempts {
			s.Verdict, s.Attempt, s.Delay = dialect.Return, f.Job.Attempt, f.RetryIn
			if s.Delay == 0 {
				s.Delay = q.options.Backoff(f.Job.Attempt)
			}
			s.Delay = clipDelay(s.Delay)
		}
		out[i] = q.settlement(f.Job, s)
	}
	return out
}

func (q *Queue) appendError(j *Job, text string) string {
	now := j.lease.asOf.Add(time.Since(j.lease.claimed)) // the database's clock, near enough
	return appendError(j.lease.errors, AttemptError{Attempt: j.Attempt, At: now.Truncate(time.Millisecond), Node: q.options.Node, Error: text})
}

// giveBack releases jobs that a cancelled pop left, after Close too.
func (q *Queue) giveBack(ctx context.Context, jobs []*Job) error {
	return q.flight(ctx, func(ctx context.Context, s *dialect.Session) error {
		_, err := q.engine.Settle(ctx, s, q.releases(nil, jobs))
		return err
	})
}
