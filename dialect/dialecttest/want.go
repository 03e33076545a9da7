package dialecttest

import (
	"cmp"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sqlqueue/queue"
	"github.com/sqlqueue/queue/dialect"
)

const (
	// within1s is how soon every process obeys what another has set.
	within1s = time.Second
	// soon is for what is no promise about time, on a busy machine.
	soon = 15 * time.Second
)

// ptr is for Settings.
func ptr[T any](v T) *T { return &v }

// same ends the test unless two values are the same.
func same[T comparable](f *fixture, what string, got, want T) {
	f.Helper()
	if got != want {
		f.Fatalf("%s: got %v, want %v", what, got, want)
	}
}

// sameList is same for lists.
func sameList[T comparable](f *fixture, what string, got, want []T) {
	f.Helper()
	if !slices.Equal(got, want) {
		f.Fatalf("%s: got %v, want %v", what, got, want)
	}
}

// wantErr ends the test unless err is one of the package's errors.
func (f *fixture) wantErr(what string, err, want error) {
	f.Helper()
	if !errors.Is(err, want) {
		f.Fatalf("%s: got error %v, want %v", what, err, want)
	}
}

// wantInvalid ends the test unless err refuses a field in clear words.
func (f *fixture) wantInvalid(what string, err error, field string) {
	f.Helper()
	var fe *queue.FieldError
	switch {
	case !errors.Is(err, queue.ErrInvalid):
		f.Fatalf("%s: got error %v, want %v", what, err, queue.ErrInvalid)
	case !errors.As(err, &fe):
		f.Fatalf("%s: %v is no *FieldError", what, err)
	case fe.Field != field:
		f.Fatalf("%s: the error %q is about field %q, want %q", what, err, fe.Field, field)
	case fe.Value == "" || fe.Remedy == "":
		f.Fatalf("%s: the error %q lacks its value or its remedy", what, err)
	case len(fe.Value) > 500:
		f.Fatalf("%s: the error repeats %d bytes of the value", what, len(fe.Value))
	}
	if text := err.Error(); !strings.Contains(text, fe.Field) || !strings.Contains(text, fe.Value) || !strings.Contains(text, fe.Remedy) {
		f.Fatalf("%s: %q does not name field, value and remedy", what, text)
	}
}

// wantBatch ends the test unless err is a *BatchError with just these errors.
func (f *fixture) wantBatch(what string, err error, want ...error) {
	f.Helper()
	var batch *queue.BatchError
	if !errors.As(err, &batch) {
		f.Fatalf("%s: got error %v, want a *BatchError", what, err)
	}
	if len(batch.Errs) != len(want) {
		f.Fatalf("%s: %d answers, want %d", what, len(batch.Errs), len(want))
	}
	for i, e := range batch.Errs {
		if want[i] == nil && e != nil || want[i] != nil && !errors.Is(e, want[i]) {
			f.Fatalf("%s: job %d: got error %v, want %v", what, i, e, want[i])
		}
	}
}

// info is Get.
func (f *fixture) info(id int64) queue.JobInfo {
	f.Helper()
	info, err := f.q.Get(f.ctx, id)
	f.must(err)
	if info.ID != id {
		f.Fatalf("Get(%d) returned job %d", id, info.ID)
	}
	return info
}

// wantState ends the test unless a job is in a state.
func (f *fixture) wantState(id int64, want queue.State) queue.JobInfo {
	f.Helper()
	info := f.info(id)
	if info.State != want {
		f.Fatalf("job %d is %s, want %s", id, info.State, want)
	}
	return info
}

// wantGone ends the test unless a job has left no trace.
func (f *fixture) wantGone(id int64) {
	f.Helper()
	if info, err := f.q.Get(f.ctx, id); !errors.Is(err, queue.ErrNotFound) {
		f.Fatalf("Get(%d) = %s, %v, want %v", id, info.State, err, queue.ErrNotFound)
	}
}

// wantStats ends the test unless these are the numbers of queue "q".
func (f *fixture) wantStats(ready, delayed, running, dead int64) queue.Stats {
	f.Helper()
	s := f.stats()
	if s.Ready != ready || s.Delayed != delayed || s.Running != running || s.Dead != dead || s.Estimated {
		f.Fatalf("stats are %+v, want ready %d, delayed %d, running %d, dead %d, not estimated", s, ready, delayed, running, dead)
	}
	return s
}

