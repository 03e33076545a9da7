package sqlite

import (
	"database/sql"
	"fmt"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	_ "modernc.org/sqlite"

	"github.com/sqlqueue/queue/dialect"
)

func testEngine(t *testing.T) *engine {
	t.Helper()
	e, err := Dialect{}.Open(dialect.Namespace{})
	if err != nil {
		t.Fatal(err)
	}
	return e.(*engine)
}

// testDatabase returns a file with the schema in it.
func testDatabase(t *testing.T, e *engine) (db *sql.DB, path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "queue.db")
	db, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	for _, text := range e.migrations[0].Statements {
		exec(t, db, text)
	}
	return db, path
}

func exec(t *testing.T, db *sql.DB, text string, args ...any) {
	t.Helper()
	if _, err := db.Exec(text, args...); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
}

// allTexts are the engine's statements by name.
func allTexts(e *engine) map[string]string {
	out := map[string]string{}
	add := func(prefix string, v reflect.Value) {
		for i := range v.NumField() {
			name := prefix + v.Type().Field(i).Name
			switch f := v.Field(i); f.Kind() {
			case reflect.String:
				out[name] = f.String()
			case reflect.Array:
				for k := range f.Len() {
					out[fmt.Sprint(name, k)] = f.Index(k).String()
				}
			}
		}
	}
	add("claim.", reflect.ValueOf(e.claim))
	add("insert.", reflect.ValueOf(e.insert))
	add("settle.", reflect.ValueOf(e.settle))
	add("", reflect.ValueOf(e.statements))
	out["First"] = e.statements.TxOptions.First
	return out
}

var namedParam = regexp.MustCompile(`:[a-z_]+`)

// plan is what EXPLAIN QUERY PLAN says, a line for each step.
func plan(t *testing.T, db *sql.DB, text string) []string {
	t.Helper()
	text = namedParam.ReplaceAllString(text, "?")
	args := make([]any, strings.Count(text, "?"))
	for i := range args {
		args[i] = 1
	}
	rows, err := db.Query("EXPLAIN QUERY PLAN "+text, args...)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	defer rows.Close()
	var out []string
	for rows.Next() {
		var id, parent, notUsed int
		var detail string
		if err := rows.Scan(&id, &parent, &notUsed, &detail); err != nil {
			t.Fatal(err)
		}
		out = append(out, detail)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestPlans: no statement reads the whole live table, and no claim sorts.
func TestPlans(t *testing.T) {
	e := testEngine(t)
	db, _ := testDatabase(t, e)
	read := 0
	for name, text := range allTexts(e) {
		if text == "" || !strings.Contains(text, "queue_job") {
			continue
		}
		read++
		for _, step := range plan(t, db, text) {
			if step == "SCAN j" || step == "SCAN queue_job" || strings.HasPrefix(step, "SCAN j ") || strings.HasPrefix(step, "SCAN queue_job ") {
				t.Errorf("%s reads the whole live table: %s\n%s", name, step, text)
			}
			if strings.HasPrefix(name, "claim.") && strings.Contains(step, "TEMP B-TREE") {
				t.Errorf("%s sorts: %s\n%s", name, step, text)
			}
		}
	}
	if read < 20 {
		t.Errorf("%d statements were looked at", read)
	}
}
