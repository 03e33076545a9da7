package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"slices"
	"time"

	"github.com/sqlqueue/queue/dialect"
)

type claimTexts struct {
	probe            string
	ready, due, only string
	putOff           string
}

func (e *engine) claimTexts() claimTexts {
	// A claim proves itself: it repeats that the lease is free. Its time is ?1, when
	// it began, if that was within the clock's last tick, so that what is left of
	// the lease is never overstated. The columns returned are the table's own, not
	// expressions: some drivers guess at the type of those.
	const began = `max(?1, {now} - 1000)`
	lease := func(ids string) string {
		return e.render(`UPDATE {job} NOT INDEXED
SET lease_until = ` + began + ` + iif(lease_ms = 0, ?2, lease_ms) * 1000, token = ?3, node = ?4, attempt = attempt + 1
WHERE id IN (` + ids + `) AND lease_until < {now}
RETURNING lane, id, coalesce(run_at, 0), created_at, lease_until, attempt, max_attempts, kind, unique_key, headers, errors, payload`)
	}
	return claimTexts{
		// ?1 is a JSON array of steps:
		//	[0, id, before]          the ready side from id on
		//	[1, -lane, at, id]       the due side after (at, id)
		//	[2, lane, from, before]  a recheck, if it is time for one
		//	[3, lane, id]            one job
		// The answer is the time and the first step that has jobs to claim, or -1.
		probe: e.render(`SELECT {now}, coalesce((
  SELECT s.key FROM json_each(?1) AS s
  WHERE CASE s.value ->> 0
    WHEN 0 THEN EXISTS (SELECT 1 FROM {job} NOT INDEXED
      WHERE id >= s.value ->> 1 AND id < s.value ->> 2 AND lease_until < {now} AND lane > 0)
    WHEN 1 THEN EXISTS (SELECT 1 FROM {job} INDEXED BY {bare_job_due}
        WHERE run_at = s.value ->> 2 AND lane = s.value ->> 1 AND id > s.value ->> 3 AND run_at <= {now} AND lease_until < {now})
      OR EXISTS (SELECT 1 FROM {job} INDEXED BY {bare_job_due}
        WHERE run_at > s.value ->> 2 AND run_at <= {now} AND lane = s.value ->> 1 AND lease_until < {now})
    WHEN 2 THEN EXISTS (SELECT 1 FROM {lane} WHERE lane = s.value ->> 1 AND recheck_at <= {now})
      AND (EXISTS (SELECT 1 FROM {job} NOT INDEXED
          WHERE id >= s.value ->> 2 AND id < s.value ->> 3 AND lease_until < {now} AND lane > 0)
        OR EXISTS (SELECT 1 FROM {job} INDEXED BY {bare_job_due}
          WHERE run_at <= {now} AND lane = -(s.value ->> 1) AND lease_until < {now}))
    ELSE EXISTS (SELECT 1 FROM {job} WHERE id = s.value ->> 2 AND lane = s.value ->> 1 AND lease_until < {now})
    END
  LIMIT 1), -1)`),

		ready: lease(`SELECT id FROM {job} NOT INDEXED
  WHERE id >= ?6 AND id < ?7 AND lease_until < {now} AND lane > 0 ORDER BY id LIMIT ?5`),
		// In two parts, so that each begins with a seek. "-lane" keeps the planner
		// from sorting what the index has in order.
		due: lease(`
  SELECT id FROM (SELECT id FROM {job} INDEXED BY {bare_job_due}
    WHERE run_at = ?6 AND lane = -?7 AND id > ?8 AND run_at <= ` + began + ` AND lease_until < {now} ORDER BY id LIMIT ?5)
  UNION ALL
  SELECT id FROM (SELECT id FROM {job} INDEXED BY {bare_job_due}
    WHERE run_at > ?6 AND run_at <= ` + began + ` AND -lane = ?7 AND lease_until < {now} ORDER BY run_at, lane, id LIMIT ?5)
  LIMIT ?5`),
		only: lease(`SELECT id FROM {job} WHERE id = ?6 AND lane = ?7 LIMIT ?5`),

		putOff: e.render(`UPDATE {lane} SET recheck_at = {now} + ?2 WHERE lane IN (SELECT value FROM json_each(?1)) AND recheck_at <= {now}`),
	}
}

