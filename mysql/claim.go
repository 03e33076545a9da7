package mysql

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sqlqueue/queue/dialect"
)

// manyLanes is from how many lanes on a pop asks Occupied first. The optimizer
// of MySQL finds the range of an index for constants alone, so that the probe
// has a part of its own for each scan. 24 is room for all priorities of a queue.
const manyLanes = 24

type claimTexts struct {
	probeNow                     string
	probeReady, probeDue         string
	probeBehind, probeOnly       string
	behindReady, behindDue       string
	leaseReady, leaseDue         string
	leaseOnly, leaseKeys         string
	takeReady, takeDue, takeKeys string
	putOff                       string
}

// keys joins jobs of one lane by their primary keys, [[run_at, id], …] in the
// order of the keys. The LIMIT, which is none, makes the list a table of its
// own: MySQL refuses to lock what it reads beside a JSON_TABLE.
const keys = `(SELECT t.run_at, t.id FROM JSON_TABLE(?, '$[*]' COLUMNS (run_at BIGINT PATH '$[0]', id BIGINT PATH '$[1]')) AS t LIMIT 1000000) AS u
STRAIGHT_JOIN {job} AS j FORCE INDEX (PRIMARY) ON j.lane = ? AND j.run_at = u.run_at AND j.id = u.id`

const claimedColumns = `j.lane, j.born, j.id, j.run_at, j.created_at, j.lease_until, j.attempt, j.max_attempts,
  j.kind, j.unique_key, COALESCE(j.headers, ''), COALESCE(j.errors, ''), j.payload`

