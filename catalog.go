package queue

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sqlqueue/queue/dialect"
)

// A catalog is what a process knows of lanes and queue settings: a snapshot
// that is never changed, only replaced.
type catalog struct {
	read    time.Time
	lanes   int64
	version int64
	byLane  map[int32]dialect.LaneRow
	byQueue map[string][]dialect.LaneRow
	byKey   map[laneKey]int32
	queues  map[string]dialect.QueueRow
	paused  bool // some queue is
}

type laneKey struct {
	queue           string
	priority, shard int
}

func (c *catalog) isPaused(queue string) bool { return c.paused && c.queues[queue].Paused == 1 }

// setting returns a queue's own setting, or the process's.
func setting[T int | int64](own func(dialect.QueueRow) T, c *catalog, queue string, process T) T {
	if row, ok := c.queues[queue]; ok {
		if v := own(row); v >= 0 {
			return v
		}
	}
	return process
}

func (q *Queue) shards(c *catalog, queue string) int {
	return setting(func(r dialect.QueueRow) int { return r.Shards }, c, queue, q.options.Shards)
}

func (q *Queue) keeps(c *catalog, queue string) bool {
	process := 0
	if q.options.KeepFinished {
		process = 1
	}
	return setting(func(r dialect.QueueRow) int { return r.Keep }, c, queue, process) == 1
}

func (q *Queue) maxBacklog(c *catalog, queue string) int64 {
	return setting(func(r dialect.QueueRow) int64 { return r.MaxBacklog }, c, queue, q.options.MaxBacklog)
}

// catalogLife is how old a snapshot may be when it is used: it bounds how long
// a process takes to obey a pause, and to see a new lane.
const catalogLife = 250 * time.Millisecond

type catalogCache struct {
	current atomic.Pointer[catalog]
	reading sync.Mutex
	stale   atomic.Uint64 // grows when this process changes the catalog
	seen    atomic.Uint64 // stale, as of current
}

// expire makes the next look read the catalog again.
func (c *catalogCache) expire() { c.stale.Add(1) }

// lookup returns a snapshot no older than catalogLife. In the caller's
// transaction, which may hold the pool's only connection, it reads through that;
// what it reads there it does not keep, as it may never be committed.
func (q *Queue) lookup(ctx context.Context, s *dialect.Session) (*catalog, error) {
	return q.lookupSince(ctx, s, time.Now().Add(-catalogLife))
}

// lookupNow is lookup for what shows people the state of things: it sees every
// lane and setting that was committed before the call.
func (q *Queue) lookupNow(ctx context.Context, s *dialect.Session) (*catalog, error) {
	return q.lookupSince(ctx, s, time.Now())
}

func (q *Queue) lookupSince(ctx context.Context, s *dialect.Session, since time.Time) (*catalog, error) {
	c := &q.catalog
	fresh := func(now *catalog) bool {
		return now != nil && now.read.After(since) && c.stale.Load() == c.seen.Load()
	}
	now := c.current.Load()
	if fresh(now) {
		return now, nil
	}
	if s.InTx() {
		return q.readCatalog(ctx, s, now)
	}
	c.reading.Lock()
	defer c.reading.Unlock()
	stale := c.stale.Load()
	if now = c.current.Load(); fresh(now) {
		return now, nil
	}
	if stale != c.seen.Load() {
		now = nil // read it whole
	}
	now, err := q.readCatalog(ctx, s, now)
	if err != nil {
		return nil, err
	}
	if before := c.current.Swap(now); before != nil && before.replaced(now) {
		q.popper.cursors.forget(nil)
		q.node.Store(0)
	}
	c.seen.Store(stale)
	return now, nil
}

// replaced reports that lanes are gone or are not what they were. They never do
// so by themselves: the database was restored or replaced.
func (c *catalog) replaced(now *catalog) bool {
	if c.lanes == now.lanes && c.version == now.version {
		return false
	}
	for lane, l := range c.byLane {
		n, ok := now.byLane[lane]
		if !ok || n.Queue != l.Queue || n.Priority != l.Priority || n.Shard != l.Shard {
			return true
		}
	}
	return false
}

