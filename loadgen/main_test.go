package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/sqlqueue/queue"
	"github.com/sqlqueue/queue/internal/testserver"
	"github.com/sqlqueue/queue/loadgen/target"
)

// asMain makes the test binary the command.
const asMain = "LOADGEN_TEST_AS_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(asMain) != "" {
		main()
	}
	testserver.Main(m)
}

// start starts the command with a temporary directory of its own.
func start(t *testing.T, args ...string) (cmd *exec.Cmd, stdout, stderr *bytes.Buffer, tmp string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	tmp = t.TempDir()
	cmd = exec.Command(self, args...)
	cmd.Env = append(os.Environ(), asMain+"=1", "TMPDIR="+tmp, "TMP="+tmp)
	stdout, stderr = &bytes.Buffer{}, &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = stdout, stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill() })
	return cmd, stdout, stderr, tmp
}

func loadgen(t *testing.T, args ...string) (stdout, stderr string, status int, tmp string) {
	t.Helper()
	cmd, out, errs, tmp := start(t, args...)
	cmd.Wait()
	return out.String(), errs.String(), cmd.ProcessState.ExitCode(), tmp
}

// small makes a run short.
var small = []string{"-jobs", "300", "-batch", "5", "-duration", "60ms", "-consumers", "1,2,4"}

func with(args ...string) []string { return append(slices.Clone(small), args...) }

type object struct {
	Engine               *string `json:"engine"`
	Version              *string `json:"version"`
	RecommendedConsumers *int    `json:"recommended_consumers"`
	Interrupted          bool    `json:"interrupted"`
	Steps                []step  `json:"steps"`
}

type step struct {
	Consumers     *int     `json:"consumers"`
	JobsPerSecond *float64 `json:"jobs_per_second"`
	P50           *float64 `json:"p50_ms"`
	P95           *float64 `json:"p95_ms"`
	P99           *float64 `json:"p99_ms"`
	EmptyPops     *int64   `json:"empty_pops"`
	Retries       *int64   `json:"retries"`
}

// decode reads exactly one object.
func decode(t *testing.T, text string) object {
	t.Helper()
	var o object
	dec := json.NewDecoder(strings.NewReader(text))
	if err := dec.Decode(&o); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	if dec.More() {
		t.Fatalf("more than one object: %s", text)
	}
	if o.Engine == nil || o.Version == nil || o.RecommendedConsumers == nil || o.Steps == nil {
		t.Fatalf("a key is missing: %s", text)
	}
	for _, s := range o.Steps {
		if s.Consumers == nil || s.JobsPerSecond == nil || s.P50 == nil || s.P95 == nil || s.P99 == nil || s.EmptyPops == nil || s.Retries == nil {
			t.Fatalf("a step's key is missing: %s", text)
		}
		if *s.JobsPerSecond <= 0 || *s.P50 <= 0 || *s.P50 > *s.P95 || *s.P95 > *s.P99 {
			t.Errorf("a step that cannot be: %s", text)
		}
	}
	return o
}

func checkRun(t *testing.T, engine string, args ...string) {
	t.Helper()
	out, errs, status, tmp := loadgen(t, append(with("-format", "json"), args...)...)
	if status != 0 || errs != "" {
		t.Fatalf("status %d: %s", status, errs)
	}
	o := decode(t, out)
	if *o.Engine != engine || *o.Version == "" || *o.RecommendedConsumers == 0 || len(o.Steps) != 3 {
		t.Errorf("%s", out)
	}
	left, err := os.ReadDir(tmp)
	if err != nil || len(left) > 0 {
		t.Errorf("left behind in the temporary directory: %v %v", left, err)
	}
}

func TestSQLiteInATemporaryFile(t *testing.T) { checkRun(t, "sqlite") }

func TestPostgres(t *testing.T) {
	checkRun(t, "postgres", "-dsn", testserver.Postgres(t).NewDatabase(t))
}

func TestMySQL(t *testing.T) {
	checkRun(t, "mysql", "-dsn", testserver.MySQL(t).NewDatabase(t))
}

// MariaDB is recognised by what it says of itself: its DSN looks like MySQL's.
func TestMariaDB(t *testing.T) {
	checkRun(t, "mariadb", "-dsn", testserver.MariaDB(t).NewDatabase(t))
}

