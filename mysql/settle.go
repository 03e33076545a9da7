package mysql

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"slices"

	"github.com/sqlqueue/queue/dialect"
)

type settleTexts struct {
	delete, deleteOne        string
	mine, mineUnlocked, held string
	freeKeys                 string
	laneOf, archive          string
	giveBack, extend         string
}

// verdicts joins jobs of one lane by their primary keys, with what becomes of
// each: [[run_at, id, delay, attempt, state, errors], …]. The bytes are UTF-8,
// whatever character set the connection believes in.
const verdicts = `JSON_TABLE(CONVERT(CAST(? AS BINARY) USING utf8mb4), '$[*]' COLUMNS (
  run_at BIGINT PATH '$[0]', id BIGINT PATH '$[1]', delay BIGINT PATH '$[2]', attempt INT PATH '$[3]',
  state INT PATH '$[4]', errors MEDIUMTEXT CHARACTER SET utf8mb4 PATH '$[5]')) AS u
STRAIGHT_JOIN {job} AS j FORCE INDEX (PRIMARY) ON j.lane = ? AND j.run_at = u.run_at AND j.id = u.id`

const archiveColumns = `id, finished_at, created_at, state, priority, attempt, max_attempts, node,
  lease_ms, queue, kind, unique_key, headers, errors, payload`

func (e *engine) settleTexts() settleTexts {
	mine := e.render(`SELECT j.run_at, j.id, j.unique_key FROM ` + keys + ` WHERE j.token = ?`)
	return settleTexts{
		delete:    e.render(`DELETE j FROM ` + keys + ` WHERE j.token = ?`),
		deleteOne: e.render(`DELETE FROM {job} WHERE lane = ? AND run_at = ? AND id = ? AND token = ?`),

		mine:         mine + ` FOR UPDATE`,
		mineUnlocked: mine + ` FOR UPDATE SKIP LOCKED`,
		held:         mine,
		freeKeys:     e.render(`DELETE k FROM ` + byKey + ` WHERE k.job_id = u.id`),

		// Read apart, as the lane's row must not be locked in a caller's transaction.
		laneOf: e.render(`SELECT queue, priority FROM {lane} WHERE lane = ?`),
		archive: e.render(`INSERT INTO {archive} (` + archiveColumns + `)
SELECT (j.born << 43) + j.id, {now}, j.created_at, u.state, ?, LEAST(j.attempt, j.max_attempts), j.max_attempts, j.node,
  j.lease_ms, ?, j.kind, j.unique_key, j.headers, IF(LENGTH(u.errors) = 0, j.errors, u.errors), j.payload
FROM ` + verdicts),

		// Jobs that come back lie behind the cursors, so they take the due side.
		giveBack: e.render(`UPDATE ` + verdicts + `
SET j.lane = -ABS(j.lane), j.run_at = {now} + u.delay, j.lease_until = 0, j.token = 0, j.node = 0,
  j.attempt = u.attempt, j.errors = IF(LENGTH(u.errors) = 0, j.errors, u.errors)`),
		extend: e.render(`UPDATE ` + verdicts + ` SET j.lease_until = {now} + u.delay`),
	}
}

// A settling is what one run of statements can serve: leases of one token in one
// lane, with the same verdict.
type settling struct {
	lane    int32
	token   int64
	verdict dialect.Verdict
	at      []int       // positions, in the order of the keys
	keys    []uniqueKey // that go with them, once they are found; the queue is not known
}

func settlings(all []dialect.Settlement) []*settling {
	type key struct {
		lane    int32
		token   int64
		verdict dialect.Verdict
	}
	var out []*settling
	index := map[key]*settling{}
	for i, s := range all {
		k := key{s.Lane, s.Token, s.Verdict}
		g := index[k]
		if g == nil {
			g = &settling{lane: s.Lane, token: s.Token, verdict: s.Verdict}
			index[k] = g
			out = append(out, g)
		}
		g.at = append(g.at, i)
	}
	// Two calls lock rows in the same order: by lane, and there by key.
	slices.SortStableFunc(out, func(a, b *settling) int { return cmp.Compare(a.lane, b.lane) })
	for _, g := range out {
		slices.SortFunc(g.at, func(a, b int) int {
			return cmp.Or(cmp.Compare(all[a].RunAt, all[b].RunAt), cmp.Compare(all[a].ID&seqMask, all[b].ID&seqMask))
		})
	}
	return out
}