// readCatalog reads the catalog if it differs from what is known.
func (q *Queue) readCatalog(ctx context.Context, s *dialect.Session, known *catalog) (*catalog, error) {
	next := &catalog{read: time.Now()}
	var state []struct {
		Lanes   int64 `db:"lanes"`
		Version int64 `db:"version"`
	}
	if err := s.Select(ctx, &state, q.texts.CatalogState, nil); err != nil {
		return nil, err
	}
	if len(state) == 0 {
		state = append(state, struct {
			Lanes   int64 `db:"lanes"`
			Version int64 `db:"version"`
		}{})
	}
	next.lanes, next.version = state[0].Lanes, state[0].Version
	if known != nil && known.lanes == next.lanes && known.version == next.version {
		same := *known
		same.read = next.read
		return &same, nil
	}
	var lanes []dialect.LaneRow
	if err := s.Select(ctx, &lanes, q.texts.Lanes, nil); err != nil {
		return nil, err
	}
	var queues []dialect.QueueRow
	if err := s.Select(ctx, &queues, q.texts.Queues, nil); err != nil {
		return nil, err
	}
	next.byLane = make(map[int32]dialect.LaneRow, len(lanes))
	next.byKey = make(map[laneKey]int32, len(lanes))
	next.byQueue = make(map[string][]dialect.LaneRow)
	next.queues = make(map[string]dialect.QueueRow, len(queues))
	for _, l := range lanes {
		next.byLane[l.Lane] = l
		next.byKey[laneKey{l.Queue, l.Priority, l.Shard}] = l.Lane
		next.byQueue[l.Queue] = append(next.byQueue[l.Queue], l)
	}
	for _, r := range queues {
		next.queues[r.Name] = r
		next.paused = next.paused || r.Paused == 1
	}
	return next, nil
}

// ensureLanes returns the lanes of some keys, and creates those that are not
// there, in one transaction. What is created here is not cached here: the session
// may be a transaction that rolls back. The next reading of the catalog finds it
// once it is committed.
func (q *Queue) ensureLanes(ctx context.Context, s *dialect.Session, keys []laneKey) (map[laneKey]int32, error) {
	// In their order, so that two transactions cannot wait for each other.
	slices.SortFunc(keys, func(a, b laneKey) int {
		return cmp.Or(cmp.Compare(a.queue, b.queue), cmp.Compare(a.priority, b.priority), cmp.Compare(a.shard, b.shard))
	})
	keys = slices.Compact(keys)
	lanes := make(map[laneKey]int32, len(keys))
	var missing []laneKey
	for _, key := range keys {
		lane, ok, err := q.findLane(ctx, s, q.texts.FindLane, key)
		if err != nil {
			return nil, err
		}
		if lanes[key] = lane; !ok {
			missing = append(missing, key)
		}
	}
	if len(missing) == 0 {
		return lanes, nil
	}
	err := s.Atomic(ctx, func(s *dialect.Session) error {
		for _, key := range missing {
			if _, err := s.Run(ctx, q.texts.AddLane, key.params()); err != nil {
				return err
			}
			lane, ok, err := q.findLane(ctx, s, q.texts.FindNewLane, key)
			if err == nil && !ok {
				err = errLaneUnseen
			}
			if err != nil {
				return err
			}
			lanes[key] = lane
		}
		return nil
	})
	if commit := (*dialect.CommitError)(nil); errors.As(err, &commit) {
		err = commit.Err // of the lanes: what the caller wants stored is not under way yet
	}
	if err != nil {
		return nil, err
	}
	if !s.InTx() {
		q.catalog.expire()
	}
	return lanes, nil
}

// ensureLane is ensureLanes of one key.
func (q *Queue) ensureLane(ctx context.Context, s *dialect.Session, key laneKey) (int32, error) {
	lanes, err := q.ensureLanes(ctx, s, []laneKey{key})
	return lanes[key], err
}

func (k laneKey) params() dialect.Params {
	return dialect.Params{"queue": k.queue, "priority": k.priority, "shard": k.shard}
}

func (q *Queue) findLane(ctx context.Context, s *dialect.Session, text string, key laneKey) (lane int32, ok bool, err error) {
	var rows []dialect.LaneRow
	if err := s.Select(ctx, &rows, text, key.params()); err != nil || len(rows) == 0 {
		return 0, false, err
	}
	return rows[0].Lane, true, nil
}
