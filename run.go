package queue

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sqlqueue/queue/dialect"
)

// read runs a read of the library's own, and retries it while the database
// refuses it for passing reasons.
func (q *Queue) read(ctx context.Context, fn func(context.Context, *dialect.Session) error) error {
	_, err := q.run(ctx, fn)
	return err
}

// write is read for what changes something: it tells an unknown outcome.
func (q *Queue) write(ctx context.Context, fn func(context.Context, *dialect.Session) error) error {
	unknown, err := q.run(ctx, fn)
	if unknown {
		return fmt.Errorf("queue: %w: %w", ErrOutcomeUnknown, err)
	}
	return err
}

func (q *Queue) run(ctx context.Context, fn func(context.Context, *dialect.Session) error) (unknown bool, err error) {
	if q.closed.Load() {
		return false, ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return false, err
	}
	return q.attempt(ctx, fn)
}

func (q *Queue) attempt(ctx context.Context, fn func(context.Context, *dialect.Session) error) (unknown bool, err error) {
	if err := q.check(ctx, q.session); err != nil {
		return false, err
	}
	defer q.pool.watch(q.options.Logger)()
	var deadline time.Time
	for attempt := 0; ; attempt++ {
		err := fn(ctx, q.session)
		if err == nil {
			return false, nil
		}
		class := q.engine.Classify(err)
		q.counters.database(class)
		if !class.Transient() || ctx.Err() != nil {
			return q.unknown(ctx, err, class), q.explain(ctx, err, class)
		}
		if deadline.IsZero() {
			deadline = time.Now().Add(q.options.RetryBudget)
		}
		if time.Now().After(deadline) {
			return false, fmt.Errorf("queue: the database refused the transaction %d times within %v (%v): %w", attempt+1, q.options.RetryBudget, class, err)
		}
		q.counters.retry(class)
		if err := sleep(ctx, retryDelay(attempt)); err != nil {
			return false, err
		}
	}
}

// retryDelay grows from about a millisecond to about a tenth of a second.
func retryDelay(attempt int) time.Duration {
	ceiling := time.Millisecond << min(attempt, 7)
	return ceiling/4 + rand.N(ceiling)
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// inTx runs a call in the caller's transaction, once.
func (q *Queue) inTx(ctx context.Context, tx Tx, fn func(context.Context, *dialect.Session) error) error {
	if q.closed.Load() {
		return ErrClosed
	}
	s := q.session.With(tx)
	if err := q.check(ctx, s); err != nil {
		return err
	}
	if err := fn(ctx, s); err != nil {
		class := q.engine.Classify(err)
		q.counters.database(class)
		return q.explain(ctx, err, class)
	}
	return nil
}

// unknown reports whether an error leaves open what was committed.
func (q *Queue) unknown(ctx context.Context, err error, class dialect.Class) bool {
	var commit *dialect.CommitError
	if !errors.As(err, &commit) {
		return false // the transaction had not come to its commit: it is undone
	}
	return class == dialect.Disconnected ||
		errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// ended makes an error that was met when the context had ended say so.
func ended(ctx context.Context, err error) error {
	if cause := ctx.Err(); cause != nil && !errors.Is(err, cause) {
		return fmt.Errorf("queue: %w: %w", cause, err)
	}
	return err
}

// explain puts the remedy into errors that users meet when setting up, and the
// context's end into what a driver says of a statement that it cancelled.
func (q *Queue) explain(ctx context.Context, err error, class dialect.Class) error {
	if err := ended(ctx, err); ctx.Err() != nil {
		return err
	}
	switch class {
	case dialect.MissingSchema:
		q.ready.Store(false) // look again: somebody dropped it
		return fmt.Errorf("queue: %w: call Migrate, or have a DBA run the statements that Schema returns: %w", ErrSchemaMissing, err)
	case dialect.Denied:
		return fmt.Errorf("queue: the database user lacks a privilege on the queue's tables: %w", err)
	}
	return err
}

// check makes sure, once, that the server can serve and the schema fits.
func (q *Queue) check(ctx context.Context, s *dialect.Session) error {
	if q.ready.Load() {
		return nil
	}
	if err := q.checkServer(ctx, s); err != nil {
		return err
	}
	var rows []struct {
		Version int `db:"version"`
		MinCode int `db:"min_code"`
	}
	if err := s.Select(ctx, &rows, q.texts.Version, nil); err != nil {
		return q.explain(ctx, err, q.engine.Classify(err))
	}
	if len(rows) == 0 {
		return q.explain(ctx, errors.New("its version is not recorded"), dialect.MissingSchema)
	}
	code := q.codeVersion()
	switch {
	case rows[0].Version < code:
		return fmt.Errorf("queue: %w: it has version %d, this code needs %d: call Migrate", ErrSchemaOld, rows[0].Version, code)
	case rows[0].MinCode > code:
		return fmt.Errorf("queue: %w: it has version %d and serves code from version %d on, this code is of version %d: update the program", ErrSchemaNew, rows[0].Version, rows[0].MinCode, code)
	}
	q.ready.Store(true)
	return nil
}

func (q *Queue) checkServer(ctx context.Context, s *dialect.Session) error {
	if q.server.Load() != nil {
		return nil
	}
	server, err := q.engine.Check(ctx, s)
	if err != nil {
		if class := q.engine.Classify(err); class == dialect.Other && ctx.Err() == nil {
			return fmt.Errorf("queue: %w: %w", ErrServer, err)
		}
		return ended(ctx, err)
	}
	q.session.SetAutocommit(server.Autocommit)
	if q.server.Swap(&server) == nil {
		for _, w := range server.Warnings {
			q.options.Logger.WarnContext(ctx, "queue: "+w)
		}
		q.pool.shared.Store(server.SharedPool)
		if st := q.pool.db.Stats(); st.MaxOpenConnections == 1 && !server.SharedPool {
			q.options.Logger.WarnContext(ctx, "queue: the pool has a single connection: a call outside a transaction that is made while one is open waits for ever; give the pool a few (SetMaxOpenConns)")
		}
	}
	return nil
}

func (q *Queue) codeVersion() int {
	m := q.engine.Migrations()
	return m[len(m)-1].Version
}

// A poolWatch says what is wrong with a pool when it shows.
type poolWatch struct {
	db     DB
	shared atomic.Bool
	stuck  sync.Once
	churn  sync.Once
	calls  atomic.Uint32
}

const poolStuck = 5 * time.Second

// watch looks at the pool if a call takes long, and now and then besides.
func (p *poolWatch) watch(log interface{ Warn(string, ...any) }) (stop func()) {
	timer := time.AfterFunc(poolStuck, func() {
		if st := p.db.Stats(); st.MaxOpenConnections > 0 && st.InUse >= st.MaxOpenConnections {
			p.stuck.Do(func() {
				log.Warn("queue: a call has waited for seconds while every connection of the pool is in use: a transaction that calls the queue outside itself waits for its own connection; use the …Tx calls inside transactions, or raise SetMaxOpenConns",
					"max_open", st.MaxOpenConnections, "in_use", st.InUse)
			})
		}
	})
	if p.calls.Add(1)%1024 == 0 {
		if st := p.db.Stats(); st.MaxIdleClosed > 500 && !p.shared.Load() {
			p.churn.Do(func() {
				log.Warn("queue: the pool keeps closing and opening connections: raise SetMaxIdleConns (its default is 2) to the number of connections in use",
					"closed", st.MaxIdleClosed, "open", st.OpenConnections)
			})
		}
	}
	return func() { timer.Stop() }
}