func (e *engine) claimTexts(lock string) claimTexts {
	// A claim proves itself: the UPDATE repeats that the lease is free. The server
	// makes a list of the rows that the subquery locks before it changes the first.
	lease := func(locked string) string {
		return e.render(`UPDATE (` + locked + ` ` + lock + `) AS c
STRAIGHT_JOIN {job} AS j FORCE INDEX (PRIMARY) ON j.lane = c.lane AND j.run_at = c.run_at AND j.id = c.id
SET j.lease_until = {now} + IF(j.lease_ms = 0, ?, j.lease_ms) * 1000, j.token = ?, j.node = ?, j.attempt = j.attempt + 1
WHERE j.lease_until <= {now}`)
	}
	take := func(from string) string {
		return e.render(`SELECT ` + claimedColumns + ` FROM ` + from)
	}
	const (
		ready = `SELECT lane, run_at, id FROM {job} FORCE INDEX (PRIMARY)
  WHERE lane = ? AND run_at = 0 AND id >= ? AND lease_until <= {now} ORDER BY id LIMIT ?`
		due = `SELECT lane, run_at, id FROM {job} FORCE INDEX (PRIMARY)
  WHERE lane = ? AND (run_at = ? AND id > ? OR run_at > ?) AND run_at <= {now} AND lease_until <= {now}
  ORDER BY run_at, id LIMIT ?`
	)
	return claimTexts{
		// The probe is these, joined by UNION ALL, with numbers put in.
		probeNow: e.render(`SELECT -1 AS step, {now} AS run_at, 0 AS id`),
		probeReady: e.render(`(SELECT %[1]d, run_at, id FROM {job} FORCE INDEX (PRIMARY)
  WHERE lane = %[2]d AND run_at = 0 AND id >= %[3]d AND lease_until <= {now} ORDER BY id LIMIT 1)`),
		probeDue: e.render(`(SELECT %[1]d, run_at, id FROM {job} FORCE INDEX (PRIMARY)
  WHERE lane = %[2]d AND (run_at = %[4]d AND id > %[3]d OR run_at > %[4]d) AND run_at <= {now} AND lease_until <= {now}
  ORDER BY run_at, id LIMIT 1)`),
		// Nothing is walked over before the lane's time for a recheck has come.
		probeBehind: e.render(`(SELECT %[1]d, j.run_at, j.id FROM {lane} AS l STRAIGHT_JOIN {job} AS j FORCE INDEX (PRIMARY)
  WHERE l.lane = %[2]d AND l.recheck_at <= {now} AND j.lane = %[2]d AND j.run_at = 0 AND j.id < %[3]d AND j.lease_until <= {now}
  ORDER BY j.id LIMIT 1)
UNION ALL
(SELECT %[1]d, j.run_at, j.id FROM {lane} AS l STRAIGHT_JOIN {job} AS j FORCE INDEX (PRIMARY)
  WHERE l.lane = %[2]d AND l.recheck_at <= {now} AND j.lane = -%[2]d AND j.run_at <= {now} AND j.lease_until <= {now}
  ORDER BY j.run_at, j.id LIMIT 1)`),
		probeOnly: e.render(`(SELECT %[1]d, run_at, id FROM {job} FORCE INDEX (by_id)
  WHERE id = %[3]d AND lane = %[2]d AND lease_until <= {now})`),

		// What a recheck looks for, read without locks: most of what it walks over
		// is leased or gone.
		behindReady: e.render(`SELECT run_at, id FROM {job} FORCE INDEX (PRIMARY)
WHERE lane = ? AND run_at = 0 AND id < ? AND lease_until <= {now} ORDER BY id LIMIT ?`),
		behindDue: e.render(`SELECT run_at, id FROM {job} FORCE INDEX (PRIMARY)
WHERE lane = ? AND run_at <= {now} AND lease_until <= {now} ORDER BY run_at, id LIMIT ?`),

		leaseReady: lease(ready),
		leaseDue:   lease(due),
		leaseOnly: lease(`SELECT lane, run_at, id FROM {job} FORCE INDEX (by_id)
  WHERE lane = ? AND id = ? AND lease_until <= {now} LIMIT ?`),
		leaseKeys: lease(`SELECT j.lane, j.run_at, j.id FROM ` + keys + ` WHERE j.lease_until <= {now}`),

		takeReady: take(`{job} AS j FORCE INDEX (PRIMARY) WHERE j.lane = ? AND j.run_at = 0 AND j.id >= ? AND j.token = ? ORDER BY j.id LIMIT ?`),
		takeDue: take(`{job} AS j FORCE INDEX (PRIMARY)
WHERE j.lane = ? AND (j.run_at = ? AND j.id >= ? OR j.run_at > ?) AND j.token = ? ORDER BY j.run_at, j.id LIMIT ?`),
		takeKeys: take(keys + ` WHERE j.token = ?`),

		// A lane's row is locked by the transaction that meets it first; a pop does
		// not wait for that.
		putOff: e.render(`UPDATE (SELECT l.lane, u.cursor_id
  FROM (SELECT t.lane, t.cursor_id FROM JSON_TABLE(?, '$[*]' COLUMNS (lane INT PATH '$[0]', cursor_id BIGINT PATH '$[1]')) AS t LIMIT 1000000) AS u
  STRAIGHT_JOIN {lane} AS l ON l.lane = u.lane WHERE l.recheck_at <= {now} FOR UPDATE SKIP LOCKED) AS c
STRAIGHT_JOIN {lane} AS l FORCE INDEX (PRIMARY) ON l.lane = c.lane
SET l.recheck_at = {now} + ?, l.cursor_id = c.cursor_id`),
	}
}

// Claim first looks, with one plain read over all steps, for those that have
// jobs to claim: an idle queue costs reads only. Each of these is an UPDATE and
// a read of what it got.
func (e *engine) Claim(ctx context.Context, s *dialect.Session, req dialect.ClaimRequest) (dialect.Claimed, error) {
	started := time.Now()
	now, hits, err := e.probe(ctx, s, req.Steps)
	if err == nil {
		err = e.charge(ctx, s, req.Steps, time.Since(started))
	}
	if err != nil || len(hits) == 0 {
		return dialect.Claimed{Now: now}, err
	}
	c := &claim{e: e, req: req, want: req.N}
	run := func(s *dialect.Session) error {
		for _, h := range hits {
			if c.want <= 0 {
				break
			}
			if err := c.step(ctx, s, h); err != nil {
				return err
			}
		}
		return nil
	}
	// Where it can, each statement commits by itself: the fewer round trips, and
	// the shorter the locks.
	if s.Autocommit() {
		err = run(s)
	} else {
		err = e.atomic(ctx, s, run)
	}
	if err != nil && (len(c.rows) == 0 || !s.Autocommit()) {
		return dialect.Claimed{}, err
	}
	return dialect.Claimed{Now: now, Rows: c.rows}, nil
}

