package sqlite

import (
	"context"
	"fmt"
	"strings"

	"github.com/sqlqueue/queue/dialect"
)

type insertTexts struct {
	now     string
	numbers string
	rows    [len(insertRows)]string
	keyed   string
	holder  string
}

// insertRows are the numbers of rows that one statement stores. Measured, per
// row of 100 bytes: 4.4 µs alone, 3.3 µs by 10, 2.5 µs by 50 as by 100.
var insertRows = [...]int{50, 10, 1}

const insertRow = `(?, ?, ?, ?, ?, ?, ?, ?, ?)`

func (e *engine) insertTexts() insertTexts {
	t := insertTexts{
		now: e.render(`SELECT {now}`),
		// It also proves that the lane exists and whose it is.
		numbers: e.render(`UPDATE {lane} SET ready_seq = ready_seq + ?1, due_seq = due_seq + ?2
WHERE lane = ?3 AND queue = ?4 RETURNING ready_seq, due_seq, {now}`),
		keyed: e.render(`INSERT INTO {job} (id, lane, created_at, run_at, max_attempts, lease_ms, kind, headers, payload, key_queue, unique_key)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (key_queue, unique_key) WHERE key_queue IS NOT NULL DO NOTHING RETURNING id`),
		holder: e.render(`SELECT id FROM {job} INDEXED BY {bare_job_key} WHERE key_queue = ?1 AND unique_key = ?2`),
	}
	for i, n := range insertRows {
		t.rows[i] = e.render(`INSERT INTO {job} (id, lane, created_at, run_at, max_attempts, lease_ms, kind, headers, payload) VALUES ` +
			insertRow + strings.Repeat(`, `+insertRow, n-1))
	}
	return t
}

func (e *engine) Insert(ctx context.Context, s *dialect.Session, rows []dialect.Row) ([]dialect.Inserted, error) {
	var out []dialect.Inserted
	err := e.atomic(ctx, s, func(s *dialect.Session) (err error) {
		out, err = e.store(ctx, s, rows)
		return err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// numbers are what a lane gives to the jobs of one insert.
type numbers struct {
	queue          string
	ready, due     int64 // how many
	atReady, atDue int64 // the last ones given
}

func (e *engine) store(ctx context.Context, s *dialect.Session, rows []dialect.Row) ([]dialect.Inserted, error) {
	var now int64
	for _, r := range rows {
		if !r.RunAt.IsZero() { // only the database's clock knows its side
			if err := scanRow(ctx, s, e.insert.now, nil, &now); err != nil {
				return nil, err
			}
			break
		}
	}
	due := func(r *dialect.Row) bool { return r.Delay > 0 || !r.RunAt.IsZero() && r.RunAt.UnixMicro() > now }

	lanes := map[int32]*numbers{}
	var order []int32
	for i := range rows {
		r := &rows[i]
		n := lanes[r.Lane]
		if n == nil {
			n = &numbers{queue: r.Queue}
			lanes[r.Lane] = n
			order = append(order, r.Lane)
		}
		if n.queue != r.Queue {
			return nil, dialect.ErrUnknownLane
		}
		if due(r) {
			n.due++
		} else {
			n.ready++
		}
	}
	created := now
	for _, lane := range order {
		n := lanes[lane]
		var at int64
		found, err := scanOne(ctx, s, e.insert.numbers, []any{n.ready, n.due, lane, n.queue}, &n.atReady, &n.atDue, &at)
		if err != nil {
			return nil, err
		}
		if !found {
			return nil, dialect.ErrUnknownLane
		}
		n.atReady -= n.ready
		n.atDue -= n.due
		if created == 0 {
			created = at
		}
	}

	out := make([]dialect.Inserted, len(rows))
	var batch []any
	pending := 0
	flush := func(least int) error {
		for i, n := range insertRows {
			for pending >= n && pending >= least {
				width := len(batch) / pending
				if _, err := s.ExecHot(ctx, e.insert.rows[i], batch[:n*width]...); err != nil {
					return err
				}
				batch = append(batch[:0], batch[n*width:]...)
				pending -= n
			}
		}
		return nil
	}
	for i := range rows {
		r := &rows[i]
		n := lanes[r.Lane]
		lane, runAt := int64(r.Lane), any(nil)
		if due(r) {
			n.atDue++
			out[i].ID = dialect.DueBorn | lane<<dialect.SeqBits | n.atDue
			lane = -lane
			if r.Delay > 0 {
				runAt = created + r.Delay.Microseconds()
			} else {
				runAt = r.RunAt.UnixMicro()
			}
		} else {
			n.atReady++
			out[i].ID = lane<<dialect.SeqBits | n.atReady
		}
		payload := r.Payload
		if payload == nil {
			payload = []byte{}
		}
		values := []any{out[i].ID, lane, created, runAt, r.MaxAttempts, r.Lease.Milliseconds(), r.Kind, r.Headers, payload}
		if r.UniqueKey != "" {
			if err := e.insertKeyed(ctx, s, r, append(values, r.Queue, r.UniqueKey), &out[i]); err != nil {
				return nil, err
			}
			continue
		}
		batch = append(batch, values...)
		pending++
		if err := flush(insertRows[0]); err != nil {
			return nil, err
		}
	}
	return out, flush(1)
}

// insertKeyed stores a row unless its unique key is taken.
func (e *engine) insertKeyed(ctx context.Context, s *dialect.Session, r *dialect.Row, values []any, out *dialect.Inserted) error {
	var id int64
	found, err := scanOne(ctx, s, e.insert.keyed, values, &id)
	if err != nil || found {
		return err
	}
	out.Duplicate = true
	return scanRow(ctx, s, e.insert.holder, []any{r.Queue, r.UniqueKey}, &out.ID)
}

// scanOne reads the one row of a hot query, if there is one.
func scanOne(ctx context.Context, s *dialect.Session, text string, args []any, dest ...any) (found bool, err error) {
	rows, err := s.QueryHot(ctx, text, args...)
	if err != nil {
		return false, err
	}
	defer rows.Close()
	for rows.Next() {
		found = true
		if err := rows.Scan(dest...); err != nil {
			return false, err
		}
	}
	return found, rows.Err()
}

// scanRow is scanOne for a row that must be there.
func scanRow(ctx context.Context, s *dialect.Session, text string, args []any, dest ...any) error {
	found, err := scanOne(ctx, s, text, args, dest...)
	if err == nil && !found {
		return fmt.Errorf("no row for %q", text)
	}
	return err
}
