package postgres

import (
	"cmp"
	"context"
	"database/sql"
	"slices"

	"github.com/sqlqueue/queue/dialect"
)

func (e *engine) Claim(ctx context.Context, s *dialect.Session, req dialect.ClaimRequest) (dialect.Claimed, error) {
	var lanes, modes, ids, ats array
	for _, step := range req.Steps {
		lane := int64(step.Lane)
		ids.int(step.FromID)
		ats.int(step.FromAt)
		switch {
		case step.Only:
			modes.int(3)
			if step.Due {
				lane = -lane
			}
		case step.Recheck:
			modes.int(2)
		case step.Due:
			modes.int(1)
		default:
			modes.int(0)
		}
		lanes.int(lane)
	}
	var out dialect.Claimed
	err := s.One(ctx, func(s *dialect.Session) error {
		out = dialect.Claimed{}
		rows, err := s.QueryHot(ctx, e.claim,
			lanes.String(), modes.String(), ids.String(), ats.String(),
			req.N, req.Token, req.Node, req.Lease.Milliseconds(),
			dialect.RecheckInterval.Milliseconds(), dialect.RecheckCost)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var r dialect.ClaimedRow
			var id sql.NullInt64
			if err := rows.Scan(&r.Step, &r.Lane, &id, &r.RunAt, &r.CreatedAt, &r.LeasedUntil,
				&r.Attempt, &r.MaxAttempts, &r.Kind, &r.UniqueKey, &r.Headers, &r.Errors, &r.Payload); err != nil {
				return err
			}
			if !id.Valid {
				out.Now = r.CreatedAt
				continue
			}
			r.ID = id.Int64
			out.Rows = append(out.Rows, r)
		}
		return rows.Err()
	})
	if err != nil {
		return dialect.Claimed{}, err
	}
	// UPDATE returns rows in the order of the heap.
	slices.SortFunc(out.Rows, func(a, b dialect.ClaimedRow) int {
		return cmp.Or(cmp.Compare(a.Step, b.Step), cmp.Compare(a.RunAt, b.RunAt), cmp.Compare(a.ID, b.ID))
	})
	return out, nil
}
