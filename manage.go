package queue

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/sqlqueue/queue/dialect"
)

// Cancel ends a waiting job: it is deleted, or moved to the archive where the
// queue keeps finished jobs. ErrNotWaiting: somebody holds it, or it is
// finished; a cancel is never lost silently.
func (q *Queue) Cancel(ctx context.Context, id int64) error {
	return q.change(ctx, id, func(ctx context.Context, s *dialect.Session, row dialect.JobRow) error {
		c, err := q.lookup(ctx, s)
		if err != nil {
			return err
		}
		at := dialect.Params{"lane": row.Lane, "id": id}
		if q.keeps(c, row.Queue) {
			params := dialect.Params{"lane": row.Lane, "id": id, "state": int(dialect.Cancelled), "errors": ""}
			if _, err := s.Run(ctx, q.texts.ToArchive, params); err != nil {
				return err
			}
		}
		if _, err := s.Run(ctx, q.texts.Delete, at); err != nil {
			return err
		}
		if row.UniqueKey == "" {
			return nil
		}
		_, err = s.Run(ctx, q.texts.FreeKey, dialect.Params{"queue": row.Queue, "key": row.UniqueKey, "id": id})
		return err
	})
}

// Reschedule makes a waiting job due after a delay, by the database's clock.
func (q *Queue) Reschedule(ctx context.Context, id int64, delay time.Duration) error {
	if err := checkDelay("delay", delay); err != nil {
		return err
	}
	return q.change(ctx, id, func(ctx context.Context, s *dialect.Session, row dialect.JobRow) error {
		return q.move(ctx, s, row, dueSide(row.Lane), 0, delay)
	})
}

// RescheduleAt makes a waiting job due at a time of the database's clock.
func (q *Queue) RescheduleAt(ctx context.Context, id int64, at time.Time) error {
	if err := checkRunAt("at", at); err != nil {
		return err
	}
	return q.change(ctx, id, func(ctx context.Context, s *dialect.Session, row dialect.JobRow) error {
		return q.move(ctx, s, row, dueSide(row.Lane), at.UnixMicro(), 0)
	})
}

// Reprioritize gives a waiting job another priority. It keeps its due time.
func (q *Queue) Reprioritize(ctx context.Context, id int64, priority int) error {
	if err := checkPriority("priority", priority); err != nil {
		return err
	}
	return q.change(ctx, id, func(ctx context.Context, s *dialect.Session, row dialect.JobRow) error {
		if row.Priority == priority {
			return nil
		}
		key := laneKey{row.Queue, priority, 0}
		c, err := q.lookup(ctx, s)
		if err != nil {
			return err
		}
		if l, ok := c.byLane[max(row.Lane, -row.Lane)]; ok {
			key.shard = l.Shard
		}
		lane, err := q.ensureLane(ctx, s, key)
		if err != nil {
			return err
		}
		defer q.catalog.expire()
		return q.move(ctx, s, row, -lane, row.RunAt, 0)
	})
}

func dueSide(lane int32) int32 { return min(lane, -lane) }

// move puts a waiting job on the due side of a lane: it may lie behind every
// cursor there, and the due side finds it.
func (q *Queue) move(ctx context.Context, s *dialect.Session, row dialect.JobRow, to int32, at int64, delay time.Duration) error {
	defer q.occupiedLanes.note(to)
	_, err := s.Run(ctx, q.texts.Move, dialect.Params{
		"lane": row.Lane, "id": row.ID, "to_lane": to, "run_at": at, "delay": delay.Microseconds(),
	})
	return err
}

// change runs fn on a waiting job whose row is locked.
func (q *Queue) change(ctx context.Context, id int64, fn func(context.Context, *dialect.Session, dialect.JobRow) error) error {
	return q.write(ctx, func(ctx context.Context, s *dialect.Session) error {
		if _, err := q.lookup(ctx, s); err != nil { // before the transaction takes a connection
			return err
		}
		return s.Atomic(ctx, func(s *dialect.Session) error {
			row, err := q.find(ctx, s, q.texts.FindLocked, id)
			if errors.Is(err, ErrNotFound) {
				// Not there, or locked by another: tell which.
				if _, err = q.find(ctx, s, q.texts.Find, id); err == nil {
					return fmt.Errorf("queue: job %d: %w: somebody is taking or changing it just now", id, ErrNotWaiting)
				}
			}
			if err != nil {
				return err
			}
			if State(row.State) == Running {
				return fmt.Errorf("queue: job %d: %w: it is running", id, ErrNotWaiting)
			}
			return fn(ctx, s, row)
		})
	})
}

// find returns a live job. A finished one is ErrNotWaiting.
func (q *Queue) find(ctx context.Context, s *dialect.Session, text string, id int64) (dialect.JobRow, error) {
	var rows []dialect.JobRow
	params := dialect.Params{"id": id, "lane": dialect.LaneOf(id)}
	if err := s.Select(ctx, &rows, text, params); err != nil {
		return dialect.JobRow{}, err
	}
	if len(rows) > 0 {
		return rows[0], nil
	}
	if err := s.Select(ctx, &rows, q.texts.FindArchived, params); err != nil {
		return dialect.JobRow{}, err
	}
	if len(rows) > 0 {
		return dialect.JobRow{}, fmt.Errorf("queue: job %d: %w: it is %s", id, ErrNotWaiting, rows[0].State)
	}
	return dialect.JobRow{}, fmt.Errorf("queue: job %d: %w", id, ErrNotFound)
}

