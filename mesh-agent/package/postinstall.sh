#!/bin/sh
# dpkg calls it with `configure` and the version that was configured last, if any; rpm with the
# number of versions that are installed now.
set -e

case "$1" in
configure) previous=$2 ;;
1) previous= ;;
[2-9]*) previous=any ;;
*) exit 0 ;;
esac

systemd-sysusers mesh-machine.conf
if [ -z "$previous" ]; then
    # The distribution decides whether a new service is enabled: Debian's are, Fedora's are not.
    systemctl --quiet preset mesh-agent.service
fi
[ -d /run/systemd/system ] || exit 0
systemctl daemon-reload
# Redirected connections outlive a restart of the agent. Proxies stay on their version until they
# are restarted, which would end the connections of their services.
if systemctl --quiet is-enabled mesh-agent.service; then
    systemctl restart mesh-agent.service
fi
