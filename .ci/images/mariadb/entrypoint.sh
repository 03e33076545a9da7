#!/bin/sh
# Starts MariaDB with the part of the official image's contract that tests use: MARIADB_ROOT_PASSWORD,
# MARIADB_ALLOW_EMPTY_ROOT_PASSWORD and MARIADB_DATABASE in the environment; root may come from any host;
# arguments that start with a dash go to mariadbd; any other command is run as it is.
set -eu

case "${1-}" in
'' | -*) set -- mariadbd "$@" ;;
esac
[ "$1" = mariadbd ] || exec "$@"

data=/var/lib/mysql

# MariaDB refuses to run as root: prepare what only root can, and start over as its own user.
if [ "$(id -u)" = 0 ]; then
	install -d -o mysql -g mysql -m 750 "$data"
	install -d -o mysql -g mysql -m 755 /run/mysqld
	exec setpriv --reuid=mysql --regid=mysql --init-groups "$0" "$@"
fi

# literal prints $1 as a string of SQL.
literal() {
	printf "'%s'" "$(printf '%s' "$1" | sed "s/[\\\\']/\\\\&/g")"
}

# initialise makes the system tables, the user root and the first database. Where the official image runs
# a first server for this, one that listens on its socket alone, here the run that makes the system tables
# executes the statements at its end.
initialise() {
	if [ -z "${MARIADB_ROOT_PASSWORD-}${MARIADB_ALLOW_EMPTY_ROOT_PASSWORD-}" ]; then
		echo "entrypoint: set MARIADB_ROOT_PASSWORD, or MARIADB_ALLOW_EMPTY_ROOT_PASSWORD=yes" >&2
		exit 1
	fi
	password=$(literal "${MARIADB_ROOT_PASSWORD-}")
	statements=$(mktemp) # for its owner's eyes alone
	# Privileges are not in force in that run until they are flushed. Root without a password, which may
	# come from this host's names and addresses, goes.
	cat >"$statements" <<-END
		DELETE FROM mysql.global_priv WHERE user = 'root' AND host <> 'localhost';
		FLUSH PRIVILEGES;
		ALTER USER root@localhost IDENTIFIED BY $password;
		CREATE USER root@'%' IDENTIFIED BY $password;
		GRANT ALL ON *.* TO root@'%' WITH GRANT OPTION;
		${MARIADB_DATABASE:+CREATE DATABASE \`$MARIADB_DATABASE\`;}
	END
	mariadb-install-db --datadir="$data" --auth-root-authentication-method=normal --skip-test-db \
		--extra-file="$statements"
	rm "$statements"
}

[ -d "$data/mysql" ] || initialise
# The server asks no name server who its clients are, as the official image's does not.
shift
exec mariadbd --datadir="$data" --socket=/run/mysqld/mysqld.sock --skip-name-resolve "$@"