// Claim first looks, with one plain read over all steps, for one that has jobs
// to claim: an idle queue costs reads only. That step is one statement, and
// often enough fills the claim. For the steps behind it, it looks again, and
// what they have it leases in one transaction.
func (e *engine) Claim(ctx context.Context, s *dialect.Session, req dialect.ClaimRequest) (dialect.Claimed, error) {
	started := time.Now()
	now, i, err := e.probe(ctx, s, req.Steps)
	if err != nil {
		return dialect.Claimed{}, err
	}
	c := &claim{e: e, req: req, now: now, want: req.N}
	if err := c.charge(ctx, s, time.Since(started)); err != nil || i < 0 {
		return dialect.Claimed{Now: now}, err
	}
	run := e.one
	if req.Steps[i].Recheck { // two statements
		run = e.atomic
	}
	err = run(ctx, s, func(s *dialect.Session) error { return c.step(ctx, s, i) })
	if err != nil {
		return dialect.Claimed{}, err
	}
	if i, err = c.next(ctx, s, i+1); err != nil || i < 0 {
		return c.answer(err)
	}
	rows, want := c.rows, c.want
	err = e.atomic(ctx, s, func(s *dialect.Session) error {
		for i >= 0 {
			if err := c.step(ctx, s, i); err != nil {
				return err
			}
			var err error
			if i, err = c.next(ctx, s, i+1); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		c.rows, c.want = rows, want
	}
	return c.answer(err)
}

// A claim is one that is under way.
type claim struct {
	e    *engine
	req  dialect.ClaimRequest
	now  int64 // when it began
	want int
	rows []dialect.ClaimedRow
}

// answer drops an error when there are jobs to hand out: they are leased.
func (c *claim) answer(err error) (dialect.Claimed, error) {
	if err != nil && len(c.rows) == 0 {
		return dialect.Claimed{}, err
	}
	return dialect.Claimed{Now: c.now, Rows: c.rows}, nil
}

// next returns the first step from i on that has jobs to claim, or -1; and -1 if
// no more are wanted.
func (c *claim) next(ctx context.Context, s *dialect.Session, i int) (int, error) {
	if c.want <= 0 || i == len(c.req.Steps) {
		return -1, nil
	}
	_, n, err := c.e.probe(ctx, s, c.req.Steps[i:])
	if err != nil || n < 0 {
		return -1, err
	}
	return i + n, nil
}

const (
	// cheap is what a recheck may take without leaving a trace: as often as a
	// process makes them, that is a few percent of its time.
	cheap = dialect.RecheckInterval / dialect.RecheckCost
	// stepCost is what the look at a step takes that finds nothing to walk over:
	// 3 to 5 µs, and more on a busy machine.
	stepCost = 50 * time.Microsecond
)

// charge puts off the next rechecks, for all processes, if they were not cheap.
// It knows what the look at all steps together took, and puts off all their
// lanes by that: with one statement, as this may be an empty pop.
func (c *claim) charge(ctx context.Context, s *dialect.Session, took time.Duration) error {
	took -= time.Duration(len(c.req.Steps)) * stepCost
	if took < cheap {
		return nil
	}
	var lanes jsonArray
	n := 0
	for _, step := range c.req.Steps {
		if step.Recheck {
			lanes.int(int64(step.Lane))
			n++
		}
	}
	if n == 0 {
		return nil
	}
	return c.e.one(ctx, s, func(s *dialect.Session) error {
		_, err := s.ExecHot(ctx, c.e.claim.putOff, lanes.String(), (dialect.RecheckCost * took).Microseconds())
		return err
	})
}

// span returns the ids of a lane's ready side, from included, to excluded.
func span(lane int32) (from, to int64) {
	return int64(lane) << dialect.SeqBits, (int64(lane) + 1) << dialect.SeqBits
}

func clamp(id, from, to int64) int64 { return min(max(id, from), to) }

// probe returns the database's time and the first step that has something to
// do, or -1.
func (e *engine) probe(ctx context.Context, s *dialect.Session, steps []dialect.Step) (now int64, first int, err error) {
	var a jsonArray
	for _, step := range steps {
		lane := int64(step.Lane)
		from, to := span(step.Lane)
		switch {
		case step.Only && step.Due:
			a.tuple(3, -lane, step.FromID)
		case step.Only:
			a.tuple(3, lane, step.FromID)
		case step.Recheck:
			a.tuple(2, lane, from, clamp(step.FromID, from, to))
		case step.Due:
			a.tuple(1, -lane, step.FromAt, step.FromID)
		default:
			a.tuple(0, clamp(step.FromID, from, to), to)
		}
	}
	rows, err := s.QueryHot(ctx, e.claim.probe, a.String())
	if err != nil {
		return 0, 0, err
	}
	defer rows.Close()
	if !rows.Next() {
		return 0, 0, cmp.Or(rows.Err(), sql.ErrNoRows)
	}
	if err := rows.Scan(&now, &first); err != nil {
		return 0, 0, err
	}
	return now, first, rows.Close()
}

func (c *claim) step(ctx context.Context, s *dialect.Session, i int) error {
	step := c.req.Steps[i]
	lane := int64(step.Lane)
	from, to := span(step.Lane)
	switch {
	case step.Only:
		if step.Due {
			lane = -lane
		}
		return c.take(ctx, s, i, c.e.claim.only, step.FromID, lane)
	case step.Recheck:
		return c.recheck(ctx, s, i)
	case step.Due:
		return c.take(ctx, s, i, c.e.claim.due, step.FromAt, lane, step.FromID)
	}
	return c.take(ctx, s, i, c.e.claim.ready, clamp(step.FromID, from, to), to)
}

// recheck walks both sides of a lane.
func (c *claim) recheck(ctx context.Context, s *dialect.Session, i int) error {
	step := c.req.Steps[i]
	from, to := span(step.Lane)
	if err := c.take(ctx, s, i, c.e.claim.ready, from, clamp(step.FromID, from, to)); err != nil || c.want <= 0 {
		return err
	}
	return c.take(ctx, s, i, c.e.claim.due, 0, step.Lane, 0)
}

// take runs one statement that leases.
func (c *claim) take(ctx context.Context, s *dialect.Session, i int, text string, args ...any) error {
	args = append([]any{c.now, c.req.Lease.Milliseconds(), c.req.Token, c.req.Node, c.want}, args...)
	rows, err := s.QueryHot(ctx, text, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	var got []dialect.ClaimedRow
	for rows.Next() {
		r := dialect.ClaimedRow{Step: i}
		if err := rows.Scan(&r.Lane, &r.ID, &r.RunAt, &r.CreatedAt, &r.LeasedUntil, &r.Attempt, &r.MaxAttempts,
			&r.Kind, &r.UniqueKey, &r.Headers, &r.Errors, &r.Payload); err != nil {
			return err
		}
		if r.Payload == nil { // what some drivers make of one that is empty
			r.Payload = []byte{}
		}
		got = append(got, r)
	}
	if err := rows.Err(); err != nil {
		return err
	}
	slices.SortFunc(got, func(a, b dialect.ClaimedRow) int {
		return cmp.Or(cmp.Compare(a.RunAt, b.RunAt), cmp.Compare(a.ID, b.ID))
	})
	c.rows = append(c.rows, got...)
	c.want -= len(got)
	return nil
}
