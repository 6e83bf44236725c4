#!/bin/sh
# Provides the browser for the tests: as root, installs Debian's package if there is none.
set -eu
if command -v "${CHROMIUM_BIN:-chromium}" >/dev/null; then
  exit 0
fi
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "the tests need Chromium: install Debian's package chromium, or name the program in CHROMIUM_BIN" >&2
  exit 1
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -q
apt-get install -y -q --no-install-recommends chromium
