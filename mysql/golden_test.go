package mysql

import (
	"database/sql"
	"testing"

	_ "github.com/go-sql-driver/mysql"

	"github.com/sqlqueue/queue"
	"github.com/sqlqueue/queue/dialect"
	"github.com/sqlqueue/queue/internal/golden"
)

// rendered is the engine for a namespace, and its statements.
func rendered(t *testing.T, ns dialect.Namespace) (*engine, []golden.Text) {
	t.Helper()
	opened, err := Dialect{}.Open(ns)
	if err != nil {
		t.Fatal(err)
	}
	e := opened.(*engine)
	return e, golden.Texts(e.claim, e.insert, e.settle, struct{ check, place string }{e.check, e.place}, e.statements)
}

func TestGoldenSchema(t *testing.T) {
	db, err := sql.Open("mysql", "nobody@/nothing") // never connected
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	q, err := queue.New(db, Dialect{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	golden.Check(t, "mysql", "schema.sql", q.Schema())
}

func TestGoldenStatements(t *testing.T) {
	_, texts := rendered(t, dialect.Namespace{})
	golden.Check(t, "mysql", "statements.sql", golden.Script(texts))
}

func TestTextsRendered(t *testing.T) {
	e, texts := rendered(t, dialect.Namespace{Schema: "s_1", Prefix: "p_1"})
	for _, text := range texts {
		if text.SQL == "" {
			t.Errorf("%s is empty", text.Name)
		}
	}
	for _, text := range e.Migrations()[0].Statements {
		texts = append(texts, golden.Text{Name: "a migration", SQL: text})
	}
	golden.CheckNames(t, texts, "queue_", "DATABASE() AND")
}
