#!/bin/sh
# Builds images of the servers that the tests need from Debian's packages, for machines that can
# pull none.
#
#   scripts/images.sh redis valkey     these
#   scripts/images.sh                  all that the tests need
#
# They are built side by side. An image that exists is not built again; two runs at once wait for
# each other, image by image. The script needs a container engine, and root for mmdebstrap (which it
# installs if it is missing).
set -eu

say() { echo "images: $*" >&2; }
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi; }
present() { docker image inspect "$1" >/dev/null 2>&1; }

# The configuration of this machine's apt says how to reach Debian here: by which mirror and proxy,
# and whether dates can be trusted.
carry() {
  command -v apt-config >/dev/null || return 0
  apt-config dump Acquire | grep -Ei '^Acquire::(Check-|Max-ValidTime|(http|https|ftp)::(Proxy|Timeout|No-Cache))' || true
}
mirror() {
  command -v apt-get >/dev/null || return 0
  apt-get indextargets --format '$(LABEL) $(CREATED_BY) $(SITE)' 2>/dev/null |
    sed -n 's/^Debian Packages \(https\{0,1\}:.*\)/\1/p' | head -n 1
}
through() {
  command -v apt-config >/dev/null || return 0
  [ -n "${http_proxy:-}" ] || eval "$(apt-config shell http_proxy Acquire::http::Proxy)"
  [ -z "${http_proxy:-}" ] || export http_proxy
}

mmdebstrap_there() {
  command -v mmdebstrap >/dev/null && return
  say "installing mmdebstrap"
  as_root apt-get install -y --no-install-recommends mmdebstrap debian-archive-keyring >&2
}

# image TAG SUITE PACKAGES [COMMAND]: Debian with the packages and nothing more, after a shell in it
# has run the command. It has no entry point; the tests say which program runs.
image() {
  present "$1" && return
  alone mmdebstrap mmdebstrap_there
  say "building $1"
  dir=$(mktemp -d)
  trap 'rm -rf "$dir"' EXIT
  trap 'exit 1' INT TERM HUP
  through
  carry >"$dir/apt"
  # Without a mirror (an empty word is dropped) mmdebstrap uses Debian's own. Each image is one
  # layer that is written outside of the engine: with its builds all took 361 s instead of 216.
  # shellcheck disable=SC2046
  as_root env PATH="$PATH:/usr/sbin:/sbin" http_proxy="${http_proxy:-}" \
    mmdebstrap --mode=root --variant=minbase --include="$3" --aptopt="$dir/apt" --dpkgopt=force-unsafe-io \
    --customize-hook="chroot \"\$1\" sh -ec '${4:-:}'" "$2" "$dir/image.tar" $(mirror) >"$dir/log" 2>&1 ||
    { tail -n 20 "$dir/log" >&2; exit 1; }
  docker import "$dir/image.tar" "$1" >/dev/null
  rm -rf "$dir"
  trap - EXIT INT TERM HUP
}

# alone NAME COMMAND: runs the command while no other run has that name.
alone() (
  exec 9>"${TMPDIR:-/tmp}/dlock-images-$1.lock"
  flock 9
  shift
  "$@"
)

build() {
  case $1 in
  redis) image dlock-test/redis:8 trixie redis-server ;;
  valkey) image dlock-test/valkey:8 trixie valkey-server ;;
  redispy) image dlock-test/redispy:6 trixie python3-redis ;;
  # /ready/db has the data folder as it is before the first start
  mysql)
    image dlock-test/mysql:9-ready sid mysql-server-core "mkdir /ready
      mysqld --no-defaults --user=root --secure-file-priv=NULL --initialize-insecure --datadir=/ready/db"
    ;;
  mariadb)
    image dlock-test/mariadb:11-ready trixie mariadb-server "mkdir /ready
      mariadb-install-db --no-defaults --user=root --auth-root-authentication-method=normal --skip-test-db --force --datadir=/ready/db"
    ;;
  zookeeper) image dlock-test/zookeeper:3.9 trixie libzookeeper-java,default-jre-headless ;;
  curator) image dlock-test/curator:5 trixie libcurator-recipes-java,zookeeper,default-jdk-headless ;;
  kazoo) image dlock-test/kazoo:2 trixie python3-kazoo ;;
  etcd) image dlock-test/etcd:3.5-ctl trixie etcd-server,etcd-client ;;
  postgres) image dlock-test/postgres:17 trixie postgresql-17 ;;
  pgbouncer) image dlock-test/pgbouncer:1 trixie pgbouncer ;;
  chromium) image dlock-test/chromium:1 trixie chromium-headless-shell ;;
  *) say "no image is called $1" && exit 2 ;;
  esac
}

[ $# -gt 0 ] || set -- redis valkey redispy mysql mariadb zookeeper curator kazoo etcd postgres pgbouncer chromium
pids=
for name; do
  alone "$name" build "$name" &
  pids="$pids $!"
done
code=0
for pid in $pids; do wait "$pid" || code=1; done
exit $code
