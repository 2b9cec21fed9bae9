#!/bin/sh
# dpkg calls it with `remove` before a removal, rpm with the number of versions that stay, 0.
set -e

case "$1" in
remove | 0) ;;
*) exit 0 ;;
esac

if [ -d /run/systemd/system ]; then
    systemctl stop mesh-agent.service
fi
# Before the proxies end: from here on the services of the machine connect directly. If it fails, the
# package stays, since services that are redirected to proxies that are gone are unreachable.
/usr/bin/mesh-agent uninstall
for unit in /etc/systemd/system/*.wants/mesh-proxy@*.service; do
    [ -L "$unit" ] || continue
    systemctl --quiet disable "${unit##*/}"
done
if [ -d /run/systemd/system ]; then
    systemctl stop 'mesh-proxy@*.service'
fi
# dpkg keeps the administrator's decision until the package is purged.
if [ "$1" = 0 ]; then
    systemctl --quiet disable mesh-agent.service
fi
