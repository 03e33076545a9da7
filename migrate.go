package queue

import (
	"context"
	"fmt"
	"strings"

	"github.com/sqlqueue/queue/dialect"
)

// Migrate creates the schema or brings it up to date. It is forward only,
// changes nothing when there is nothing to do, and is safe when many processes
// call it at once. Code that is older than the schema keeps working as long as
// the schema says that it may; see [ErrSchemaNew].
func (q *Queue) Migrate(ctx context.Context) error {
	if q.closed.Load() {
		return ErrClosed
	}
	if err := q.checkServer(ctx, q.session); err != nil {
		return err
	}
	for attempt := 0; ; attempt++ {
		err := q.session.Migration(ctx, q.texts.LockMigration, q.texts.UnlockMigration, func(s *dialect.Session) error { return q.migrate(ctx, s) })
		if err == nil {
			return nil
		}
		class := q.engine.Classify(err)
		switch {
		case class.Transient() && attempt < 100 && ctx.Err() == nil:
			if err := sleep(ctx, retryDelay(attempt)); err != nil {
				return err
			}
		case class == dialect.Denied:
			return fmt.Errorf("queue: this database user may not create the schema: have a DBA run the statements that Schema returns, or grant the right to create: %w", err)
		default:
			return fmt.Errorf("queue: migrate: %w", ended(ctx, err))
		}
	}
}

func (q *Queue) migrate(ctx context.Context, s *dialect.Session) error {
	version, minCode, err := q.schemaVersion(ctx, s)
	if err != nil {
		return err
	}
	for _, m := range q.engine.Migrations() {
		if m.Version <= version {
			continue
		}
		for _, text := range m.Statements {
			if _, err := s.Exec(ctx, text); err != nil {
				return fmt.Errorf("version %d: %w", m.Version, err)
			}
		}
		minCode = max(minCode, m.MinCode)
		if _, err := s.Run(ctx, q.texts.SetVersion, dialect.Params{"version": m.Version, "min_code": minCode}); err != nil {
			return err
		}
	}
	return nil
}

// schemaVersion returns 0 when there is no schema.
func (q *Queue) schemaVersion(ctx context.Context, s *dialect.Session) (version, minCode int, err error) {
	var has []struct {
		N int `db:"n"`
	}
	if err := s.Select(ctx, &has, q.texts.HasSchema, nil); err != nil || has[0].N == 0 {
		return 0, 0, err
	}
	var rows []struct {
		Version int `db:"version"`
		MinCode int `db:"min_code"`
	}
	if err := s.Select(ctx, &rows, q.texts.Version, nil); err != nil || len(rows) == 0 {
		return 0, 0, err
	}
	return rows[0].Version, rows[0].MinCode, nil
}

// Schema returns the statements that Migrate would run on an empty database,
// for a DBA to read and run.
func (q *Queue) Schema() string {
	var b strings.Builder
	last := dialect.Migration{}
	for _, m := range q.engine.Migrations() {
		for _, text := range m.Statements {
			b.WriteString(text)
			b.WriteString(";\n\n")
		}
		last.Version, last.MinCode = m.Version, max(last.MinCode, m.MinCode)
	}
	record := strings.NewReplacer(":version", fmt.Sprint(last.Version), ":min_code", fmt.Sprint(last.MinCode)).Replace(q.texts.SetVersion)
	b.WriteString(record)
	b.WriteString(";\n")
	return b.String()
}
