package queue

import (
	"math/rand/v2"
	"sync"
	"time"

	"github.com/sqlqueue/queue/dialect"
)

// Cursors are where this process scans, per lane. They only spare work: a
// cursor that is wrong in either direction costs time, never a job.
//
// Behind a cursor lie rows in flight, rows whose lease ran out, and rows whose
// transaction committed late. A pop that comes back short looks again at what
// the cursor passed in the last second or two (the lookback); everything else
// behind it is found by the recheck.
type cursors struct {
	mu    sync.Mutex
	lanes map[int32]*cursor
	turn  uint32
}

type cursor struct {
	ready, due mark
	empty      bool      // the last scan of the ready side found its end
	recheck    time.Time // when this process tries the next recheck
	backs      int       // how often it was moved back
}

// A mark is a position that remembers where it was a second or two ago.
type mark struct {
	now, before, low position
	turned           time.Time
}

// A position is an id on the ready side, and (run_at, id) on the due side.
type position struct{ at, id int64 }

func (p position) after(o position) bool { return p.at > o.at || p.at == o.at && p.id > o.id }

const (
	// lookback is how far back in time a short pop looks: between once and twice
	// this. Without it a late commit waits for the recheck: at 1,000 jobs/s from
	// 8 producers the 99.9th percentile goes from 6 to 21 ms.
	lookback = time.Second
	// lookbackIDs bounds it in rows.
	lookbackIDs = 10_000
	// rechecksPerPop bounds how many lanes one pop rechecks.
	rechecksPerPop = 8
)

// turnOver ages the mark.
func (m *mark) turnOver(now time.Time) {
	switch age := now.Sub(m.turned); {
	case age >= 2*lookback:
		m.low, m.before, m.turned = m.now, m.now, now
	case age >= lookback:
		m.low, m.before, m.turned = m.before, m.now, now
	}
}

func (m *mark) advance(p position) {
	if p.after(m.now) {
		m.now = p
	}
}

// back moves the mark back: there is much to do behind it.
func (m *mark) back(p position) {
	if m.now.after(p) {
		*m = mark{now: p, before: p, low: p}
	}
}

// A scan is a step of a claim and what it is for.
type scan struct {
	dialect.Step
	forward bool // moves the cursor
	backs   int  // of the cursor when the plan was made
}

// plan returns the scans of one pop over lanes that share queues: from the
// highest priority down, the rechecks whose turn has come, the due and the ready
// side of the lanes; then the lookback.
func (c *cursors) plan(lanes []dialect.LaneRow) []scan {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	c.turn++
	var forward, lookbacks []scan
	rechecks := 0
	for len(lanes) > 0 {
		n := 1
		for n < len(lanes) && lanes[n].Priority == lanes[0].Priority {
			n++
		}
		group := lanes[:n]
		// One of 2n turns, by the golden ratio: they come evenly also to each of
		// several calls that take turns, as pops of one queue and then another do.
		slot := int(uint64(c.turn*2654435769) * uint64(2*n) >> 32)
		lanes = lanes[n:]
		var due, ready, idle []scan
		for i := range group {
			// Every pop begins at another lane, so that queues share fairly and
			// consumers do not meet on the same rows.
			l := group[(slot/2+i)%n]
			k := c.of(l, now)
			due = append(due, scan{dialect.Step{Lane: l.Lane, Due: true, FromAt: k.due.now.at, FromID: k.due.now.id}, true, k.backs})
			step := scan{dialect.Step{Lane: l.Lane, FromID: k.ready.now.id}, true, k.backs}
			if k.empty {
				idle = append(idle, step)
			} else {
				ready = append(ready, step)
			}
			if k.due.now.after(k.due.low) {
				lookbacks = append(lookbacks, scan{dialect.Step{Lane: l.Lane, Due: true, FromAt: k.due.low.at, FromID: k.due.low.id}, false, k.backs})
			}
			if k.ready.now.after(k.ready.low) {
				from := max(k.ready.low.id, k.ready.now.id-lookbackIDs)
				lookbacks = append(lookbacks, scan{dialect.Step{Lane: l.Lane, FromID: from}, false, k.backs})
			}
			if rechecks < rechecksPerPop && !now.Before(k.recheck) {
				// More often than rechecks take place: whoever comes first after the
				// interval does it, for all processes.
				k.recheck = now.Add(dialect.RecheckInterval/2 + rand.N(dialect.RecheckInterval/4))
				rechecks++
				forward = append(forward, scan{dialect.Step{Lane: l.Lane, Recheck: true, FromID: k.ready.now.id}, false, k.backs})
			}
		}
		// Neither side may starve the other: they take turns at being first.
		ready = append(ready, idle...)
		if slot%2 == 0 {
			forward = append(append(forward, due...), ready...)
		} else {
			forward = append(append(forward, ready...), due...)
		}
	}
	return append(forward, lookbacks...)
}

func (c *cursors) of(l dialect.LaneRow, now time.Time) *cursor {
	k := c.lanes[l.Lane]
	if k == nil {
		if c.lanes == nil {
			c.lanes = map[int32]*cursor{}
		}
		start := position{id: l.Cursor}
		k = &cursor{ready: mark{now: start, before: start, low: start, turned: now}}
		k.due.turned = now
		c.lanes[l.Lane] = k
	}
	k.ready.turnOver(now)
	k.due.turnOver(now)
	return k
}

// learn moves the cursors by what a claim for n jobs found.
func (c *cursors) learn(scans []scan, n int, claimed dialect.Claimed) {
	c.mu.Lock()
	defer c.mu.Unlock()
	rows := claimed.Rows
	full := len(rows) >= n
	last := len(scans) - 1 // the last scan that was made
	if full {
		last = rows[len(rows)-1].Step
	}
	for i := 0; i <= last; i++ {
		s := scans[i]
		k := c.lanes[s.Lane]
		var found []dialect.ClaimedRow
		for len(rows) > 0 && rows[0].Step == i {
			found, rows = append(found, rows[0]), rows[1:]
		}
		if k == nil || s.backs != k.backs {
			continue // no cursor, or one that moved back since the plan was made
		}
		short := i < last || !full
		switch {
		case s.Recheck:
			// If it filled the pop there is more where that came from: a node died,
			// or ids began anew after a restore.
			if len(found) > 0 && !short {
				k.backs++
				if r := found[len(found)-1]; r.RunAt != 0 {
					k.due.back(position{r.RunAt, r.ID})
				} else {
					k.ready.back(position{id: r.ID + 1})
				}
			}
		case !s.forward:
		case s.Due:
			if len(found) > 0 {
				r := found[len(found)-1]
				k.due.advance(position{r.RunAt, r.ID})
			}
			if short && claimed.Now > 0 {
				k.due.advance(position{claimed.Now, 0})
			}
		default:
			if len(found) > 0 {
				k.ready.advance(position{id: found[len(found)-1].ID + 1})
			}
			k.empty = short
		}
	}
}

// forget drops the cursors of lanes that the catalog no longer has.
func (c *cursors) forget(known map[int32]dialect.LaneRow) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for lane := range c.lanes {
		if _, ok := known[lane]; !ok {
			delete(c.lanes, lane)
		}
	}
}
