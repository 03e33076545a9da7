package mysql

import (
	"strings"
	"testing"

	"github.com/sqlqueue/queue/dialect"
	"github.com/sqlqueue/queue/dialect/dialecttest"
	"github.com/sqlqueue/queue/internal/testserver"
)

// unlocked is the dialect on a server that takes FOR UPDATE SKIP LOCKED and
// ignores it, as some that speak the protocol do.
type unlocked struct{}

func (unlocked) Open(ns dialect.Namespace) (dialect.Engine, error) {
	ns, err := ns.Normal("")
	if err != nil {
		return nil, err
	}
	return open(ns, ""), nil
}

func TestConformanceUnlocked(t *testing.T)        { conformUnlocked(t, "mysql", testserver.MySQL) }
func TestConformanceUnlockedMariaDB(t *testing.T) { conformUnlocked(t, "mariadb", testserver.MariaDB) }

// conformUnlocked runs the cases about who holds a job: a claim proves itself.
func conformUnlocked(t *testing.T, name string, server func(testing.TB) *testserver.Server) {
	dialecttest.Run(t, dialecttest.Engine{
		Name:        name,
		Driver:      "mysql",
		Dialect:     unlocked{},
		NewDatabase: func(tb testing.TB) string { return server(tb).NewDatabase(tb) },
		AgeLeases:   `UPDATE queue_job SET lease_until = lease_until - :micros WHERE lease_until > 0`,
		AgeDue:      `UPDATE queue_job SET run_at = run_at - :micros WHERE run_at > 0`,
		Analyze:     `ANALYZE TABLE queue_job, queue_lane`,
		Only: func(name string) bool {
			return strings.HasPrefix(name, "concurrency: ")
		},
	})
}
