package queue

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/sqlqueue/queue/dialect"
)

const (
	// occupiedCost bounds the search for occupied lanes to a few percent of the
	// time: its answer is used for as long as it took times this.
	occupiedCost = 20
	// occupiedDue is how many due rows the search looks at. When they all belong
	// to queues that this pop does not want, as those of a paused one, it looks at
	// occupiedMore times as many, and so on.
	occupiedDue  = 1000
	occupiedMore = 16
)

type occupiedCache struct {
	mu    sync.Mutex
	lanes []int32 // negative: the due side
	has   map[int32]bool
	due   int  // how many due rows were looked at
	more  bool // there are more than that
	until time.Time
}

// put adds a lane. o.mu is held.
func (o *occupiedCache) put(lane int32) {
	if !o.has[lane] {
		o.has[lane] = true
		o.lanes = append(o.lanes, lane)
	}
}

// note adds lanes in which this process has just put jobs: it must not wait for
// the next search to find its own.
func (o *occupiedCache) note(lanes ...int32) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.has == nil {
		return // nobody has searched yet
	}
	for _, lane := range lanes {
		o.put(lane)
	}
}

// manyLanes is the number of lanes beyond which a pop first asks which of them
// hold anything, by a skip scan, instead of probing each.
func (q *Queue) manyLanes() int {
	if server := q.server.Load(); server != nil && server.ManyLanes > 0 {
		return server.ManyLanes
	}
	return dialect.DefaultManyLanes
}

// occupied returns the wanted lanes that hold jobs, highest priority first, and
// among equals beginning with another one each time.
func (q *Queue) occupied(ctx context.Context, s *dialect.Session, c *catalog, wanted func(string) bool) ([]dialect.LaneRow, error) {
	var lanes []dialect.LaneRow
	for atLeast := 0; ; {
		found, looked, more, err := q.findOccupied(ctx, s, atLeast)
		if err != nil {
			return nil, err
		}
		lanes = nil
		due := false
		for _, lane := range found {
			if l, ok := c.byLane[max(lane, -lane)]; ok && wanted(l.Queue) && !c.isPaused(l.Queue) {
				lanes = append(lanes, l)
				due = due || lane < 0
			}
		}
		if due || !more {
			break
		}
		atLeast = occupiedMore * looked
	}
	sortLanes(lanes)
	lanes = slices.CompactFunc(lanes, func(a, b dialect.LaneRow) bool { return a.Lane == b.Lane })
	if len(lanes) <= q.manyLanes() {
		return lanes, nil
	}
	turn := int(q.turn.Add(1)) * q.manyLanes()
	for from := 0; from < len(lanes); {
		to := from
		for to < len(lanes) && lanes[to].Priority == lanes[from].Priority {
			to++
		}
		group := lanes[from:to]
		first := turn % len(group)
		copy(group, slices.Concat(group[first:], group[:first]))
		from = to
	}
	return lanes, nil
}

// findOccupied returns the lanes that hold jobs, the due ones as found among the
// first so many due rows, at least those that the caller asks for.
func (q *Queue) findOccupied(ctx context.Context, s *dialect.Session, atLeast int) (lanes []int32, due int, more bool, err error) {
	o := &q.occupiedLanes
	o.mu.Lock()
	defer o.mu.Unlock()
	started := time.Now()
	if started.Before(o.until) && (o.due >= atLeast || !o.more) {
		return o.lanes, o.due, o.more, nil
	}
	limit := max(occupiedDue, o.due/2, atLeast)
	var rows []struct {
		Lane int32 `db:"lane"`
	}
	if err := s.Select(ctx, &rows, q.texts.Occupied, dialect.Params{"limit": limit}); err != nil {
		return nil, 0, false, err
	}
	o.lanes, o.has, o.due, o.more = make([]int32, 0, len(rows)), make(map[int32]bool, len(rows)), limit, false
	for _, r := range rows {
		if r.Lane == 0 {
			o.more = true
		} else {
			o.put(r.Lane)
		}
	}
	o.until = time.Now().Add(occupiedCost * time.Since(started))
	return o.lanes, o.due, o.more, nil
}