// seqOf is where a step begins. On the ready side that may be before the first
// id of the lane, where all ids are of the lane's own.
func seqOf(step dialect.Step) int64 {
	if step.Due || step.Only {
		return step.FromID & seqMask
	}
	return max(0, step.FromID-jobID(step.Lane, 0))
}

// A hit is a step that had something to claim, and the first of it.
type hit struct {
	step      int
	runAt, id int64
}

// probeText is the probe of some steps.
func (e *engine) probeText(steps []dialect.Step) string {
	var text strings.Builder
	text.WriteString(e.claim.probeNow)
	for i, step := range steps {
		part, lane := e.claim.probeReady, step.Lane
		switch {
		case step.Only:
			part = e.claim.probeOnly
			if step.Due {
				lane = -lane
			}
		case step.Recheck:
			part = e.claim.probeBehind
		case step.Due:
			part, lane = e.claim.probeDue, -lane
		}
		text.WriteString("\nUNION ALL\n")
		fmt.Fprintf(&text, part, i, lane, seqOf(step), step.FromAt)
	}
	return text.String()
}

// probe returns the server's time and the steps that have something to do.
func (e *engine) probe(ctx context.Context, s *dialect.Session, steps []dialect.Step) (now int64, hits []hit, err error) {
	rows, err := s.Query(ctx, e.probeText(steps))
	if err != nil {
		return 0, nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var h hit
		if err := rows.Scan(&h.step, &h.runAt, &h.id); err != nil {
			return 0, nil, err
		}
		if h.step < 0 {
			now = h.runAt
		} else {
			hits = append(hits, h)
		}
	}
	slices.SortFunc(hits, func(a, b hit) int { return cmp.Or(cmp.Compare(a.step, b.step), cmp.Compare(a.runAt, b.runAt)) })
	return now, hits, rows.Err()
}

const (
	// recheckCost is less than dialect.RecheckCost: a walk over 100,000 leased rows
	// takes 30 to 50 ms, and an expired lease among them is to be found in a second.
	recheckCost = 10
	// cheap is what rechecks may take without leaving a trace.
	cheap = dialect.RecheckInterval / recheckCost
	// stepCost is what the look at a step takes that finds nothing to walk over.
	stepCost = 50 * time.Microsecond
)

// charge puts off the next rechecks, for all processes, if they were not cheap.
// It knows what the look at all steps together took, and puts off all their
// lanes by that: with one statement, as this may be an empty pop. New processes
// begin at the cursors that it leaves.
func (e *engine) charge(ctx context.Context, s *dialect.Session, steps []dialect.Step, took time.Duration) error {
	took -= time.Duration(len(steps)) * stepCost
	if took < cheap {
		return nil
	}
	var lanes keyList
	for _, step := range steps {
		if step.Recheck {
			lanes.add(int64(step.Lane), step.FromID)
		}
	}
	if lanes.n == 0 {
		return nil
	}
	return s.One(ctx, func(s *dialect.Session) error {
		_, err := s.ExecHot(ctx, e.claim.putOff, lanes.String(), (recheckCost * took).Microseconds())
		return err
	})
}

// A claim is one that is under way.
type claim struct {
	e    *engine
	req  dialect.ClaimRequest
	want int
	rows []dialect.ClaimedRow
}

