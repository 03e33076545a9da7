package postgres

import (
	"context"
	"slices"

	"github.com/sqlqueue/queue/dialect"
)

func (e *engine) Settle(ctx context.Context, s *dialect.Session, settlements []dialect.Settlement) ([]dialect.Outcome, error) {
	groups := dialect.GroupSettlements(settlements)
	run := s.Atomic
	if len(groups) == 1 {
		run = s.One
	}
	out := make([]dialect.Outcome, len(settlements))
	err := run(ctx, func(s *dialect.Session) error {
		clear(out)
		for _, g := range groups {
			if err := e.settle(ctx, s, settlements, g, out); err != nil {
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

// settle answers one group: the same verdict on leases of one token.
func (e *engine) settle(ctx context.Context, s *dialect.Session, all []dialect.Settlement, group []int, out []dialect.Outcome) error {
	var lanes []int32
	var ids, delays, attempts, states, errs, lane array
	keyed := false
	position := make(map[int64]int, len(group))
	for _, i := range group {
		g := all[i]
		position[g.ID] = i
		keyed = keyed || g.Keyed
		if !slices.Contains(lanes, g.Lane) {
			lanes = append(lanes, g.Lane)
		}
		ids.int(g.ID)
		delays.int(g.Delay.Microseconds())
		attempts.int(int64(g.Attempt))
		states.int(int64(g.State))
		errs.text(g.Errors)
	}
	slices.Sort(lanes) // so that two calls lock rows in the same order
	for _, l := range lanes {
		lane.int(int64(l))
	}
	first := all[group[0]]
	text, args := e.ack, []any{first.Token, lane.String(), ids.String()}
	switch first.Verdict {
	case dialect.Delete:
		args = append(args, keyed)
	case dialect.Archive:
		text, args = e.archive, append(args, states.String(), errs.String())
	case dialect.Return:
		text, args = e.giveBack, append(args, delays.String(), attempts.String(), errs.String())
	case dialect.Extend:
		text, args = e.extend, append(args, delays.String())
	}
	rows, err := s.QueryHot(ctx, text, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var id int64
		var outcome int
		if err := rows.Scan(&id, &outcome); err != nil {
			return err
		}
		out[position[id]] = dialect.Outcome(outcome)
	}
	return rows.Err()
}
