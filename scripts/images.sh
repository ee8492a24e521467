#!/bin/sh
# Builds images of the servers that the tests need from Debian's packages, for machines that can
# pull none.
#
#   scripts/images.sh redis valkey     these
#   scripts/images.sh                  all that the tests need
#
# They are built side by side. What is there already is not built again; two runs at once wait for
# each other, image by image. Needs a container engine, and root for debootstrap (which is installed
# if it is missing).
set -eu

say() { echo "images: $*" >&2; }
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi; }
present() { docker image inspect "$1" >/dev/null 2>&1; }

# This machine's apt knows how to reach Debian here: which mirror, through which proxy, whether
# dates are to be believed.
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

debootstrap_there() {
  command -v debootstrap >/dev/null || [ -x /usr/sbin/debootstrap ] && return
  say "installing debootstrap"
  as_root apt-get install -y --no-install-recommends debootstrap >&2
}

# base SUITE: Debian and nothing more.
base() {
  tag=dlock-test/base:$1
  present "$tag" && return
  alone debootstrap debootstrap_there
  say "building $tag"
  dir=$(mktemp -d)
  trap 'as_root rm -rf --one-file-system "$dir" "$dir.log"' EXIT # debootstrap may have left /proc mounted in it
  trap 'exit 1' INT TERM HUP
  through
  # Without a mirror (an empty word is dropped) debootstrap takes Debian's own.
  # shellcheck disable=SC2046
  as_root env PATH="$PATH:/usr/sbin:/sbin" http_proxy="${http_proxy:-}" \
    debootstrap --variant=minbase "$1" "$dir" $(mirror) >"$dir.log" 2>&1 || { tail -n 20 "$dir.log" >&2; exit 1; }
  carry | as_root tee "$dir/etc/apt/apt.conf.d/99carried" >/dev/null
  as_root rm -rf "$dir"/var/cache/apt/archives/*.deb
  as_root tar -C "$dir" -c . | docker import - "$tag" >/dev/null
  as_root rm -rf "$dir" "$dir.log"
  trap - EXIT INT TERM HUP
}

# tag TAG: builds an image from the Dockerfile on its input.
tag() {
  say "building $1"
  if ! log=$(docker build --network host --build-arg http_proxy --build-arg https_proxy --build-arg no_proxy -t "$1" - 2>&1); then
    echo "$log" | tail -n 20 >&2
    exit 1
  fi
}

# image TAG SUITE PACKAGES: no entry point; the tests say which program runs.
image() {
  present "$1" && return
  alone "base-$2" base "$2"
  tag "$1" <<EOF
FROM dlock-test/base:$2
ENV DEBIAN_FRONTEND=noninteractive
RUN apt-get update && apt-get install -y --no-install-recommends $3 && rm -rf /var/lib/apt/lists/*
EOF
}

# ready TAG PROGRAM ARGUMENTS: TAG-ready has, in /ready/db, the data that the program fills a folder
# with before the first start.
ready() {
  from=$1
  shift
  present "$from-ready" && return
  tag "$from-ready" <<EOF
FROM $from
RUN mkdir /ready && $* --datadir=/ready/db
EOF
}

# alone NAME COMMAND: runs it while no other run does anything of that name.
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
  mysql)
    image dlock-test/mysql:9 sid mysql-server-core
    ready dlock-test/mysql:9 mysqld --no-defaults --user=root --secure-file-priv=NULL --initialize-insecure
    ;;
  mariadb)
    image dlock-test/mariadb:11 trixie mariadb-server
    ready dlock-test/mariadb:11 mariadb-install-db --no-defaults --user=root --auth-root-authentication-method=normal --skip-test-db
    ;;
  zookeeper) image dlock-test/zookeeper:3.9 trixie "zookeeper default-jre-headless" ;;
  curator) image dlock-test/curator:5 trixie "libcurator-recipes-java zookeeper default-jdk-headless" ;;
  etcd) image dlock-test/etcd:3.5 trixie etcd-server ;;
  postgres) image dlock-test/postgres:17 trixie postgresql-17 ;;
  chromium) image dlock-test/chromium:1 trixie chromium-headless-shell ;;
  *) say "no image is called $1" && exit 2 ;;
  esac
}

[ $# -gt 0 ] || set -- redis valkey mysql mariadb zookeeper etcd postgres chromium
pids=
for name; do
  alone "$name" build "$name" &
  pids="$pids $!"
done
code=0
for pid in $pids; do wait "$pid" || code=1; done
exit $code
