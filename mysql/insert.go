package mysql

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/sqlqueue/queue/dialect"
)

type insertTexts struct {
	lanes, lanesLatest           string
	takeKeys, heldKeys, nameKeys string
	rows                         [len(insertRows)]string
	returning                    [len(insertRows)]string // the same, on servers that have it
}

// insertRows are the numbers of rows that one statement stores, so that there
// are few texts to prepare.
var insertRows = [...]int{100, 10, 1}

const (
	// uniqueKeys are [[queue, key, id], …], and byKey joins them to their rows: by
	// the primary key, so that no gap is locked at any isolation level. The bytes
	// are UTF-8, whatever character set the connection believes in.
	uniqueKeys = `(SELECT CAST(t.queue AS BINARY) AS queue, CAST(t.unique_key AS BINARY) AS unique_key, t.id
  FROM JSON_TABLE(CONVERT(CAST(? AS BINARY) USING utf8mb4), '$[*]' COLUMNS (
    queue VARCHAR(128) CHARACTER SET utf8mb4 PATH '$[0]', unique_key VARCHAR(255) CHARACTER SET utf8mb4 PATH '$[1]', id BIGINT PATH '$[2]')) AS t
  LIMIT 1000000) AS u`
	byKey = uniqueKeys + `
STRAIGHT_JOIN {key} AS k FORCE INDEX (PRIMARY) ON k.queue = u.queue AND k.unique_key = u.unique_key`

	insertHead = `INSERT INTO {job} (lane, run_at, born, created_at, max_attempts, lease_ms, kind, unique_key, headers, payload) VALUES `
	insertRow  = `(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`
	// insertBytes is what a statement carries at most, unless it is of one row:
	// driver, server and log hold several copies of it.
	insertBytes = 4 << 20
)

func (e *engine) insertTexts() insertTexts {
	lanes := e.render(`SELECT l.lane, l.queue, {now}
FROM (SELECT t.lane FROM JSON_TABLE(?, '$[*]' COLUMNS (lane INT PATH '$')) AS t LIMIT 1000000) AS u
STRAIGHT_JOIN {lane} AS l ON l.lane = u.lane`)
	t := insertTexts{
		// A plain read, which locks no lane's row in the caller's transaction; but for
		// lanes that are younger than its snapshot.
		lanes:       lanes,
		lanesLatest: lanes + ` LOCK IN SHARE MODE`,

		// Keys are taken in their order, so that two pushes cannot wait for each
		// other, under placeholders until the ids are known. Whoever meets a key that
		// another transaction has just taken waits for its end.
		takeKeys: e.render(`INSERT IGNORE INTO {key} (queue, unique_key, job_id) SELECT u.queue, u.unique_key, u.id FROM ` + uniqueKeys),
		heldKeys: e.render(`SELECT u.id, k.job_id FROM ` + byKey + ` LOCK IN SHARE MODE`),
		nameKeys: e.render(`UPDATE ` + byKey + ` SET k.job_id = u.id`),
	}
	for i, n := range insertRows {
		t.rows[i] = e.render(insertHead + insertRow + strings.Repeat(`, `+insertRow, n-1))
		t.returning[i] = t.rows[i] + ` RETURNING id`
	}
	return t
}

func (e *engine) Insert(ctx context.Context, s *dialect.Session, rows []dialect.Row) ([]dialect.Inserted, error) {
	keyed := slices.ContainsFunc(rows, func(r dialect.Row) bool { return r.UniqueKey != "" })
	var out []dialect.Inserted
	store := func(s *dialect.Session) error {
		now, err := e.proveLanes(ctx, s, rows)
		if err != nil {
			return err
		}
		out = make([]dialect.Inserted, len(rows))
		if keyed {
			return e.storeKeyed(ctx, s, rows, now, out)
		}
		return e.store(ctx, s, rows, now, out)
	}
	var err error
	if s.Autocommit() && len(e.chunk(rows)) == len(rows) && !keyed {
		err = store(s) // a single statement stores them all
	} else {
		err = e.atomic(ctx, s, store)
	}
	if err != nil {
		return nil, err
	}
	return out, nil
}

