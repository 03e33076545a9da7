package postgres

import (
	"testing"

	"github.com/sqlqueue/queue"
	"github.com/sqlqueue/queue/dialect"
	"github.com/sqlqueue/queue/internal/golden"

	_ "github.com/lib/pq"
)

// rendered is the engine for a namespace, and its statements.
func rendered(t *testing.T, ns dialect.Namespace) (*engine, []golden.Text) {
	t.Helper()
	e, err := Dialect{}.Open(ns)
	if err != nil {
		t.Fatal(err)
	}
	return e.(*engine), golden.Texts(*e.(*engine), e.(*engine).statements)
}

func TestGoldenSchema(t *testing.T) {
	db := openNothing(t)
	q, err := queue.New(db, Dialect{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	golden.Check(t, "postgres", "schema.sql", q.Schema())
}

func TestGoldenStatements(t *testing.T) {
	_, texts := rendered(t, dialect.Namespace{})
	golden.Check(t, "postgres", "statements.sql", golden.Script(texts))
}

func TestTextsRendered(t *testing.T) {
	e, texts := rendered(t, dialect.Namespace{Schema: "s_1", Prefix: "p_1"})
	for _, text := range texts {
		if text.SQL == "" && text.Name != "UnlockMigration" { // the transaction's end unlocks
			t.Errorf("%s is empty", text.Name)
		}
	}
	for _, text := range e.Migrations()[0].Statements {
		texts = append(texts, golden.Text{Name: "a migration", SQL: text})
	}
	golden.CheckNames(t, texts, "queue_", "public")
}
