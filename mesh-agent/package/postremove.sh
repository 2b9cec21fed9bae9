#!/bin/sh
# dpkg calls it with `remove`, and with `purge` when settings are removed, too; rpm with 0.
set -e

case "$1" in
remove | purge | 0) ;;
*) exit 0 ;;
esac

if [ "$1" = purge ]; then
    wants=/etc/systemd/system/basic.target.wants
    rm -f $wants/mesh-agent.service
    rmdir --ignore-fail-on-non-empty $wants 2>/dev/null || true
    rm -rf /etc/mesh /var/lib/mesh
fi
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
fi
