#!/bin/sh
# Starts PostgreSQL with the part of the official image's contract that tests use: POSTGRES_USER,
# POSTGRES_PASSWORD, POSTGRES_DB, POSTGRES_HOST_AUTH_METHOD, POSTGRES_INITDB_ARGS and PGDATA in the
# environment; arguments that start with a dash go to postgres; any other command is run as it is.
set -eu

case "${1-}" in
'' | -*) set -- postgres "$@" ;;
esac
[ "$1" = postgres ] || exec "$@"

# PostgreSQL refuses to run as root: prepare what only root can, and start over as its own user.
if [ "$(id -u)" = 0 ]; then
	install -d -o postgres -g postgres -m 700 "$PGDATA"
	install -d -o postgres -g postgres -m 2775 /run/postgresql
	exec setpriv --reuid=postgres --regid=postgres --init-groups "$0" "$@"
fi

# initialise makes the cluster, its superuser and its first database.
initialise() {
	user=${POSTGRES_USER:-postgres}
	db=${POSTGRES_DB:-$user}
	auth=${POSTGRES_HOST_AUTH_METHOD:-scram-sha-256}
	if [ -z "${POSTGRES_PASSWORD-}" ] && [ "$auth" != trust ]; then
		echo "entrypoint: set POSTGRES_PASSWORD, the superuser's password, or POSTGRES_HOST_AUTH_METHOD=trust" >&2
		exit 1
	fi

	set -- --username="$user" --encoding=UTF8 --locale=C.UTF-8
	[ -z "${POSTGRES_PASSWORD-}" ] || set -- "$@" --pwfile=/dev/stdin
	# POSTGRES_INITDB_ARGS is a list of words.
	# shellcheck disable=SC2086
	printf '%s\n' "${POSTGRES_PASSWORD-}" | initdb "$@" ${POSTGRES_INITDB_ARGS-}

	echo "listen_addresses = '*'" >>"$PGDATA/postgresql.conf"
	echo "host all all all $auth" >>"$PGDATA/pg_hba.conf"

	# Like the official image's, this first server listens on its socket alone, and its "ready to accept
	# connections" is the first of two.
	pg_ctl --wait --options="-c listen_addresses=''" start
	if [ "$db" != postgres ]; then
		echo "CREATE DATABASE :\"db\"" |
			psql --no-psqlrc --no-password --set=ON_ERROR_STOP=1 --set=db="$db" --username="$user" --dbname=postgres
	fi
	pg_ctl --wait --mode=fast stop
}

[ -s "$PGDATA/PG_VERSION" ] || initialise
exec "$@"
