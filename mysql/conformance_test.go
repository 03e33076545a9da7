package mysql_test

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/sqlqueue/queue/dialect"
	"github.com/sqlqueue/queue/dialect/dialecttest"
	dialectmysql "github.com/sqlqueue/queue/mysql"
)

func TestConformance(t *testing.T) {
	dsn := os.Getenv("DEV_DSN")
	dialecttest.Run(t, dialecttest.Engine{
		Name:    "mariadb",
		Driver:  "mysql",
		Dialect: dialectmysql.Dialect{},
		NewDatabase: func(tb testing.TB) string {
			db, err := sql.Open("mysql", dsn)
			if err != nil {
				tb.Fatal(err)
			}
			defer db.Close()
			name := fmt.Sprintf("t_%08x", rand.Uint32())
			if _, err := db.Exec("CREATE DATABASE " + name); err != nil {
				tb.Fatal(err)
			}
			tb.Cleanup(func() {
				db, err := sql.Open("mysql", dsn)
				if err != nil {
					tb.Fatal(err)
				}
				defer db.Close()
				db.Exec("DROP DATABASE " + name)
			})
			c, _ := mysql.ParseDSN(dsn)
			c.DBName = name
			return c.FormatDSN()
		},

		AgeLeases:  `UPDATE queue_job SET lease_until = lease_until - :micros WHERE lease_until > 0`,
		AgeDue:     `UPDATE queue_job SET run_at = run_at - :micros WHERE run_at > 0`,
		AgeArchive: `UPDATE queue_archive SET finished_at = finished_at - :micros`,
		OneBad:     `ALTER TABLE queue_job ADD COLUMN bad INT AS (IF(kind = 'bad', 1, NULL)) VIRTUAL, ADD UNIQUE INDEX one_bad (bad)`,

		ScriptDSN:     func(dsn string) string { return with(dsn, func(c *mysql.Config) { c.MultiStatements = true }) },
		HostileDSNs:   hostileDSNs,
		HoldSnapshot:  holdSnapshot,
		Analyze:       `ANALYZE TABLE queue_job, queue_lane`,
		Refusals:      refusals,
		DamageHeaders: `UPDATE queue_job SET headers = '{"half' WHERE id = :id & 8796093022207`,
		RegressIDs:    []string{`ALTER TABLE queue_job AUTO_INCREMENT = 1`},
		ForgetLanes:   []string{`DELETE FROM queue_lane`, `ALTER TABLE queue_lane AUTO_INCREMENT = 1`},
	})
}

// with changes a DSN.
func with(dsn string, change func(*mysql.Config)) string {
	c, err := mysql.ParseDSN(dsn)
	if err != nil {
		panic(err)
	}
	change(c)
	return c.FormatDSN()
}

func hostileDSNs(dsn string) map[string]string {
	out := map[string]string{
		"interpolated params": with(dsn, func(c *mysql.Config) { c.InterpolateParams = true }),
		"parse time":          with(dsn, func(c *mysql.Config) { c.ParseTime = true }),
		"found rows":          with(dsn, func(c *mysql.Config) { c.ClientFoundRows = true }),
		"many statements":     with(dsn, func(c *mysql.Config) { c.MultiStatements = true }),
		"latin1":              with(dsn, func(c *mysql.Config) { c.Collation = "latin1_swedish_ci" }),
		"column aliases":      with(dsn, func(c *mysql.Config) { c.ColumnsWithAlias = true }),
	}
	for name, params := range map[string]map[string]string{
		"serializable":         {"tx_isolation": "'SERIALIZABLE'"},
		"read committed":       {"tx_isolation": "'READ-COMMITTED'"},
		"read uncommitted":     {"tx_isolation": "'READ-UNCOMMITTED'"},
		"time zone":            {"time_zone": "'+12:45'"},
		"ansi":                 {"sql_mode": "'ANSI,TRADITIONAL'"},
		"no backslash escapes": {"sql_mode": "'NO_BACKSLASH_ESCAPES,ANSI_QUOTES'"},
		"no mode":              {"sql_mode": "''"},
		"lock wait":            {"innodb_lock_wait_timeout": "2"},
	} {
		out[name] = with(dsn, func(c *mysql.Config) { c.Params = params })
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
	for class, number := range map[dialect.Class]int{dialect.Deadlock: 1213, dialect.Serialization: 1020, dialect.Busy: 1205} {
		// There is no SIGNAL outside of routines that users could do without.
		out[class] = &mysql.MySQLError{Number: uint16(number), SQLState: [5]byte{'4', '0', '0', '0', '1'}, Message: "refused"}
	}
	return out
}
