package mysql

import (
	"testing"
	"time"

	mysqldriver "github.com/go-sql-driver/mysql"

	"github.com/sqlqueue/queue"
	"github.com/sqlqueue/queue/internal/testserver"
)

// TestRoundTrips counts what the package's documentation says of them.
func TestRoundTrips(t *testing.T) {
	for _, f := range []struct {
		name, isolation string
		server          func(testing.TB) *testserver.Server
	}{{"MySQL", "transaction_isolation", testserver.MySQL}, {"MariaDB", "tx_isolation", testserver.MariaDB}} {
		for level, want := range map[string]map[string]int{
			"READ-COMMITTED":  {"empty pop": 1, "push": 2, "pop": 3, "ack of one": 1, "ack of many": 3},
			"REPEATABLE-READ": {"empty pop": 1, "push": 5, "pop": 6, "ack of one": 4, "ack of many": 4},
		} {
			t.Run(f.name+"/"+level, func(t *testing.T) {
				cfg, err := mysqldriver.ParseDSN(f.server(t).NewDatabase(t))
				if err != nil {
					t.Fatal(err)
				}
				cfg.Params = map[string]string{f.isolation: "'" + level + "'"}
				db := openDB(t, cfg.FormatDSN())
				db.SetMaxOpenConns(1)
				q, err := queue.New(db, Dialect{}, nil)
				if err != nil {
					t.Fatal(err)
				}
				defer q.Close()
				ctx := t.Context()
				if err := q.Migrate(ctx); err != nil {
					t.Fatal(err)
				}
				questions := func() int {
					var name string
					var n int
					if err := db.QueryRow(`SHOW SESSION STATUS LIKE 'Questions'`).Scan(&name, &n); err != nil {
						t.Fatal(err)
					}
					return n
				}
				least := map[string]int{}
				count := func(name string, call func() error) {
					before := questions()
					if err := call(); err != nil {
						t.Fatalf("%s: %v", name, err)
					}
					n := questions() - before - 1 // the question itself
					if old, ok := least[name]; !ok || n < old {
						least[name] = n
					}
				}
				// The least of many rounds: now and then a call reads the catalog, or
				// rechecks.
				var jobs []*queue.Job
				pop := func() (err error) {
					jobs, err = q.Pop(ctx, 5, nil)
					return err
				}
				for range 12 {
					count("push", func() error { _, err := q.Push(ctx, queue.NewJob{Queue: "q", Kind: "k"}); return err })
					fill(t, q, 9)
					count("pop", pop)
					count("ack of one", func() error { return q.Ack(ctx, jobs[0]) })
					count("ack of many", func() error { return q.Ack(ctx, jobs[1:]...) })
					for pop(); len(jobs) > 0; pop() {
						if err := q.Ack(ctx, jobs...); err != nil {
							t.Fatal(err)
						}
					}
					count("empty pop", pop)
					time.Sleep(20 * time.Millisecond)
				}
				for name, n := range want {
					if least[name] != n {
						t.Errorf("%s takes %d round trips, want %d", name, least[name], n)
					}
				}
			})
		}
	}
}