// proveLanes makes sure that the lanes are those of the rows' queues, and
// returns the server's time.
func (e *engine) proveLanes(ctx context.Context, s *dialect.Session, rows []dialect.Row) (now int64, err error) {
	queues := map[int32]string{}
	for _, r := range rows {
		if queue, ok := queues[r.Lane]; ok && queue != r.Queue {
			return 0, dialect.ErrUnknownLane
		}
		queues[r.Lane] = r.Queue
	}
	now, err = e.findLanes(ctx, s, e.insert.lanes, queues)
	if err == nil && len(queues) > 0 && s.InTx() {
		now, err = e.findLanes(ctx, s, e.insert.lanesLatest, queues)
	}
	if err == nil && len(queues) > 0 {
		err = dialect.ErrUnknownLane
	}
	return now, err
}

// findLanes takes out of queues those lanes that are what they say.
func (e *engine) findLanes(ctx context.Context, s *dialect.Session, text string, queues map[int32]string) (now int64, err error) {
	list, err := json.Marshal(slices.Sorted(maps.Keys(queues)))
	if err != nil {
		return 0, err
	}
	found, err := s.QueryHot(ctx, text, string(list))
	if err != nil {
		return 0, err
	}
	defer found.Close()
	for found.Next() {
		var lane int32
		var queue string
		if err := found.Scan(&lane, &queue, &now); err != nil {
			return 0, err
		}
		if queues[lane] == queue {
			delete(queues, lane)
		}
	}
	return now, found.Err()
}

// chunk returns the first rows that one statement may store.
func (e *engine) chunk(rows []dialect.Row) []dialect.Row {
	most := min(insertBytes, e.facts.Load().packet/2)
	for _, n := range insertRows {
		if n > len(rows) {
			continue
		}
		size := 0
		for _, r := range rows[:n] {
			size += len(r.Payload) + len(r.Headers)
		}
		if size <= most || n == 1 {
			return rows[:n]
		}
	}
	return nil
}

func (e *engine) store(ctx context.Context, s *dialect.Session, rows []dialect.Row, now int64, out []dialect.Inserted) error {
	for len(rows) > 0 {
		chunk := e.chunk(rows)
		if err := e.insertChunk(ctx, s, chunk, now, out); err != nil {
			return err
		}
		rows, out = rows[len(chunk):], out[len(chunk):]
	}
	return nil
}

func (e *engine) insertChunk(ctx context.Context, s *dialect.Session, rows []dialect.Row, now int64, out []dialect.Inserted) error {
	args := make([]any, 0, 10*len(rows))
	for _, r := range rows {
		lane, runAt := r.Lane, int64(0)
		if r.Delay > 0 {
			lane, runAt = -r.Lane, now+r.Delay.Microseconds()
		} else if at := r.RunAt.UnixMicro(); !r.RunAt.IsZero() && at > now {
			lane, runAt = -r.Lane, at
		}
		args = append(args, lane, runAt, r.Lane, now, r.MaxAttempts, r.Lease.Milliseconds(), r.Kind, r.UniqueKey, nilIfEmpty(r.Headers), r.Payload)
	}
	size := slices.Index(insertRows[:], len(rows))
	return s.One(ctx, func(s *dialect.Session) error {
		facts := e.facts.Load()
		if facts.returning {
			return e.insertReturning(ctx, s, e.insert.returning[size], args, rows, out)
		}
		// One statement of so many rows gets its ids in a row.
		result, err := s.ExecHot(ctx, e.insert.rows[size], args...)
		if err != nil {
			return err
		}
		first, err := result.LastInsertId()
		for i, r := range rows {
			out[i].ID = jobID(r.Lane, first+int64(i)*facts.increment)
		}
		return err
	})
}