// list is what Jobs finds, in its order.
func (f *fixture) list(filter queue.Filter) []queue.JobInfo {
	f.Helper()
	var out []queue.JobInfo
	for info, err := range f.q.Jobs(f.ctx, filter) {
		f.must(err)
		out = append(out, info)
	}
	return out
}

// wantNothing ends the test if any job or queue exists.
func (f *fixture) wantNothing(what string) {
	f.Helper()
	if jobs := f.list(queue.Filter{}); len(jobs) != 0 {
		f.Fatalf("%s: %d jobs were stored", what, len(jobs))
	}
	names, err := f.q.Queues(f.ctx)
	f.must(err)
	if len(names) != 0 {
		f.Fatalf("%s: the queues %q were created", what, names)
	}
}

// popFrom pops up to n jobs of some queues, all when none are named, with a
// lease of a minute.
func (f *fixture) popFrom(n int, queues ...string) []*queue.Job {
	f.Helper()
	jobs, err := f.q.Pop(f.ctx, n, &queue.PopOptions{Queues: queues, Lease: time.Minute})
	f.must(err)
	return jobs
}

// popSoon pops n jobs with q, which may need a moment to see their lane.
func (f *fixture) popSoon(q *queue.Queue, n int) []*queue.Job {
	f.Helper()
	var out []*queue.Job
	f.within(soon, fmt.Sprintf("%d jobs popped", n), func() bool {
		jobs, err := q.Pop(f.ctx, n-len(out), &queue.PopOptions{Queues: []string{"q"}, Lease: time.Minute})
		f.must(err)
		out = append(out, jobs...)
		return len(out) == n
	})
	return out
}

// byID puts jobs into the order of their ids.
func byID(jobs []*queue.Job) []*queue.Job {
	slices.SortFunc(jobs, func(a, b *queue.Job) int { return cmp.Compare(a.ID, b.ID) })
	return jobs
}

// inOrder puts jobs into the order in which they were pushed.
func inOrder(pushed []queue.Pushed, jobs []*queue.Job) []*queue.Job {
	at := func(j *queue.Job) int {
		return slices.IndexFunc(pushed, func(p queue.Pushed) bool { return p.ID == j.ID })
	}
	slices.SortFunc(jobs, func(a, b *queue.Job) int { return cmp.Compare(at(a), at(b)) })
	return jobs
}

// transient reports that the database refused a transaction of the caller's for
// a passing reason.
func (f *fixture) transient(err error) bool {
	f.Helper()
	if err == nil {
		return false
	}
	engine, openErr := f.e.Dialect.Open(dialect.Namespace{})
	f.must(openErr)
	return engine.Classify(err).Transient()
}

func ids(jobs []*queue.Job) []int64 {
	out := make([]int64, len(jobs))
	for i, j := range jobs {
		out[i] = j.ID
	}
	return out
}

func pushedIDs(pushed []queue.Pushed) []int64 {
	out := make([]int64, len(pushed))
	for i, p := range pushed {
		out[i] = p.ID
	}
	return out
}

func infoIDs(infos []queue.JobInfo) []int64 {
	out := make([]int64, len(infos))
	for i, j := range infos {
		out[i] = j.ID
	}
	return out
}

func payloads(jobs []*queue.Job) []string {
	out := make([]string, len(jobs))
	for i, j := range jobs {
		out[i] = string(j.Payload)
	}
	return out
}

// now is the database's clock.
func (f *fixture) now() time.Time {
	f.Helper()
	// Delayed, so that no consumer of all queues takes it.
	p, err := f.q.Push(f.ctx, queue.NewJob{Queue: "clock", Kind: "k", Delay: time.Hour})
	f.must(err)
	now := f.info(p.ID).CreatedAt
	f.must(f.q.Cancel(f.ctx, p.ID))
	return now
}

// begin begins a transaction of the user's, rolled back at the end of the test
// unless it has ended before.
func (f *fixture) begin() *sql.Tx {
	f.Helper()
	tx, err := f.db.BeginTx(f.ctx, nil)
	f.must(err)
	f.Cleanup(func() { tx.Rollback() })
	return tx
}

// sub runs a part of a case on the same database.
func (f *fixture) sub(name string, run func(*fixture)) {
	f.Helper()
	f.Run(name, func(t *testing.T) {
		part := *f
		part.T = t
		run(&part)
	})
}