func (e *engine) Settle(ctx context.Context, s *dialect.Session, all []dialect.Settlement) ([]dialect.Outcome, error) {
	out := make([]dialect.Outcome, len(all))
	groups := settlings(all)
	if len(all) == 1 && all[0].Verdict == dialect.Delete && !all[0].Keyed {
		return out, e.deleteOne(ctx, s, all[0], out)
	}
	// Acks nearly always find all their leases: then how many rows were deleted
	// says it all. If not, that is undone, and the rows are looked at first.
	if !s.InTx() && !slices.ContainsFunc(all, func(s dialect.Settlement) bool { return s.Verdict != dialect.Delete || s.Keyed }) {
		err := s.Atomic(ctx, func(s *dialect.Session) error { return e.deleteAll(ctx, s, all, groups) })
		if !errors.Is(err, errShort) {
			if err != nil {
				return nil, err
			}
			for i := range out {
				out[i] = dialect.Applied
			}
			return out, nil
		}
	}
	err := e.atomic(ctx, s, func(s *dialect.Session) error {
		clear(out)
		for _, g := range groups {
			if err := e.settleGroup(ctx, s, all, g, out); err != nil {
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

// errShort: not every row was there.
var errShort = errors.New("leases were lost")

func (e *engine) deleteOne(ctx context.Context, s *dialect.Session, one dialect.Settlement, out []dialect.Outcome) error {
	return s.One(ctx, func(s *dialect.Session) error {
		n, err := change(ctx, s, e.settle.deleteOne, one.Lane, one.RunAt, one.ID&seqMask, one.Token)
		if n == 1 {
			out[0] = dialect.Applied
		}
		return err
	})
}

func (e *engine) deleteAll(ctx context.Context, s *dialect.Session, all []dialect.Settlement, groups []*settling) error {
	for _, g := range groups {
		n, err := change(ctx, s, e.settle.delete, g.list(all).String(), g.lane, g.token)
		if err != nil {
			return err
		}
		if n < int64(len(g.at)) {
			return errShort
		}
	}
	return nil
}

func change(ctx context.Context, s *dialect.Session, text string, args ...any) (int64, error) {
	result, err := s.ExecHot(ctx, text, args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

func (g *settling) list(all []dialect.Settlement) *keyList {
	var k keyList
	for _, i := range g.at {
		k.add(all[i].RunAt, all[i].ID&seqMask)
	}
	return &k
}

// settleGroup locks the rows whose leases are current, and settles those.
func (e *engine) settleGroup(ctx context.Context, s *dialect.Session, all []dialect.Settlement, g *settling, out []dialect.Outcome) error {
	text := e.settle.mine
	if g.verdict == dialect.Extend {
		text = e.settle.mineUnlocked
	}
	mine, err := e.answer(ctx, s, text, all, g, dialect.Applied, out)
	if err != nil {
		return err
	}
	if g.verdict == dialect.Extend && len(mine.at) < len(g.at) {
		rest := *g
		rest.at = slices.DeleteFunc(slices.Clone(g.at), func(i int) bool { return out[i] == dialect.Applied })
		if _, err := e.answer(ctx, s, e.settle.held, all, &rest, dialect.Locked, out); err != nil {
			return err
		}
	}
	if len(mine.at) == 0 {
		return nil
	}
	switch g.verdict {
	case dialect.Extend:
		return e.judge(ctx, s, e.settle.extend, all, mine)
	case dialect.Return:
		return e.judge(ctx, s, e.settle.giveBack, all, mine)
	}
	if g.verdict == dialect.Archive || len(mine.keys) > 0 {
		var queue string
		var priority int
		if err := scanRow(ctx, s, e.settle.laneOf, []any{max(g.lane, -g.lane)}, &queue, &priority); err != nil {
			return err
		}
		if g.verdict == dialect.Archive {
			if err := e.judge(ctx, s, e.settle.archive, all, mine, priority, queue); err != nil {
				return err
			}
		}
		if err := e.freeKeys(ctx, s, mine.keys, queue); err != nil {
			return err
		}
	}
	_, err = s.ExecHot(ctx, e.settle.delete, mine.list(all).String(), g.lane, g.token)
	return err
}

// answer runs one of the statements that find leases, gives those an outcome,
// and returns them.
func (e *engine) answer(ctx context.Context, s *dialect.Session, text string, all []dialect.Settlement, g *settling, as dialect.Outcome, out []dialect.Outcome) (*settling, error) {
	type key struct{ runAt, id int64 }
	at := make(map[key]int, len(g.at))
	for _, i := range g.at {
		at[key{all[i].RunAt, all[i].ID & seqMask}] = i
	}
	rows, err := s.QueryHot(ctx, text, g.list(all).String(), g.lane, g.token)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	found := &settling{lane: g.lane, token: g.token, verdict: g.verdict}
	for rows.Next() {
		var k key
		var unique string
		if err := rows.Scan(&k.runAt, &k.id, &unique); err != nil {
			return nil, err
		}
		i := at[k]
		out[i] = as
		found.at = append(found.at, i)
		if unique != "" {
			found.keys = append(found.keys, uniqueKey{key: unique, id: all[i].ID})
		}
	}
	return found, rows.Err()
}

// judge runs a statement over verdicts; before are the parameters ahead of them.
func (e *engine) judge(ctx context.Context, s *dialect.Session, text string, all []dialect.Settlement, g *settling, before ...any) error {
	table := make([][6]any, len(g.at))
	for n, i := range g.at {
		v := all[i]
		table[n] = [6]any{v.RunAt, v.ID & seqMask, v.Delay.Microseconds(), v.Attempt, v.State, v.Errors}
	}
	list, err := json.Marshal(table)
	if err != nil {
		return err
	}
	_, err = s.ExecHot(ctx, text, append(before, string(list), g.lane)...)
	return err
}

// freeKeys frees the unique keys of jobs that end.
func (e *engine) freeKeys(ctx context.Context, s *dialect.Session, keys []uniqueKey, queue string) error {
	if len(keys) == 0 {
		return nil
	}
	slices.SortFunc(keys, func(a, b uniqueKey) int { return cmp.Compare(a.key, b.key) })
	for i := range keys {
		keys[i].queue = queue
	}
	list, err := keyText(keys)
	if err != nil {
		return err
	}
	_, err = s.ExecHot(ctx, e.settle.freeKeys, list)
	return err
}

// scanRow reads the one row of a hot query that must be there.
func scanRow(ctx context.Context, s *dialect.Session, text string, args []any, dest ...any) error {
	rows, err := s.QueryHot(ctx, text, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	if !rows.Next() {
		return cmp.Or(rows.Err(), sql.ErrNoRows)
	}
	if err := rows.Scan(dest...); err != nil {
		return err
	}
	return rows.Close()
}