func TestText(t *testing.T) {
	file := filepath.Join(t.TempDir(), "report.txt")
	out, errs, status, _ := loadgen(t, with("-o", file)...)
	if status != 0 || errs != "" || out != "" {
		t.Fatalf("status %d, standard output %q, standard error %q", status, out, errs)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"SQLite", "consumers      jobs/s", "Recommended for 1,000 jobs/s"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	left, _ := os.ReadDir(filepath.Dir(file))
	if len(left) != 1 {
		t.Errorf("left behind beside the report: %v", left)
	}
}

func TestFileOfOnesOwn(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "own.db")
	if _, errs, status, _ := loadgen(t, with("-dsn", file)...); status != 0 {
		t.Fatalf("status %d: %s", status, errs)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("a file that was not there before is: %v", left)
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, errs, status, _ := loadgen(t, with("-dsn", "sqlite://"+file)...); status != 0 {
		t.Fatalf("status %d: %s", status, errs)
	}
	if _, err := os.Stat(file); err != nil {
		t.Errorf("a file that was there before: %v", err)
	}
}

func TestInterrupted(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("on Windows a process cannot be sent an interrupt")
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "own.db")
	cmd, out, errs, _ := start(t, "-dsn", file, "-jobs", "500", "-batch", "5", "-consumers", "1,2", "-duration", "1h", "-format", "json")
	// It is measuring when it has made its tables and some time has passed.
	for range 600 {
		if info, err := os.Stat(file); err == nil && info.Size() > 0 {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	time.Sleep(2 * time.Second)
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { cmd.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("it goes on")
	}
	if status := cmd.ProcessState.ExitCode(); status != 0 || errs.Len() > 0 {
		t.Fatalf("status %d: %s", status, errs)
	}
	o := decode(t, out.String())
	if !o.Interrupted || len(o.Steps) != 1 || *o.RecommendedConsumers != 1 {
		t.Errorf("%s", out)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestKeepsOutOfTheJobsOfOthers(t *testing.T) {
	file := filepath.Join(t.TempDir(), "own.db")
	other, err := target.Parse(file)
	if err != nil {
		t.Fatal(err)
	}
	db, err := other.Open(1)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	q, err := other.Queue(db, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := q.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := q.Push(t.Context(), queue.NewJob{Queue: "precious", Kind: "k"}); err != nil {
		t.Fatal(err)
	}
	_, text, status, _ := loadgen(t, with("-dsn", file)...)
	if status != 2 || !strings.Contains(text, "-force") || strings.Count(text, "\n") != 1 {
		t.Errorf("status %d: %s", status, text)
	}
	if s, err := q.Stats(t.Context(), "precious"); err != nil || s.Ready != 1 {
		t.Errorf("the job is gone: %+v, %v", s, err)
	}
	if err := errors.Join(q.Close(), db.Close()); err != nil {
		t.Error(err)
	}
	if _, text, status, _ = loadgen(t, with("-dsn", file, "-force")...); status != 0 {
		t.Errorf("status %d: %s", status, text)
	}
}

func TestMistakes(t *testing.T) {
	const password = "s3cr3t+pass"
	dir := t.TempDir()
	text := filepath.Join(dir, "notes.txt")
	if err := os.WriteFile(text, []byte("not a database, but some notes"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, args := range map[string][]string{
		"no server":          {"-dsn", "postgres://me:" + password + "@127.0.0.1:1/db"},
		"no server, libpq":   {"-dsn", "host=127.0.0.1 port=1 user=me password='" + password + "'"},
		"no host":            {"-dsn", "postgres://me:" + password + "@no-such-host.invalid/db?connect_timeout=2"},
		"no server, MySQL":   {"-dsn", "mysql://me:" + password + "@127.0.0.1:1/db"},
		"no server, driver":  {"-dsn", "me:" + password + "@tcp(127.0.0.1:1)/db"},
		"no host, MariaDB":   {"-dsn", "mariadb://me:" + password + "@no-such-host.invalid/db?timeout=2s"},
		"no database, MySQL": {"-dsn", "mysql://me:" + password + "@127.0.0.1:1"},
		"not a URL":          {"-dsn", "postgres://me:" + password + "#x@127.0.0.1/db"},
		"bad percent":        {"-dsn", "postgres://me:" + password + "%zz@127.0.0.1/db"},
		"unknown scheme":     {"-dsn", "oracle://me:" + password + "@host/db"},
		"not key=value":      {"-dsn", "host=127.0.0.1 password=a " + password},
		"unknown key":        {"-dsn", "host=127.0.0.1 port=1 pasword=" + password},
		"a word":             {"-dsn", "nonsense"},
		"a directory":        {"-dsn", dir},
		"not a database":     {"-dsn", text},
		"no directory":       {"-dsn", filepath.Join(dir, "no", "x.db")},
		"memory":             {"-dsn", "sqlite::memory:"},
		"DSN without -dsn":   {"postgres://me:" + password + "@127.0.0.1:1/db"},
		"DSN as a flag":      {"-postgres://me:" + password + "@127.0.0.1:1/db"},
		"unknown flag":       {"-no-such-flag"},
		"not a number":       {"-jobs", "many"},
		"no consumers":       {"-consumers", ""},
		"bad consumers":      {"-consumers", "1,two"},
		"no batch":           {"-batch", "0"},
		"batch":              {"-batch", "1001"},
		"no jobs":            {"-jobs", "0"},
		"payload":            {"-payload", "-1"},
		"duration":           {"-duration", "0s"},
		"duration, a number": {"-duration", "3"},
		"format":             {"-format", "xml"},
		"target":             {"-target", "NaN"},
		"output":             {"-o", filepath.Join(dir, "no", "report")},
	} {
		t.Run(name, func(t *testing.T) {
			out, errs, status, tmp := loadgen(t, args...)
			if status != 2 {
				t.Errorf("status %d", status)
			}
			if out != "" || strings.Count(errs, "\n") != 1 || len(errs) > 500 || strings.Contains(errs, "goroutine") {
				t.Errorf("not a line of sensible length: %q %q", out, errs)
			}
			if strings.Contains(errs, password) || strings.Contains(errs, "s3cr3t") {
				t.Errorf("it shows the password: %s", errs)
			}
			if left, _ := os.ReadDir(tmp); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
			t.Log(strings.TrimSpace(errs))
		})
	}
}

// A server that refuses the password says so, and loadgen does not repeat it.
func TestWrongPassword(t *testing.T) {
	const user, password = "no_such_role", "s3cr3t"
	ofMySQL := func(t *testing.T, dsn string) string {
		cfg, err := mysql.ParseDSN(dsn)
		if err != nil {
			t.Fatal(err)
		}
		cfg.User, cfg.Passwd = user, password
		return cfg.FormatDSN()
	}
	for name, dsn := range map[string]func(*testing.T) string{
		"postgres": func(t *testing.T) string {
			u, err := url.Parse(testserver.Postgres(t).NewDatabase(t))
			if err != nil {
				t.Fatal(err)
			}
			u.User = url.UserPassword(user, password)
			return u.String()
		},
		"mysql":   func(t *testing.T) string { return ofMySQL(t, testserver.MySQL(t).NewDatabase(t)) },
		"mariadb": func(t *testing.T) string { return ofMySQL(t, testserver.MariaDB(t).NewDatabase(t)) },
	} {
		t.Run(name, func(t *testing.T) {
			_, errs, status, _ := loadgen(t, "-dsn", dsn(t))
			if status != 2 || strings.Count(errs, "\n") != 1 || strings.Contains(errs, password) ||
				!strings.Contains(errs, user) || !strings.Contains(errs, "check user and password") {
				t.Errorf("status %d: %s", status, errs)
			}
		})
	}
}

func TestHelp(t *testing.T) {
	out, errs, status, _ := loadgen(t, "-help")
	if status != 0 || errs != "" {
		t.Errorf("status %d: %s", status, errs)
	}
	for _, flag := range []string{"-dsn", "-consumers", "-batch", "-jobs", "-payload", "-duration", "-format", "-o", "-force"} {
		if !strings.Contains(out, "  "+flag+" ") && !strings.Contains(out, "  "+flag+"\n") {
			t.Errorf("%s is not explained in\n%s", flag, out)
		}
	}
}
