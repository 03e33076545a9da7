package queue

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"math"
	"slices"
	"time"

	"github.com/sqlqueue/queue/dialect"
)

// Get returns a job by its id, live or archived. ErrNotFound: there is none.
func (q *Queue) Get(ctx context.Context, id int64) (JobInfo, error) {
	var rows []dialect.JobRow
	err := q.read(ctx, func(ctx context.Context, s *dialect.Session) error {
		rows = nil
		params := dialect.Params{"id": id, "lane": dialect.LaneOf(id)}
		if err := s.Select(ctx, &rows, q.texts.Find, params); err != nil || len(rows) > 0 {
			return err
		}
		if err := s.Select(ctx, &rows, q.texts.FindArchived, params); err != nil || len(rows) > 0 {
			return err
		}
		// It may have come back from the archive in between.
		return s.Select(ctx, &rows, q.texts.Find, params)
	})
	if err != nil {
		return JobInfo{}, err
	}
	if len(rows) == 0 {
		return JobInfo{}, fmt.Errorf("queue: job %d: %w", id, ErrNotFound)
	}
	return newInfo(rows[0]), nil
}

// A Filter selects jobs. The zero value selects all, live and archived.
type Filter struct {
	Queue  string
	Kind   string
	States []State
}

// pageSize is how many jobs Jobs reads at once; with the largest payloads it
// reads fewer in a page only as the database returns them.
const pageSize = 200

// Jobs walks over jobs: the live ones first, lane by lane in the order of their
// ids or due times, then the archived ones. It reads a page at a time and holds no
// connection between pages, so jobs that move meanwhile may be missed or seen
// twice. The walk ends with the first error.
func (q *Queue) Jobs(ctx context.Context, f Filter) iter.Seq2[JobInfo, error] {
	return func(yield func(JobInfo, error) bool) {
		live, archived, err := f.split()
		if err != nil {
			yield(JobInfo{}, err)
			return
		}
		for _, state := range live {
			if !q.pages(ctx, f, state, yield) {
				return
			}
		}
		for _, state := range archived {
			if !q.archivePages(ctx, f, state, yield) {
				return
			}
		}
	}
}

// split returns the states to ask for on either side; an empty one asks for all.
func (f Filter) split() (live []State, archived []dialect.State, err error) {
	if f.Queue != "" {
		if err := checkText("Filter.Queue", f.Queue, MaxNameBytes); err != nil {
			return nil, nil, err
		}
	}
	if f.Kind != "" {
		if err := checkText("Filter.Kind", f.Kind, MaxNameBytes); err != nil {
			return nil, nil, err
		}
	}
	if len(f.States) == 0 {
		return []State{""}, []dialect.State{0}, nil
	}
	for i, s := range f.States {
		d, ok := states[s]
		switch {
		case slices.Contains(f.States[:i], s): // named twice
		case !ok:
			return nil, nil, invalid("Filter.States", string(s), "use ready, delayed, running, done, dead or cancelled")
		case d == 0:
			live = append(live, s)
		default:
			archived = append(archived, d)
		}
	}
	return live, archived, nil
}

func (q *Queue) pages(ctx context.Context, f Filter, state State, yield func(JobInfo, error) bool) bool {
	type span struct{ from, to int32 }
	spans := []span{{math.MinInt32, math.MaxInt32}}
	if f.Queue != "" {
		var lanes []dialect.LaneRow
		if err := q.read(ctx, func(ctx context.Context, s *dialect.Session) error {
			c, err := q.lookupNow(ctx, s)
			if err == nil {
				lanes = slices.Clone(c.byQueue[f.Queue])
			}
			return err
		}); err != nil {
			yield(JobInfo{}, err)
			return false
		}
		sortLanes(lanes)
		spans = nil
		for _, l := range lanes {
			spans = append(spans, span{-l.Lane, -l.Lane}, span{l.Lane, l.Lane})
		}
	}
	for _, sp := range spans {
		after := dialect.JobRow{Lane: sp.from, RunAt: -1, ID: -1}
		for {
			var rows []dialect.JobRow
			err := q.read(ctx, func(ctx context.Context, s *dialect.Session) error {
				rows = nil
				return s.Select(ctx, &rows, q.texts.Page, dialect.Params{
					"after_lane": after.Lane, "after_run_at": after.RunAt, "after_id": after.ID, "lane_from": sp.from, "lane_to": sp.to,
					"state": string(state), "kind": f.Kind, "limit": pageSize,
				})
			})
			if err != nil {
				yield(JobInfo{}, err)
				return false
			}
			for _, r := range rows {
				if !yield(newInfo(r), nil) {
					return false
				}
			}
			if len(rows) < pageSize {
				break
			}
			after = rows[len(rows)-1]
		}
	}
	return true
}

func (q *Queue) archivePages(ctx context.Context, f Filter, state dialect.State, yield func(JobInfo, error) bool) bool {
	after := dialect.JobRow{ID: -1}
	for {
		var rows []dialect.JobRow
		err := q.read(ctx, func(ctx context.Context, s *dialect.Session) error {
			rows = nil
			return s.Select(ctx, &rows, q.texts.PageArchive, dialect.Params{
				"after_id": after.ID, "after_at": after.FinishedAt,
				"queue": f.Queue, "state": int(state), "kind": f.Kind, "limit": pageSize,
			})
		})
		if err != nil {
			yield(JobInfo{}, err)
			return false
		}
		for _, r := range rows {
			if !yield(newInfo(r), nil) {
				return false
			}
		}
		if len(rows) < pageSize {
			return true
		}
		after = rows[len(rows)-1]
	}
}

