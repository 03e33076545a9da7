package postgres

import (
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/sqlqueue/queue"
	"github.com/sqlqueue/queue/dialect"

	_ "github.com/lib/pq"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares a text with a file of testdata, which a change of SQL so
// shows in review.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("..", "testdata", "postgres", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v: run go test ./postgres -run Golden -update", err)
	}
	if got == string(want) {
		return
	}
	gotLines, wantLines := strings.Split(got, "\n"), strings.Split(string(want), "\n")
	for i := range max(len(gotLines), len(wantLines)) {
		g, w := "", ""
		if i < len(gotLines) {
			g = gotLines[i]
		}
		if i < len(wantLines) {
			w = wantLines[i]
		}
		if g != w {
			t.Fatalf("%s, line %d:\n got %s\nwant %s\nIf the change is meant, run go test ./postgres -run Golden -update.", path, i+1, g, w)
		}
	}
}

func TestGoldenSchema(t *testing.T) {
	db := openNothing(t)
	q, err := queue.New(db, Dialect{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "schema.sql", q.Schema())
}

func TestGoldenStatements(t *testing.T) {
	opened, err := Dialect{}.Open(dialect.Namespace{})
	if err != nil {
		t.Fatal(err)
	}
	e := opened.(*engine)
	var b strings.Builder
	section := func(name, text string) {
		if text != "" {
			b.WriteString("-- " + name + "\n" + text + ";\n\n")
		}
	}
	// The engine's own texts are its string fields, like those of Statements.
	for _, texts := range []reflect.Value{reflect.ValueOf(*e), reflect.ValueOf(e.statements)} {
		for i := range texts.NumField() {
			if f := texts.Field(i); f.Kind() == reflect.String {
				section(texts.Type().Field(i).Name, f.String())
			}
		}
	}
	golden(t, "statements.sql", b.String())
}

// TestTextsRendered finds placeholders that no name was put into, and texts
// that are missing.
func TestTextsRendered(t *testing.T) {
	opened, err := Dialect{}.Open(dialect.Namespace{Schema: "s_1", Prefix: "p_1"})
	if err != nil {
		t.Fatal(err)
	}
	e := opened.(*engine)
	check := func(name, text string) {
		if strings.Contains(text, "{") || strings.Contains(text, "}") {
			t.Errorf("%s has a placeholder left: %s", name, text)
		}
		if strings.Contains(text, "queue_") || strings.Contains(text, "public") {
			t.Errorf("%s names the default namespace: %s", name, text)
		}
	}
	for _, texts := range []reflect.Value{reflect.ValueOf(*e), reflect.ValueOf(e.statements)} {
		for i := range texts.NumField() {
			if f := texts.Field(i); f.Kind() == reflect.String {
				if f.String() == "" {
					t.Errorf("%s is empty", texts.Type().Field(i).Name)
				}
				check(texts.Type().Field(i).Name, f.String())
			}
		}
	}
	for _, m := range e.Migrations() {
		for _, text := range m.Statements {
			check("a migration", text)
		}
	}
}
