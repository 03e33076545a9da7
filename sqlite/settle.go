package sqlite

import (
	"context"

	"github.com/sqlqueue/queue/dialect"
)

type settleTexts struct {
	delete, archive, giveBack, extend string
}

func (e *engine) settleTexts() settleTexts {
	const mine = `id IN (SELECT value FROM json_each(?1)) AND token = ?2`
	return settleTexts{
		delete: e.render(`DELETE FROM {job} NOT INDEXED WHERE ` + mine + ` RETURNING id`),
		archive: e.render(`INSERT OR REPLACE INTO {archive} (` + archiveColumns + `)
SELECT ` + archiveValues("?3", "?4") + ` FROM {job} AS j NOT INDEXED WHERE ` + mine),
		// Jobs that come back lie behind the cursors, so they take the due side.
		giveBack: e.render(`UPDATE {job} NOT INDEXED SET lane = -abs(lane), ` + unleased + `,
  run_at = {now} + ?3, attempt = ?4, errors = coalesce(nullif(?5, ''), errors)
WHERE ` + mine + ` RETURNING id`),
		extend: e.render(`UPDATE {job} NOT INDEXED SET lease_until = {now} + ?3 WHERE ` + mine + ` RETURNING id`),
	}
}

// unleased sets the columns of a lease to their defaults, which mean "none".
const unleased = `lease_until = -4611686018427387904, token = -4611686018427387904, node = -1073741824`

const archiveColumns = `id, finished_at, created_at, state, priority, attempt, max_attempts, node,
  lease_ms, queue, kind, unique_key, headers, errors, payload`

// archiveValues are those columns for a row j of the live table.
func archiveValues(state, errors string) string {
	return `j.id, {now}, j.created_at, ` + state + `, (SELECT l.priority FROM {lane} AS l WHERE l.lane = abs(j.lane)),
  min(j.attempt, j.max_attempts), j.max_attempts, j.node, j.lease_ms, (SELECT l.queue FROM {lane} AS l WHERE l.lane = abs(j.lane)),
  j.kind, j.unique_key, j.headers, coalesce(nullif(` + errors + `, ''), j.errors), j.payload`
}

// A group is a set of settlements that one statement can serve: everything but
// the id is the same.
type group struct {
	dialect.Settlement
	ids jsonArray
	at  map[int64]int // positions
}

func grouped(settlements []dialect.Settlement) []*group {
	var out []*group
	index := map[dialect.Settlement]*group{}
	for i, s := range settlements {
		id := s.ID
		s.ID, s.Lane, s.RunAt, s.Keyed = 0, 0, 0, false // the id finds the job, a unique index frees its key
		g := index[s]
		if g == nil {
			g = &group{Settlement: s, at: map[int64]int{}}
			index[s] = g
			out = append(out, g)
		}
		g.ids.int(id)
		g.at[id] = i
	}
	return out
}

// Settle answers with Applied or Lost. There are no row locks that could make
// it answer with Locked.
func (e *engine) Settle(ctx context.Context, s *dialect.Session, settlements []dialect.Settlement) ([]dialect.Outcome, error) {
	groups := grouped(settlements)
	run := e.atomic
	if len(groups) == 1 && groups[0].Verdict != dialect.Archive {
		run = e.one
	}
	out := make([]dialect.Outcome, len(settlements))
	err := run(ctx, s, func(s *dialect.Session) error {
		clear(out)
		for _, g := range groups {
			if err := e.settleGroup(ctx, s, g, out); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

func (e *engine) settleGroup(ctx context.Context, s *dialect.Session, g *group, out []dialect.Outcome) error {
	text, args := e.settle.delete, []any{g.ids.String(), g.Token}
	switch g.Verdict {
	case dialect.Archive: // and then delete
		if _, err := s.ExecHot(ctx, e.settle.archive, g.ids.String(), g.Token, int(g.State), g.Errors); err != nil {
			return err
		}
	case dialect.Return:
		text, args = e.settle.giveBack, append(args, g.Delay.Microseconds(), g.Attempt, g.Errors)
	case dialect.Extend:
		text, args = e.settle.extend, append(args, g.Delay.Microseconds())
	}
	rows, err := s.QueryHot(ctx, text, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			return err
		}
		out[g.at[id]] = dialect.Applied
	}
	return rows.Err()
}
