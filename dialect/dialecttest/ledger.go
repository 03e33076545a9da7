package dialecttest

import (
	"cmp"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sqlqueue/queue"
)

// A ledger keeps who held which job and when, by the database's clock, and in
// the end says what went wrong.
type ledger struct {
	mu     sync.Mutex
	leases map[int64][]*holding
	pushed map[int64]bool
	acked  map[int64]int
}

// A holding is one lease, as its holder knows it.
type holding struct {
	*queue.Job
	from, until time.Time // by the database's clock; it lasts until then at least
	got         time.Time // when the pop returned, by this process's clock
	ended       string    // by which call it was settled
	asked       time.Time // when that call was made
}

func newLedger() *ledger {
	return &ledger{leases: map[int64][]*holding{}, pushed: map[int64]bool{}, acked: map[int64]int{}}
}

func (l *ledger) push(pushed []queue.Pushed) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range pushed {
		l.pushed[p.ID] = true
	}
}

// pop records what a pop with this lease time returned.
func (l *ledger) pop(jobs []*queue.Job, lease time.Duration) []*holding {
	got := time.Now()
	out := make([]*holding, len(jobs))
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, j := range jobs {
		out[i] = &holding{Job: j, from: j.LeasedUntil.Add(-lease), until: j.LeasedUntil, got: got}
		l.leases[j.ID] = append(l.leases[j.ID], out[i])
	}
	return out
}

// settle makes a call on leases and records what each was answered. An error
// that is no answer of a lease's is returned.
func (l *ledger) settle(what string, hs []*holding, call func([]*queue.Job) error) error {
	asked := time.Now()
	jobs := make([]*queue.Job, len(hs))
	for i, h := range hs {
		jobs[i] = h.Job
	}
	errs := make([]error, len(hs))
	err := call(jobs)
	var batch *queue.BatchError
	switch {
	case errors.As(err, &batch):
		errs = batch.Errs
	case err != nil && len(jobs) == 1:
		errs[0] = err
	case err != nil:
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, h := range hs {
		switch {
		case errors.Is(errs[i], queue.ErrLeaseLost):
		case what == "extend" && errors.Is(errs[i], queue.ErrLeaseBusy): // it ran out, and somebody is taking it
		case errs[i] != nil:
			return errs[i]
		default:
			h.ended, h.asked = what, asked
			if what == "ack" {
				l.acked[h.ID]++
			}
		}
	}
	return nil
}

// extend records an extension by d: the claim came before the pop returned, so
// that by the database's clock at least so much time had passed since.
func (l *ledger) extend(hs []*holding, d time.Duration, call func([]*queue.Job) error) error {
	asked := time.Now()
	extended := make([]*holding, len(hs))
	for i, h := range hs {
		extended[i] = &holding{Job: h.Job}
	}
	if err := l.settle("extend", extended, call); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, h := range hs {
		if extended[i].ended != "" {
			h.until = h.from.Add(asked.Sub(h.got) + d)
		}
	}
	return nil
}

func (l *ledger) done() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.acked)
}

// check reports each broken promise, up to a few.
func (l *ledger) check(t *testing.T) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	problems := 0
	report := func(format string, args ...any) {
		if problems++; problems <= 10 {
			t.Errorf(format, args...)
		}
	}
	for id := range l.pushed {
		if n := l.acked[id]; n != 1 {
			report("job %d was acked %d times, want once", id, n)
		}
	}
	for id, hs := range l.leases {
		if !l.pushed[id] {
			report("job %d was popped and never pushed", id)
		}
		// A clock may stand still from one lease to the next.
		slices.SortFunc(hs, func(a, b *holding) int { return cmp.Or(a.from.Compare(b.from), a.got.Compare(b.got)) })
		if hs[0].Attempt != 1 {
			report("job %d: the first pop was attempt %d", id, hs[0].Attempt)
		}
		for i, b := range hs[1:] {
			a := hs[i]
			want := a.Attempt + 1
			switch a.ended {
			case "ack":
				report("job %d was handed out again after its ack", id)
			case "":
				if b.from.Before(a.until) {
					report("job %d was leased by two at once: again %v before its lease ended", id, a.until.Sub(b.from))
				}
			default:
				if a.asked.After(b.got) {
					report("job %d: a %s of a lease worked after somebody else had popped the job", id, a.ended)
				}
				if a.ended == "release" {
					want--
				}
			}
			if b.Attempt != want {
				report("job %d: attempt %d after attempt %d and %q", id, b.Attempt, a.Attempt, a.ended)
			}
		}
	}
	if problems > 10 {
		t.Errorf("and %d more", problems-10)
	}
}
