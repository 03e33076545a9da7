package queue

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sqlqueue/queue/dialect"
)

// PopOptions of a pop. nil is the zero value.
type PopOptions struct {
	// Queues to pop from. Empty: all.
	Queues []string
	// Lease is how long the jobs are the caller's, unless a job has a lease time
	// of its own. Default DefaultLease.
	Lease time.Duration
}

// DefaultLease is the lease of a pop that does not say.
const DefaultLease = 5 * time.Minute

// Pop leases up to n jobs (at most MaxBatch), higher priorities first. Finding
// none is no error: the slice is empty. Pop does not wait for jobs.
//
// Concurrent pops of a process that ask for the same queues and lease share
// claim statements. A pop whose context ends returns at once; what was claimed
// for it is given back, the attempt not counted.
func (q *Queue) Pop(ctx context.Context, n int, opts *PopOptions) ([]*Job, error) {
	if opts == nil {
		opts = &PopOptions{}
	}
	lease := cmp.Or(opts.Lease, DefaultLease)
	if err := checkCount("n", n, MaxBatch); err != nil {
		return nil, err
	}
	if err := checkLease("PopOptions.Lease", lease); err != nil {
		return nil, err
	}
	if len(opts.Queues) > MaxPopQueues {
		return nil, invalid("PopOptions.Queues", len(opts.Queues), fmt.Sprintf("name at most %d queues, or none for all", MaxPopQueues))
	}
	for _, name := range opts.Queues {
		if err := checkText("PopOptions.Queues", name, MaxNameBytes); err != nil {
			return nil, err
		}
	}
	if q.closed.Load() {
		return nil, ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	jobs, err := q.popper.pop(ctx, n, popKey{strings.Join(opts.Queues, "\x00"), lease})
	q.counters.pops.Add(1)
	if err == nil && len(jobs) == 0 {
		q.counters.emptyPops.Add(1)
	}
	q.counters.popped.Add(int64(len(jobs)))
	return jobs, err
}

// PopID leases one waiting job by its id, due or not, of a paused queue too.
// ErrNotWaiting: somebody holds it, or it is finished. ErrNotFound: no such job.
func (q *Queue) PopID(ctx context.Context, id int64, lease time.Duration) (*Job, error) {
	lease = cmp.Or(lease, DefaultLease)
	if err := checkLease("lease", lease); err != nil {
		return nil, err
	}
	var jobs []*Job
	err := q.write(ctx, func(ctx context.Context, s *dialect.Session) error {
		row, err := q.find(ctx, s, q.texts.Find, id)
		if err != nil {
			return err
		}
		step := dialect.Step{Lane: row.Lane, FromID: id, Only: true}
		if row.Lane < 0 {
			step.Lane, step.Due = -row.Lane, true
		}
		var c *catalog
		if c, err = q.lookup(ctx, s); err != nil {
			return err
		}
		jobs, err = q.claim(ctx, s, c, []scan{{Step: step}}, 1, lease)
		for _, job := range jobs { // the lane may be newer than the catalog
			job.Queue, job.Priority = row.Queue, row.Priority
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if len(jobs) == 0 {
		return nil, fmt.Errorf("queue: job %d: %w: somebody holds it", id, ErrNotWaiting)
	}
	q.counters.popped.Add(1)
	return jobs[0], nil
}

// popKey is what pops must have in common to share a claim.
type popKey struct {
	queues string
	lease  time.Duration
}

// A popper merges the pops of a process: while maxFlights claims are under way
// the next ones gather, and leave together as one. Many consumers so cost the
// database no more contention than a few.
type popper struct {
	q       *Queue
	cursors cursors
	flights sync.WaitGroup

	mu      sync.Mutex
	waiting map[popKey][]*popCall
	flying  map[popKey]int
}

// maxFlights is measured: eight consumers, batches of 100, take a quarter less
// processor time per job with 2 flights than with 8, and no more than with 1,
// which would leave the database idle between two claims.
const maxFlights = 2

type popCall struct {
	n      int
	answer chan popAnswer // of one
	gone   bool           // the caller has left; guarded by popper.mu
}

type popAnswer struct {
	jobs []*Job
	err  error
}

func (p *popper) init(q *Queue) {
	p.q = q
	p.waiting = map[popKey][]*popCall{}
	p.flying = map[popKey]int{}
	p.cursors.turn = rand.Uint32() // processes begin at different lanes
}

func (p *popper) wait() { p.flights.Wait() }

func (p *popper) pop(ctx context.Context, n int, key popKey) ([]*Job, error) {
	call := &popCall{n: n, answer: make(chan popAnswer, 1)}
	p.mu.Lock()
	if p.q.closed.Load() { // under the lock, or Close would not wait for this one
		p.mu.Unlock()
		return nil, ErrClosed
	}
	p.waiting[key] = append(p.waiting[key], call)
	p.launch(ctx, key)
	p.mu.Unlock()
	select {
	case a := <-call.answer:
		return a.jobs, a.err
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case a := <-call.answer: // it came just now
		return a.jobs, a.err
	default:
		call.gone = true
		return nil, ctx.Err()
	}
}

// launch starts a flight if there is room for one. p.mu is held.
func (p *popper) launch(ctx context.Context, key popKey) {
	calls := p.waiting[key]
	if p.flying[key] >= maxFlights || len(calls) == 0 {
		return
	}
	want, n := 0, 0
	for n < len(calls) && want+calls[n].n <= MaxBatch {
		want += calls[n].n
		n++
	}
	if n == len(calls) {
		delete(p.waiting, key)
	} else {
		p.waiting[key] = calls[n:]
	}
	p.flying[key]++
	p.flights.Add(1)
	go p.fly(context.WithoutCancel(ctx), key, calls[:n:n])
}

// flightLife bounds a flight whose callers may all have left.
const flightLife = time.Minute

// fly claims for calls and hands out what it got, in their order. It does not
// end with any caller's context: a claim whose answer nobody reads would leave
// its jobs leased to nobody.
func (p *popper) fly(ctx context.Context, key popKey, calls []*popCall) {
	defer p.flights.Done()
	ctx, cancel := context.WithTimeout(ctx, flightLife)
	defer cancel()

	p.mu.Lock()
	want := 0
	for _, c := range calls {
		if !c.gone {
			want += c.n
		}
	}
	p.mu.Unlock()
	var jobs []*Job
	var err error
	if want > 0 {
		err = p.q.flight(ctx, func(ctx context.Context, s *dialect.Session) (err error) {
			jobs, err = p.q.popFrom(ctx, s, key, want)
			return err
		})
	}

	p.mu.Lock()
	for _, c := range calls {
		if c.gone {
			continue
		}
		n := min(c.n, len(jobs))
		c.answer <- popAnswer{jobs[:n:n], err}
		jobs = jobs[n:]
	}
	p.flying[key]--
	if p.flying[key] == 0 {
		delete(p.flying, key)
	}
	p.launch(ctx, key)
	p.mu.Unlock()

	if len(jobs) > 0 { // their callers have left
		if err := p.q.giveBack(ctx, jobs); err != nil {
			p.q.options.Logger.Warn("queue: jobs of a cancelled pop could not be given back; they come back when their leases end",
				"jobs", len(jobs), "error", err)
		}
	}
}

// flight is read for a claim: it goes on after Close, which waits for it. An
// unknown outcome is not told apart: leases that nobody knows of run out.
func (q *Queue) flight(ctx context.Context, fn func(context.Context, *dialect.Session) error) error {
	_, err := q.attempt(ctx, fn)
	return err
}

// popFrom claims up to n jobs of some queues.
func (q *Queue) popFrom(ctx context.Context, s *dialect.Session, key popKey, n int) ([]*Job, error) {
	c, err := q.lookup(ctx, s)
	if err != nil {
		return nil, err
	}
	lanes, err := q.lanesOf(ctx, s, c, key.queues)
	if err != nil || len(lanes) == 0 {
		return nil, err
	}
	var jobs []*Job
	for range maxClaims {
		some := lanes[:min(len(lanes), q.manyLanes())]
		lanes = lanes[len(some):]
		more, err := q.popSome(ctx, s, c, some, n-len(jobs), key.lease)
		if err != nil && len(jobs) == 0 {
			return nil, err
		}
		jobs = append(jobs, more...)
		// What went wrong after the first claim the next pop will meet.
		if err != nil || len(jobs) == n || len(lanes) == 0 {
			break
		}
	}
	return jobs, nil
}

// maxClaims bounds how many claims one pop makes where more lanes hold jobs than
// one claim probes. The next pop begins at others.
const maxClaims = 8

// popSome claims up to n jobs of some lanes.
func (q *Queue) popSome(ctx context.Context, s *dialect.Session, c *catalog, lanes []dialect.LaneRow, n int, lease time.Duration) ([]*Job, error) {
	// Jobs found dead do not count: a pop must not look empty because of them.
	for range 10 {
		scans := q.popper.cursors.plan(lanes)
		var buried int
		jobs, err := q.claimAnd(ctx, s, c, scans, n, lease, &buried)
		if err != nil || len(jobs) > 0 || buried == 0 {
			return jobs, err
		}
	}
	return nil, nil
}

// lanesOf returns the lanes to pop from, highest priority first, without those
// of paused queues.
func (q *Queue) lanesOf(ctx context.Context, s *dialect.Session, c *catalog, queues string) ([]dialect.LaneRow, error) {
	var lanes []dialect.LaneRow
	if queues == "" {
		if !c.paused {
			lanes = make([]dialect.LaneRow, 0, len(c.byLane))
		}
		if len(c.byLane) > q.manyLanes() {
			return q.occupied(ctx, s, c, func(string) bool { return true })
		}
		for _, l := range c.byLane {
			if !c.isPaused(l.Queue) {
				lanes = append(lanes, l)
			}
		}
	} else {
		names := strings.Split(queues, "\x00")
		n := 0
		for _, name := range names {
			n += len(c.byQueue[name])
		}
		if n > q.manyLanes() {
			wanted := make(map[string]bool, len(names))
			for _, name := range names {
				wanted[name] = true
			}
			return q.occupied(ctx, s, c, func(name string) bool { return wanted[name] })
		}
		for i, name := range names {
			if !c.isPaused(name) && !slices.Contains(names[:i], name) {
				lanes = append(lanes, c.byQueue[name]...)
			}
		}
	}
	sortLanes(lanes)
	return lanes, nil
}

func sortLanes(lanes []dialect.LaneRow) {
	slices.SortFunc(lanes, func(a, b dialect.LaneRow) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.Lane, b.Lane))
	})
}

// claim leases jobs and turns rows into them.
func (q *Queue) claim(ctx context.Context, s *dialect.Session, c *catalog, scans []scan, n int, lease time.Duration) ([]*Job, error) {
	var buried int
	return q.claimAnd(ctx, s, c, scans, n, lease, &buried)
}

func (q *Queue) claimAnd(ctx context.Context, s *dialect.Session, c *catalog, scans []scan, n int, leaseTime time.Duration, buried *int) ([]*Job, error) {
	node, err := q.nodeID(ctx, s)
	if err != nil {
		return nil, err
	}
	steps := make([]dialect.Step, len(scans))
	for i, s := range scans {
		steps[i] = s.Step
	}
	before := time.Now()
	req := dialect.ClaimRequest{Steps: steps, N: n, Token: 1 + rand.Int64N(math.MaxInt64), Node: node, Lease: leaseTime}
	claimed, err := q.engine.Claim(ctx, s, req)
	if err != nil {
		return nil, err
	}
	q.counters.claims.Add(1)
	q.popper.cursors.learn(scans, n, claimed)

	jobs := make([]*Job, 0, len(claimed.Rows))
	var broken []Failure
	var dead []dialect.Settlement
	for _, r := range claimed.Rows {
		job := &Job{
			ID: r.ID, Kind: r.Kind, Payload: r.Payload, Attempt: r.Attempt, MaxAttempts: r.MaxAttempts,
			UniqueKey: r.UniqueKey, CreatedAt: micros(r.CreatedAt), RunAt: micros(r.RunAt),
			LeasedUntil: micros(r.LeasedUntil), Errors: decodeErrors(r.Errors),
			lease: lease{lane: r.Lane, runAt: r.RunAt, token: req.Token, errors: r.Errors, asOf: micros(claimed.Now), claimed: before},
		}
		l := c.byLane[max(r.Lane, -r.Lane)]
		job.Queue, job.Priority = l.Queue, l.Priority
		if r.Attempt > r.MaxAttempts {
			// The last attempt's holder never came back.
			job.Attempt--
			dead = append(dead, q.settlement(job, dialect.Settlement{
				Verdict: dialect.Archive, State: dialect.Dead,
				Errors: q.appendError(job, fmt.Sprintf("the lease of the last attempt (%d of %d) ran out: its worker died, or took longer than the lease", job.Attempt, r.MaxAttempts)),
			}))
			continue
		}
		var err error
		if job.Headers, err = decodeHeaders(r.Headers); err != nil {
			broken = append(broken, Failure{Job: job, Err: err})
			continue
		}
		jobs = append(jobs, job)
	}
	// What goes wrong from here on must not strand the jobs that are fine: the
	// leases of the others run out, and the next pop does the same again.
	if len(dead) > 0 {
		if _, err := q.engine.Settle(ctx, s, dead); err != nil {
			return jobs, q.unlessJobs(jobs, err)
		}
		*buried += len(dead)
		q.counters.buried.Add(int64(len(dead)))
	}
	if len(broken) > 0 {
		if _, err := q.engine.Settle(ctx, s, q.verdicts(broken)); err != nil {
			return jobs, q.unlessJobs(jobs, err)
		}
		*buried += len(broken)
		q.counters.failed.Add(int64(len(broken)))
	}
	return jobs, nil
}

// unlessJobs drops a side error when there are jobs to hand out.
func (q *Queue) unlessJobs(jobs []*Job, err error) error {
	if len(jobs) == 0 {
		return err
	}
	q.options.Logger.Warn("queue: jobs found dead or damaged could not be put away now; a later pop will", "error", err)
	return nil
}

// nodeID registers this process's name once and returns its number.
func (q *Queue) nodeID(ctx context.Context, s *dialect.Session) (int32, error) {
	if id := q.node.Load(); id != 0 {
		return id, nil
	}
	// The number is random, not the next one: after a restore a number that the
	// backup did not know must not become another node's.
	params := dialect.Params{"id": 1 + rand.Int32N(math.MaxInt32), "name": q.options.Node}
	err := s.Atomic(ctx, func(s *dialect.Session) error {
		_, err := s.Run(ctx, q.texts.AddNode, params)
		return err
	})
	if err != nil {
		return 0, err
	}
	id, err := q.findNode(ctx, s, q.options.Node)
	if err == nil {
		q.node.Store(id)
	}
	return id, err
}

func (q *Queue) findNode(ctx context.Context, s *dialect.Session, name string) (int32, error) {
	var rows []struct {
		ID int32 `db:"id"`
	}
	if err := s.Select(ctx, &rows, q.texts.FindNode, dialect.Params{"name": name}); err != nil {
		return 0, err
	}
	if len(rows) == 0 {
		return 0, fmt.Errorf("queue: node %.60q: %w", name, ErrNotFound)
	}
	return rows[0].ID, nil
}