// requeueBatch is how many jobs RequeueNode gives back in one transaction.
const requeueBatch = 500

// RequeueNode gives back at once whatever a node holds, and returns how many
// jobs that were. It is for a supervisor that knows the node to be dead: what a
// living node does with those leases afterwards is answered with ErrLeaseLost.
// The attempts count. A node that was never seen is ErrNotFound.
func (q *Queue) RequeueNode(ctx context.Context, node string) (int, error) {
	if err := checkText("node", node, MaxNameBytes); err != nil {
		return 0, err
	}
	total := 0
	var id int32
	err := q.read(ctx, func(ctx context.Context, s *dialect.Session) (err error) {
		id, err = q.findNode(ctx, s, node)
		return err
	})
	if err != nil {
		return 0, err
	}
	type held struct {
		Lane    int32 `db:"lane"`
		RunAt   int64 `db:"run_at"`
		ID      int64 `db:"id"`
		Token   int64 `db:"token"`
		Attempt int   `db:"attempt"`
	}
	after := held{Lane: math.MinInt32, RunAt: -1}
	for {
		var rows []held
		n := 0
		err := q.write(ctx, func(ctx context.Context, s *dialect.Session) error {
			rows, n = nil, 0
			params := dialect.Params{"node": id, "after_lane": after.Lane, "after_run_at": after.RunAt, "after_id": after.ID, "limit": requeueBatch}
			if err := s.Select(ctx, &rows, q.texts.NodeJobs, params); err != nil || len(rows) == 0 {
				return err
			}
			back := make([]dialect.Settlement, len(rows))
			for i, r := range rows {
				back[i] = dialect.Settlement{Lane: r.Lane, RunAt: r.RunAt, ID: r.ID, Token: r.Token, Verdict: dialect.Return, Attempt: r.Attempt}
			}
			outcomes, err := q.engine.Settle(ctx, s, back)
			for _, o := range outcomes {
				if o == dialect.Applied {
					n++
				}
			}
			return err
		})
		total += n
		if err != nil || len(rows) < requeueBatch {
			return total, err
		}
		after = rows[len(rows)-1]
	}
}

// Settings of a queue, for all processes. A nil field leaves what is set; a
// negative number unsets it, so that the Options of each process decide.
type Settings struct {
	// Shards: see Options.Shards. Lowering it loses nothing: what lies in the
	// other lanes is still popped.
	Shards *int
	// KeepFinished: 1 keeps acked and cancelled jobs in the archive, 0 deletes.
	KeepFinished *int
	// MaxBacklog bounds the live jobs of the queue: a push beyond it is refused
	// with ErrBacklogFull, or waits. 0: no bound. Each process counts at most
	// every half second and adds its own pushes, so that others' can take the
	// queue over the bound by what they push in that time.
	MaxBacklog *int64
}

// Configure stores settings of a queue. Every process obeys within a second.
func (q *Queue) Configure(ctx context.Context, queue string, s Settings) error {
	if s.Shards != nil && (*s.Shards == 0 || *s.Shards > MaxShards) {
		return invalid("Settings.Shards", *s.Shards, fmt.Sprintf("use 1 to %d, or -1 to unset", MaxShards))
	}
	if s.KeepFinished != nil && *s.KeepFinished > 1 {
		return invalid("Settings.KeepFinished", *s.KeepFinished, "use 1, 0, or -1 to unset")
	}
	params := dialect.Params{"paused": nil, "shards": nil, "keep": nil, "max_backlog": nil}
	if s.Shards != nil {
		params["shards"] = max(*s.Shards, -1)
	}
	if s.KeepFinished != nil {
		params["keep"] = max(*s.KeepFinished, -1)
	}
	if s.MaxBacklog != nil {
		params["max_backlog"] = max(*s.MaxBacklog, -1)
	}
	return q.setQueue(ctx, queue, params)
}

// Pause stops pops from a queue, in every process within a second. Jobs that
// are held stay so, and pushes go on.
func (q *Queue) Pause(ctx context.Context, queue string) error { return q.setPaused(ctx, queue, 1) }

// Resume ends a Pause.
func (q *Queue) Resume(ctx context.Context, queue string) error { return q.setPaused(ctx, queue, 0) }

func (q *Queue) setPaused(ctx context.Context, queue string, paused int) error {
	return q.setQueue(ctx, queue, dialect.Params{"paused": paused, "shards": nil, "keep": nil, "max_backlog": nil})
}

func (q *Queue) setQueue(ctx context.Context, queue string, params dialect.Params) error {
	if err := checkText("queue", queue, MaxNameBytes); err != nil {
		return err
	}
	params["name"] = queue
	err := q.write(ctx, func(ctx context.Context, s *dialect.Session) error {
		return s.Atomic(ctx, func(s *dialect.Session) error {
			for _, text := range []string{q.texts.AddQueue, q.texts.SetQueue, q.texts.BumpCatalog} {
				if _, err := s.Run(ctx, text, params); err != nil {
					return err
				}
			}
			return nil
		})
	})
	q.catalog.expire()
	return err
}