// Peek returns up to n jobs of a queue that a pop could take now, highest
// priority first, and claims none of them.
func (q *Queue) Peek(ctx context.Context, queue string, n int) ([]JobInfo, error) {
	if err := checkText("queue", queue, MaxNameBytes); err != nil {
		return nil, err
	}
	if err := checkCount("n", n, MaxBatch); err != nil {
		return nil, err
	}
	var out []JobInfo
	err := q.read(ctx, func(ctx context.Context, s *dialect.Session) error {
		out = nil
		c, err := q.lookupNow(ctx, s)
		if err != nil {
			return err
		}
		lanes := slices.Clone(c.byQueue[queue])
		sortLanes(lanes)
		var rows []dialect.JobRow
		for _, l := range lanes {
			for _, lane := range []int32{-l.Lane, l.Lane} {
				if len(rows) >= n {
					break
				}
				var page []dialect.JobRow
				if err := s.Select(ctx, &page, q.texts.Page, dialect.Params{
					"after_lane": lane, "after_run_at": -1, "after_id": -1, "lane_from": lane, "lane_to": lane,
					"state": string(Ready), "kind": "", "limit": n - len(rows),
				}); err != nil {
					return err
				}
				rows = append(rows, page...)
			}
		}
		for _, r := range rows {
			out = append(out, newInfo(r))
		}
		return nil
	})
	return out, err
}

// Stats of a queue.
type Stats struct {
	Queue   string
	Paused  bool
	Ready   int64 // could be popped now; expired leases among them
	Delayed int64
	Running int64
	Dead    int64
	// OldestReady is how long the longest waiting of the ready jobs has been
	// ready. 0: there is none.
	OldestReady time.Duration
	// Estimated: the queue is so large that the numbers beyond StatsExact per
	// lane are estimates.
	Estimated bool
}

// StatsExact is up to how many jobs Stats counts in each lane.
const StatsExact = 10_000

// Stats returns the numbers of one queue. It takes some ten milliseconds
// whatever the backlog: see Stats.Estimated.
func (q *Queue) Stats(ctx context.Context, queue string) (Stats, error) {
	if err := checkText("queue", queue, MaxNameBytes); err != nil {
		return Stats{}, err
	}
	var out Stats
	err := q.read(ctx, func(ctx context.Context, s *dialect.Session) error {
		out = Stats{Queue: queue}
		c, err := q.lookupNow(ctx, s)
		if err != nil {
			return err
		}
		out.Paused = c.isPaused(queue)
		for _, l := range c.byQueue[queue] {
			for _, lane := range []int32{l.Lane, -l.Lane} {
				if err := q.countLane(ctx, s, lane, &out); err != nil {
					return err
				}
			}
		}
		var dead []struct {
			N int64 `db:"n"`
		}
		err = s.Select(ctx, &dead, q.texts.CountArchive, dialect.Params{"queue": queue, "state": int(dialect.Dead), "limit": 10 * StatsExact})
		if err != nil {
			return err
		}
		out.Dead = dead[0].N
		out.Estimated = out.Estimated || out.Dead == 10*StatsExact
		return nil
	})
	return out, err
}

func (q *Queue) countLane(ctx context.Context, s *dialect.Session, lane int32, out *Stats) error {
	var rows []struct {
		Ready   int64 `db:"ready"`
		Delayed int64 `db:"delayed"`
		Running int64 `db:"running"`
		Age     int64 `db:"age"`
	}
	if err := s.Select(ctx, &rows, q.texts.CountLane, dialect.Params{"lane": lane, "limit": StatsExact}); err != nil {
		return err
	}
	r := rows[0]
	if counted := r.Ready + r.Delayed + r.Running; counted >= StatsExact {
		about, ok, err := s.Estimate(ctx, q.texts.EstimateLane, dialect.Params{"lane": lane})
		if err != nil {
			return err
		}
		if ok {
			rest := max(0, about-counted)
			if lane > 0 {
				r.Ready += rest // what runs lies at the head of a lane
			} else {
				r.Ready, r.Delayed, r.Running = share(rest, r.Ready, counted), share(rest, r.Delayed, counted), share(rest, r.Running, counted)
			}
		}
		out.Estimated = true
	}
	out.Ready += r.Ready
	out.Delayed += r.Delayed
	out.Running += r.Running
	out.OldestReady = max(out.OldestReady, time.Duration(r.Age)*time.Microsecond)
	return nil
}

// share adds to a part the same share of the rest.
func share(rest, part, whole int64) int64 {
	return part + int64(float64(rest)*float64(part)/float64(whole))
}

// Queues returns the names of all queues that ever held a job or have settings.
func (q *Queue) Queues(ctx context.Context) ([]string, error) {
	var names []string
	err := q.read(ctx, func(ctx context.Context, s *dialect.Session) error {
		c, err := q.lookupNow(ctx, s)
		if err != nil {
			return err
		}
		names = nil
		for name := range c.byQueue {
			names = append(names, name)
		}
		for name := range c.queues {
			names = append(names, name)
		}
		slices.SortFunc(names, cmp.Compare)
		names = slices.Compact(names)
		return nil
	})
	return names, err
}