func (e *engine) insertReturning(ctx context.Context, s *dialect.Session, text string, args []any, rows []dialect.Row, out []dialect.Inserted) error {
	ids, err := s.QueryHot(ctx, text, args...)
	if err != nil {
		return err
	}
	defer ids.Close()
	for i := 0; ids.Next(); i++ {
		var id int64
		if err := ids.Scan(&id); err != nil {
			return err
		}
		out[i].ID = jobID(rows[i].Lane, id)
	}
	return ids.Err()
}

func nilIfEmpty(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// storeKeyed stores those rows whose unique keys are free, and for the others
// names the jobs that hold them.
func (e *engine) storeKeyed(ctx context.Context, s *dialect.Session, rows []dialect.Row, now int64, out []dialect.Inserted) error {
	type key struct{ queue, key string }
	first := map[key]int{} // the row that takes it
	var order []int
	for i, r := range rows {
		k := key{r.Queue, r.UniqueKey}
		if _, twice := first[k]; r.UniqueKey != "" && !twice {
			first[k] = i
			order = append(order, i)
		}
	}
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(rows[a].Queue, rows[b].Queue), cmp.Compare(rows[a].UniqueKey, rows[b].UniqueKey))
	})
	// Negative, as no job's id is.
	placeholder := -1 - rand.Int64N(math.MaxInt64/2)
	wanted := make([]uniqueKey, len(order))
	for n, i := range order {
		wanted[n] = uniqueKey{rows[i].Queue, rows[i].UniqueKey, placeholder - int64(i)}
	}
	list, err := keyText(wanted)
	if err != nil {
		return err
	}
	result, err := s.ExecHot(ctx, e.insert.takeKeys, list)
	if err != nil {
		return err
	}
	taken, err := result.RowsAffected()
	if err != nil {
		return err
	}
	if taken < int64(len(order)) {
		if err := e.findHolders(ctx, s, list, placeholder, out); err != nil {
			return err
		}
	}

	// What is to be stored: the rows without a key, and the first of each free key.
	var fresh []dialect.Row
	var at []int
	for i, r := range rows {
		holder, ok := first[key{r.Queue, r.UniqueKey}]
		if ok && (holder != i || out[i].Duplicate) {
			continue
		}
		fresh, at = append(fresh, r), append(at, i)
	}
	stored := make([]dialect.Inserted, len(fresh))
	if err := e.store(ctx, s, fresh, now, stored); err != nil {
		return err
	}
	for n, i := range at {
		out[i] = stored[n]
	}
	var names []uniqueKey
	for _, i := range order {
		if !out[i].Duplicate {
			names = append(names, uniqueKey{rows[i].Queue, rows[i].UniqueKey, out[i].ID})
		}
	}
	for i, r := range rows {
		if holder, ok := first[key{r.Queue, r.UniqueKey}]; ok && holder != i {
			out[i] = dialect.Inserted{ID: out[holder].ID, Duplicate: true}
		}
	}
	if len(names) == 0 {
		return nil
	}
	if list, err = keyText(names); err != nil {
		return err
	}
	_, err = s.ExecHot(ctx, e.insert.nameKeys, list)
	return err
}

// A uniqueKey and the job that holds it.
type uniqueKey struct {
	queue, key string
	id         int64
}

// keyText is the parameter of uniqueKeys.
func keyText(keys []uniqueKey) (string, error) {
	list := make([][3]any, len(keys))
	for i, k := range keys {
		list[i] = [3]any{k.queue, k.key, k.id}
	}
	text, err := json.Marshal(list)
	return string(text), err
}

// findHolders answers the rows whose keys other jobs hold.
func (e *engine) findHolders(ctx context.Context, s *dialect.Session, list string, placeholder int64, out []dialect.Inserted) error {
	held, err := s.QueryHot(ctx, e.insert.heldKeys, list)
	if err != nil {
		return err
	}
	defer held.Close()
	for held.Next() {
		var mine, holder int64
		if err := held.Scan(&mine, &holder); err != nil {
			return err
		}
		if holder != mine {
			out[placeholder-mine] = dialect.Inserted{ID: holder, Duplicate: true}
		}
	}
	return held.Err()
}
