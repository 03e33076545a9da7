package testserver

import (
	"net/url"
	"os"
	"path/filepath"
	"testing"
)

var testedPostgres = &tested{
	engine:  postgres,
	shared:  Postgres,
	private: PrivatePostgres,
	driver:  "postgres",
	version: "SHOW server_version",
	settings: map[string]string{
		"SHOW max_connections":    "300",
		"SHOW fsync":              "on",
		"SHOW synchronous_commit": "on",
		"SHOW full_page_writes":   "on",
	},
	databases: "SELECT count(*) FROM pg_database WHERE datname = '%s'",
	parse: func(dsn string) (addr, database string, err error) {
		u, err := url.Parse(dsn)
		if err != nil {
			return "", "", err
		}
		return u.Host, u.Path[1:], nil
	},
	newUser:  "CREATE ROLE %s LOGIN PASSWORD '%s'",
	dropUser: "DROP ROLE %s",
	as: func(dsn, user, password string) string {
		u, err := url.Parse(dsn)
		if err != nil {
			return ""
		}
		u.User = url.UserPassword(user, password)
		return u.String()
	},
	refusal: "permission denied to create database",
	badDSNs: []string{
		"host=127.0.0.1 password=hunter2",
		"postgres://u:hunter2@127.0.0.1:port/postgres",
		"postgres://u:hunter2@127.0.0.1:1/postgres?sslmode=disable",
		"mysql://u:hunter2@127.0.0.1/",
	},
	recovery: "was not properly shut down",
}

// script installs a program that prints one line, whatever it is asked.
func script(t *testing.T, path, line string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("#!/bin/sh\necho '"+line+"'\n"), 0o755); err != nil {
		t.Fatal(err)
	}
}

func link(t *testing.T, to, path string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(to, path); err != nil {
		t.Fatal(err)
	}
}

func TestFindPostgres(t *testing.T) {
	if !posix {
		t.Skip("the fakes are shell scripts")
	}
	root := t.TempDir()
	install := func(dir, version string, programs ...string) {
		for _, p := range programs {
			script(t, filepath.Join(root, dir, "bin", p), "postgres (PostgreSQL) "+version)
		}
	}
	places := []string{filepath.Join(root, "lib", "*", "bin")}
	t.Setenv("PATH", filepath.Join(root, "links"))
	if got := findPostgres(t.Context(), places); got != "" {
		t.Errorf("found %s in nothing", got)
	}
	install("lib/9", "9.6.24", "postgres", "initdb")
	install("lib/15", "15.14 (Debian 15.14-0+deb12u1)", "postgres", "initdb")
	install("lib/16", "16.1", "postgres") // its initdb is missing
	install("lib/17", "", "postgres", "initdb")
	want := filepath.Join(root, "lib/15/bin")
	if got := findPostgres(t.Context(), places); got != want {
		t.Errorf("found %s, want %s", got, want)
	}
	install("own", "18beta1", "postgres", "initdb")
	link(t, filepath.Join(root, "own/bin/postgres"), filepath.Join(root, "links/postgres"))
	want = filepath.Join(root, "own/bin")
	if got := findPostgres(t.Context(), places); got != want {
		t.Errorf("found %s, want %s", got, want)
	}
}
