package queue

import (
	"sync/atomic"

	"github.com/sqlqueue/queue/dialect"
)

// Counters are what this Queue has done since New. They only grow.
type Counters struct {
	Pushed     int64 // jobs stored, those of open transactions included
	Popped     int64 // jobs handed out
	Pops       int64 // calls of Pop
	EmptyPops  int64 // calls of Pop that found nothing
	Claims     int64 // claim statements; concurrent pops share them
	Acked      int64
	Failed     int64
	Buried     int64 // jobs whose last lease ran out, made dead by a pop
	LeasesLost int64
	// Retries are transactions of the library's own that were run again, by
	// cause.
	Retries struct{ Deadlock, Serialization, Busy int64 }
	// Refused are errors of the database by cause, retried or not.
	Refused struct{ Deadlock, Serialization, Busy, Disconnected int64 }
}

type counters struct {
	pushed, popped, pops, emptyPops, claims, acked, failed, buried, lost atomic.Int64
	retries, errors                                                      [16]atomic.Int64 // by dialect.Class
}

func (c *counters) retry(class dialect.Class)    { c.retries[class].Add(1) }
func (c *counters) database(class dialect.Class) { c.errors[class].Add(1) }

// Counters returns a reading of the counters.
func (q *Queue) Counters() Counters {
	c := &q.counters
	out := Counters{
		Pushed: c.pushed.Load(), Popped: c.popped.Load(), Pops: c.pops.Load(), EmptyPops: c.emptyPops.Load(),
		Claims: c.claims.Load(), Acked: c.acked.Load(), Failed: c.failed.Load(), Buried: c.buried.Load(),
		LeasesLost: c.lost.Load(),
	}
	out.Retries.Deadlock = c.retries[dialect.Deadlock].Load()
	out.Retries.Serialization = c.retries[dialect.Serialization].Load()
	out.Retries.Busy = c.retries[dialect.Busy].Load()
	out.Refused.Deadlock = c.errors[dialect.Deadlock].Load()
	out.Refused.Serialization = c.errors[dialect.Serialization].Load()
	out.Refused.Busy = c.errors[dialect.Busy].Load()
	out.Refused.Disconnected = c.errors[dialect.Disconnected].Load()
	return out
}