func (c *claim) step(ctx context.Context, s *dialect.Session, h hit) error {
	step := c.req.Steps[h.step]
	lane := step.Lane
	if step.Due {
		lane = -lane
	}
	t := &c.e.claim
	switch {
	case step.Recheck && h.runAt == 0:
		return c.behind(ctx, s, h.step, lane, t.behindReady, lane, seqOf(step), c.want)
	case step.Recheck:
		return c.behind(ctx, s, h.step, -lane, t.behindDue, -lane, c.want)
	case step.Only:
		n, err := c.lease(ctx, s, t.leaseOnly, lane, h.id, 1)
		if err != nil || n == 0 {
			return err
		}
		return c.take(ctx, s, h.step, t.takeDue, lane, h.runAt, h.id, h.runAt, c.req.Token, c.upTo(n))
	case step.Due:
		// From the first one on that the probe found, itself included.
		n, err := c.lease(ctx, s, t.leaseDue, lane, h.runAt, h.id-1, h.runAt, c.want)
		if err != nil || n == 0 {
			return err
		}
		return c.take(ctx, s, h.step, t.takeDue, lane, h.runAt, h.id, h.runAt, c.req.Token, c.upTo(n))
	}
	n, err := c.lease(ctx, s, t.leaseReady, lane, h.id, c.want)
	if err != nil || n == 0 {
		return err
	}
	return c.take(ctx, s, h.step, t.takeReady, lane, h.id, c.req.Token, c.upTo(n))
}

// upTo is how many rows have the claim's token at most, where n were just added.
func (c *claim) upTo(n int64) int64 { return n + int64(len(c.rows)) }

// behind claims what a plain read finds on one side of a lane.
func (c *claim) behind(ctx context.Context, s *dialect.Session, i int, lane int32, text string, args ...any) error {
	var found keyList
	rows, err := s.QueryHot(ctx, text, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var runAt, id int64
		if err := rows.Scan(&runAt, &id); err != nil {
			return err
		}
		found.add(runAt, id)
	}
	if err := rows.Err(); err != nil || found.n == 0 {
		return err
	}
	if err := rows.Close(); err != nil { // in a transaction it is in the way
		return err
	}
	n, err := c.lease(ctx, s, c.e.claim.leaseKeys, found.String(), lane)
	if err != nil || n == 0 {
		return err
	}
	return c.take(ctx, s, i, c.e.claim.takeKeys, found.String(), lane, c.req.Token)
}

// lease runs one statement that leases, and returns how many jobs it got.
func (c *claim) lease(ctx context.Context, s *dialect.Session, text string, args ...any) (int64, error) {
	return c.change(ctx, s, text, append(args, c.req.Lease.Milliseconds(), c.req.Token, c.req.Node)...)
}

// change runs one statement and returns how many rows it changed.
func (c *claim) change(ctx context.Context, s *dialect.Session, text string, args ...any) (n int64, err error) {
	err = s.One(ctx, func(s *dialect.Session) (err error) {
		n, err = change(ctx, s, text, args...)
		return err
	})
	return n, err
}

// take reads what was leased.
func (c *claim) take(ctx context.Context, s *dialect.Session, i int, text string, args ...any) error {
	rows, err := s.QueryHot(ctx, text, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	before := c.rows // of this claim's token, too, and again in the way where scans overlap
	for rows.Next() {
		r := dialect.ClaimedRow{Step: i}
		var born int32
		if err := rows.Scan(&r.Lane, &born, &r.ID, &r.RunAt, &r.CreatedAt, &r.LeasedUntil, &r.Attempt, &r.MaxAttempts,
			&r.Kind, &r.UniqueKey, &r.Headers, &r.Errors, &r.Payload); err != nil {
			return err
		}
		r.ID = jobID(born, r.ID)
		if slices.ContainsFunc(before, func(b dialect.ClaimedRow) bool { return b.ID == r.ID }) {
			continue
		}
		c.rows = append(c.rows, r)
		c.want--
	}
	return rows.Err()
}

// A keyList is a JSON array of primary keys within a lane.
type keyList struct {
	b []byte
	n int
}

func (k *keyList) add(runAt, id int64) {
	k.b = append(k.b, "[,"[min(k.n, 1)], '[')
	k.b = strconv.AppendInt(k.b, runAt, 10)
	k.b = append(k.b, ',')
	k.b = strconv.AppendInt(k.b, id, 10)
	k.b = append(k.b, ']')
	k.n++
}

func (k *keyList) String() string { return string(k.b) + "]" }
