package queue

import (
	"context"
	"fmt"
	"time"

	"github.com/sqlqueue/queue/dialect"
)

// Redrive selects dead jobs to run again. The zero value selects all.
type Redrive struct {
	ID    int64 // one job
	Queue string
	Kind  string
	Limit int // 0: no limit
}

// archiveBatch is how many jobs Redrive and Purge move in one transaction.
const archiveBatch = 500

// Redrive gives dead jobs another life: with their ids and their errors, but no
// attempts used, due at once. A dead job whose unique key another live job has
// taken stays dead and is counted as skipped.
func (q *Queue) Redrive(ctx context.Context, r Redrive) (redriven, skipped int, err error) {
	if r.Queue != "" {
		if err := checkText("Redrive.Queue", r.Queue, MaxNameBytes); err != nil {
			return 0, 0, err
		}
	}
	if r.Kind != "" {
		if err := checkText("Redrive.Kind", r.Kind, MaxNameBytes); err != nil {
			return 0, 0, err
		}
	}
	if r.Limit < 0 {
		return 0, 0, invalid("Redrive.Limit", r.Limit, "use a positive number, or 0 for no limit")
	}
	var after dialect.JobRow
	for {
		limit := archiveBatch
		if r.Limit > 0 {
			limit = min(limit, r.Limit-redriven)
		}
		var rows []dialect.JobRow
		var n, skip int
		err := q.write(ctx, func(ctx context.Context, s *dialect.Session) error {
			if _, err := q.lookup(ctx, s); err != nil { // before the transaction takes a connection
				return err
			}
			return s.Atomic(ctx, func(s *dialect.Session) (err error) {
				rows = nil
				if err := s.Select(ctx, &rows, q.texts.LockDead, dialect.Params{
					"id": r.ID, "queue": r.Queue, "kind": r.Kind, "limit": limit,
					"after_queue": after.Queue, "after_at": after.FinishedAt, "after_id": after.ID,
				}); err != nil {
					return err
				}
				n, skip, err = q.restore(ctx, s, rows)
				return err
			})
		})
		if err != nil {
			return redriven, skipped, err
		}
		redriven, skipped = redriven+n, skipped+skip
		if len(rows) < limit || r.Limit > 0 && redriven >= r.Limit {
			break
		}
		after = rows[len(rows)-1]
	}
	if r.ID != 0 && redriven+skipped == 0 {
		return 0, 0, fmt.Errorf("queue: dead job %d: %w", r.ID, ErrNotFound)
	}
	return redriven, skipped, nil
}

func (q *Queue) restore(ctx context.Context, s *dialect.Session, rows []dialect.JobRow) (n, skipped int, err error) {
	c, err := q.lookup(ctx, s)
	if err != nil {
		return 0, 0, err
	}
	created := map[laneKey]int32{}
	for _, row := range rows {
		if row.UniqueKey != "" {
			took, err := s.Run(ctx, q.texts.TakeKey, dialect.Params{"queue": row.Queue, "key": row.UniqueKey, "id": row.ID})
			if err != nil {
				return 0, 0, err
			}
			if took == 0 {
				skipped++
				continue
			}
		}
		key := laneKey{row.Queue, row.Priority, int(row.ID % int64(q.shards(c, row.Queue)))}
		lane, ok := c.byKey[key]
		if !ok {
			lane, ok = created[key]
		}
		if !ok {
			if lane, err = q.ensureLane(ctx, s, key); err != nil {
				return 0, 0, err
			}
			created[key] = lane
			defer q.catalog.expire()
		}
		at := dialect.Params{"id": row.ID, "finished_at": row.FinishedAt, "lane": -lane}
		if _, err := s.Run(ctx, q.texts.Restore, at); err != nil {
			return 0, 0, err
		}
		if _, err := s.Run(ctx, q.texts.DropArchived, at); err != nil {
			return 0, 0, err
		}
		q.occupiedLanes.note(-lane)
		n++
	}
	return n, skipped, nil
}

// Purge selects archived jobs to delete.
type Purge struct {
	// OlderThan is the least time since they ended, by the database's clock.
	OlderThan time.Duration
	Queue     string  // empty: every queue
	States    []State // of Done, Dead and Cancelled; empty: Done and Cancelled
}

// Purge deletes archived jobs by age, in bounded batches, and returns how many.
// Dead jobs are deleted only when States names them.
func (q *Queue) Purge(ctx context.Context, p Purge) (int64, error) {
	if p.OlderThan < 0 {
		return 0, invalid("Purge.OlderThan", p.OlderThan, "use a positive time, or 0 for all")
	}
	if p.Queue != "" {
		if err := checkText("Purge.Queue", p.Queue, MaxNameBytes); err != nil {
			return 0, err
		}
	}
	if len(p.States) == 0 {
		p.States = []State{Done, Cancelled}
	}
	for _, s := range p.States {
		if states[s] == 0 {
			return 0, invalid("Purge.States", string(s), "use done, dead or cancelled")
		}
	}
	total := int64(0)
	for _, s := range p.States {
		for {
			var n int64
			err := q.write(ctx, func(ctx context.Context, session *dialect.Session) error {
				return session.One(ctx, func(session *dialect.Session) (err error) {
					n, err = session.Run(ctx, q.texts.Purge, dialect.Params{
						"age": p.OlderThan.Microseconds(), "state": int(states[s]), "queue": p.Queue, "limit": archiveBatch,
					})
					return err
				})
			})
			total += n
			if err != nil {
				return total, err
			}
			if n < archiveBatch {
				break
			}
		}
	}
	return total, nil
}
