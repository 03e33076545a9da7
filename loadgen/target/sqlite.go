package target

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sqlqueue/queue/bench"
)

var sqliteForm = &form{
	engine:  bench.SQLite,
	schemes: sqliteSchemes,
	claims:  looksLikePath,
	parse:   parseSQLite,
	example: "the path of a SQLite file, as in ./queue.db",
	hint: func(err error, text string) string {
		switch {
		case strings.Contains(text, "not a database"):
			return "name a SQLite file, or one that does not exist yet"
		case errors.Is(err, os.ErrPermission), strings.Contains(text, "readonly"), strings.Contains(text, "unable to open"):
			return "check that the file and its directory can be written to"
		case strings.Contains(text, "locked"), strings.Contains(text, "busy"):
			return "another process is writing to the file: end it, or use another file"
		}
		return ""
	},
}

var sqliteSchemes = []string{"sqlite", "sqlite3", "file"}

// looksLikePath takes what exists or is meant as a path. A lone word is more
// likely a mistake than the name of a file to create.
func looksLikePath(dsn string) bool {
	if dsn == "" || strings.ContainsAny(dsn, `/\`) && !strings.Contains(dsn, "@") {
		return true
	}
	if slices.Contains([]string{".db", ".db3", ".sqlite", ".sqlite3"}, strings.ToLower(filepath.Ext(dsn))) {
		return true
	}
	_, err := os.Stat(dsn)
	return err == nil
}

func parseSQLite(t *Target, dsn string) error {
	if dsn == "" {
		return temporary(t)
	}
	path := dsn
	if scheme, rest, ok := strings.Cut(dsn, ":"); ok && slices.Contains(sqliteSchemes, strings.ToLower(scheme)) {
		path = strings.TrimPrefix(rest, "//")
	}
	t.DSN, t.Label = path, path
	if strings.HasPrefix(dsn, "file:") { // a URI, which may have parameters
		t.DSN = dsn
		path, _, _ = strings.Cut(path, "?")
		t.Label = path
	}
	switch {
	case path == "":
		return errors.New("-dsn: give the path of a SQLite file, as in ./queue.db")
	case strings.Contains(dsn, ":memory:"), strings.Contains(dsn, "mode=memory"):
		return errors.New("-dsn: give the path of a file: what lives in memory says nothing about a disk")
	case strings.Contains(path, "?"):
		return errors.New("-dsn: parameters need the form file:queue.db?_pragma=synchronous(normal)")
	}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		dir := filepath.Dir(path)
		if d, err := os.Stat(dir); err != nil || !d.IsDir() {
			return errors.New("-dsn: there is no directory for this file: create it, or check the path")
		}
		t.cleanup = func(ctx context.Context) error { return removeIfEmpty(ctx, t, path) }
		return nil
	case err != nil:
		return errors.New("-dsn: the file cannot be looked at: check the path and its permissions")
	case info.IsDir():
		return errors.New("-dsn: this is a directory: name a file in it")
	case info.Size() > 0 && !isSQLite(path):
		return errors.New("-dsn: this file is not a SQLite database: name another, or one that does not exist yet")
	}
	return nil
}

func temporary(t *Target) error {
	dir, err := os.MkdirTemp("", "loadgen-")
	if err != nil {
		return errors.New("no temporary directory can be made: set TMPDIR to one that can be written to, or give a -dsn")
	}
	t.DSN, t.Label = filepath.Join(dir, "queue.db"), "a temporary file"
	t.cleanup = func(context.Context) error { return os.RemoveAll(dir) }
	return nil
}

func isSQLite(path string) bool {
	const magic = "SQLite format 3\x00"
	f, err := os.Open(path)
	if err != nil {
		return true // opening it will say why
	}
	defer f.Close()
	head := make([]byte, len(magic))
	_, err = io.ReadFull(f, head)
	return err == nil && bytes.Equal(head, []byte(magic))
}

// removeIfEmpty removes a file that was not there before, unless somebody has
// put tables of their own into it meanwhile.
func removeIfEmpty(ctx context.Context, t *Target, path string) error {
	if _, err := os.Stat(path); err != nil {
		return nil
	}
	db, err := t.Open(1)
	if err != nil {
		return err
	}
	var tables int
	err = db.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_schema WHERE name NOT LIKE 'sqlite%'").Scan(&tables)
	db.Close()
	if err != nil || tables > 0 {
		return err
	}
	for _, suffix := range []string{"-wal", "-shm", "-journal"} {
		os.Remove(path + suffix)
	}
	return os.Remove(path)
}
