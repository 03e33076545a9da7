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
	due   int     // how many due rows were looked at
	more  bool    // there are more than that
	until time.Time
}

// manyLanes is the number of lanes beyond which a pop first asks which of them
// hold anything, by a skip scan, instead of probing each.
func (q *Queue) manyLanes() int {
	if server := q.server.Load(); server != nil && server.ManyLanes > 0 {
		return server.ManyLanes
	}
	return dialect.DefaultManyLanes
}

// occupied returns the wanted lanes that hold jobs, no more than the engine probes:
// the highest priorities, and among equals another part each time.
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
	most := q.manyLanes()
	sortLanes(lanes)
	lanes = slices.CompactFunc(lanes, func(a, b dialect.LaneRow) bool { return a.Lane == b.Lane })
	if len(lanes) <= most {
		return lanes, nil
	}
	last := lanes[most-1].Priority
	from := slices.IndexFunc(lanes, func(l dialect.LaneRow) bool { return l.Priority == last })
	to := from
	for to < len(lanes) && lanes[to].Priority == last {
		to++
	}
	group := lanes[from:to]
	turn := int(q.turn.Add(1)) * (most - from) % len(group)
	group = slices.Concat(group[turn:], group[:turn])
	return append(lanes[:from:from], group[:most-from]...), nil
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
	o.lanes, o.due, o.more = make([]int32, 0, len(rows)), limit, false
	for _, r := range rows {
		if r.Lane == 0 {
			o.more = true
		} else {
			o.lanes = append(o.lanes, r.Lane)
		}
	}
	o.until = time.Now().Add(occupiedCost * time.Since(started))
	return o.lanes, o.due, o.more, nil
}
