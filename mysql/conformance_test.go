package mysql_test

import (
	"context"
	"database/sql"
	"testing"

	driver "github.com/go-sql-driver/mysql"

	"github.com/sqlqueue/queue/dialect"
	"github.com/sqlqueue/queue/dialect/dialecttest"
	"github.com/sqlqueue/queue/internal/testserver"
	"github.com/sqlqueue/queue/mysql"
)

func TestConformance(t *testing.T) {
	dialecttest.Run(t, engine("mysql", testserver.MySQL, testserver.PrivateMySQL, "transaction_isolation"))
}

func TestConformanceMariaDB(t *testing.T) {
	dialecttest.Run(t, engine("mariadb", testserver.MariaDB, testserver.PrivateMariaDB, "tx_isolation"))
}

// engine is one of the two families, whose names for the isolation level of a
// session differ.
func engine(name string, shared, private func(testing.TB) *testserver.Server, isolation string) dialecttest.Engine {
	return dialecttest.Engine{
		Name:    name,
		Driver:  "mysql",
		Dialect: mysql.Dialect{},
		// Not before it is called for: the suite's child processes call this, too.
		NewDatabase: func(tb testing.TB) string { return shared(tb).NewDatabase(tb) },
		Restart: func(tb testing.TB) (string, func(bool)) {
			own := private(tb)
			return own.NewDatabase(tb), func(crash bool) {
				mode := testserver.Fast
				if crash {
					mode = testserver.Immediate
				}
				own.Restart(tb, mode)
			}
		},

		AgeLeases:  `UPDATE queue_job SET lease_until = lease_until - :micros WHERE lease_until > 0`,
		AgeDue:     `UPDATE queue_job SET run_at = run_at - :micros WHERE run_at > 0`,
		AgeArchive: `UPDATE queue_archive SET finished_at = finished_at - :micros`,
		OneBad: `CREATE TRIGGER one_bad BEFORE INSERT ON queue_job FOR EACH ROW SET NEW.max_attempts =
  IF(NEW.kind = X'626164' AND EXISTS (SELECT 1 FROM queue_job AS j WHERE j.kind = X'626164'), NULL, NEW.max_attempts)`,

		LanesDeadlock: true,
		// MariaDB's packets have 16 MiB by default.
		MaxPayload:    16<<20 - 64<<10,
		ScriptDSN:     func(dsn string) string { return with(dsn, func(c *driver.Config) { c.MultiStatements = true }) },
		HostileDSNs:   func(dsn string) map[string]string { return hostileDSNs(dsn, isolation) },
		HoldSnapshot:  holdSnapshot,
		Analyze:       `ANALYZE TABLE queue_job, queue_lane`,
		Refusals:      refusals,
		DamageHeaders: `UPDATE queue_job SET headers = '{"half' WHERE id = :id & 8796093022207`,
		RegressIDs:    []string{`ALTER TABLE queue_job AUTO_INCREMENT = 1`},
		ForgetLanes:   []string{`DELETE FROM queue_lane`, `ALTER TABLE queue_lane AUTO_INCREMENT = 1`},
	}
}

// with changes a DSN.
func with(dsn string, change func(*driver.Config)) string {
	c, err := driver.ParseDSN(dsn)
	if err != nil {
		panic(err)
	}
	change(c)
	return c.FormatDSN()
}

func hostileDSNs(dsn, isolation string) map[string]string {
	out := map[string]string{
		"interpolated params": with(dsn, func(c *driver.Config) { c.InterpolateParams = true }),
		"parse time":          with(dsn, func(c *driver.Config) { c.ParseTime = true }),
		"found rows":          with(dsn, func(c *driver.Config) { c.ClientFoundRows = true }),
		"many statements":     with(dsn, func(c *driver.Config) { c.MultiStatements = true }),
		"latin1":              with(dsn, func(c *driver.Config) { c.Collation = "latin1_swedish_ci" }),
		"column aliases":      with(dsn, func(c *driver.Config) { c.ColumnsWithAlias = true }),
	}
	for name, params := range map[string]map[string]string{
		"serializable":         {isolation: "'SERIALIZABLE'"},
		"read committed":       {isolation: "'READ-COMMITTED'"},
		"read uncommitted":     {isolation: "'READ-UNCOMMITTED'"},
		"time zone":            {"time_zone": "'+12:45'"},
		"ansi":                 {"sql_mode": "'ANSI,TRADITIONAL'"},
		"no backslash escapes": {"sql_mode": "'NO_BACKSLASH_ESCAPES,ANSI_QUOTES'"},
		"no mode":              {"sql_mode": "''"},
		"lock wait":            {"innodb_lock_wait_timeout": "2"},
	} {
		out[name] = with(dsn, func(c *driver.Config) { c.Params = params })
	}
	return out
}

func holdSnapshot(ctx context.Context, tb testing.TB, db *sql.DB) (release func()) {
	tb.Helper()
	conn, err := db.Conn(ctx)
	if err != nil {
		tb.Fatal(err)
	}
	tx, err := conn.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
	if err != nil {
		tb.Fatal(err)
	}
	if _, err := tx.ExecContext(ctx, "SELECT COUNT(*) FROM queue_lane"); err != nil { // the snapshot begins here
		tb.Fatal(err)
	}
	return func() {
		tx.Rollback()
		conn.Close()
	}
}

func refusals(tb testing.TB, db *sql.DB) map[dialect.Class]error {
	tb.Helper()
	out := map[dialect.Class]error{}
	for class, signal := range map[dialect.Class]string{
		dialect.Deadlock:      `SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213`,
		dialect.Serialization: `SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1020`,
		dialect.Busy:          `SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1205`,
	} {
		_, err := db.Exec(signal)
		if err == nil {
			tb.Fatal("nothing was refused")
		}
		out[class] = err
	}
	return out
}
