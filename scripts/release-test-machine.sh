#!/bin/sh
# What scripts/release-test.sh runs inside the fresh Debian, with systemd as its first process: /packages/test.sh
#
# At the first boot it installs an older package, uses it, replaces all its keys and certificates while it runs, gives it
# wrong settings, restarts it and upgrades it; at the second it finds the node
# running by itself, with its data, and removes and purges the package. /packages/PART.status is 0 when all went well.
part=$(cat /packages/part)
exec > "/packages/$part.log" 2>&1
set -eux
ended() {
    status=$?
    [ "$status" = 0 ] || systemctl status --no-pager --lines 30 concord.service || true
    echo "$status" > "/packages/$part.status"
    systemctl poweroff
}
trap ended EXIT

export CONCORD_URL=https://127.0.0.1:8100 CONCORD_API_KEY_FILE=/etc/concord/root.key CONCORD_CA_FILE=/etc/concord/ca.pem
# Waits until a command succeeds: a node takes a moment to listen, and to elect itself.
until_done() {
    tries=0
    until "$@"; do
        tries=$((tries + 1))
        [ "$tries" -lt 150 ]
        sleep 0.2
    done
}
main_pid() { systemctl show --property MainPID --value concord; }
# Whether the node ended because of a setting, and systemd leaves it at that.
is_refused() {
    [ "$(systemctl show --property ActiveState --value concord)" = failed ] \
        && [ "$(systemctl show --property ExecMainStatus --value concord)" = 2 ] \
        && [ "$(systemctl show --property NRestarts --value concord)" = 0 ]
}
has_logged() { journalctl --unit concord --no-pager | grep "$1"; }
plan() { concord config get limits acme -o 'jsonpath={.data.plan}' --timeout-s 60; }

first() {
    dpkg --install /packages/old.deb
    [ "$(systemctl is-enabled concord)" = enabled ]
    id concord
    # Without its secrets the node is not started, and nothing has failed.
    [ "$(systemctl is-active concord)" = inactive ]
    [ "$(stat --format '%U:%G %a' /var/lib/concord)" = 'concord:concord 700' ]

    systemd-analyze verify --man=no concord.service 2> /root/verify.log
    if grep concord.service /root/verify.log; then exit 1; fi
    [ "$(stat --format '%U:%G %a' /etc/concord)" = 'root:concord 2755' ]
    authority /root/authority
    (umask 077 && head -c 24 /dev/urandom | base64 > /root/root.key)
    install -m 0640 /root/root.key /etc/concord/root.key
    install -m 0644 /root/authority/ca.pem /etc/concord/ca.pem
    install_certificate /root/authority
    # With the modes and owners of another host: the node says what is wrong, once, and systemd puts it right.
    chmod 0600 /etc/concord/root.key /etc/concord/node.key
    chgrp root /etc/concord/root.key /etc/concord/node.key
    systemctl start concord
    until_done is_refused
    has_logged 'root.key: Permission denied'
    systemd-tmpfiles --create concord.conf
    [ "$(stat --format '%U:%G %a' /etc/concord/node.key)" = 'root:concord 640' ]
    systemctl start concord
    until_done concord init --member 1=127.0.0.1:8100@127.0.0.1:8200
    echo '{"properties": {"plan": {"enum": ["free", "pro"]}}}' > /root/schema.json
    concord definition create limits --schema /root/schema.json
    concord config create limits acme --data '{"plan": "pro"}'

    # It runs under its account, without capabilities, and its secrets are in no environment.
    pid=$(main_pid)
    [ "$(stat --format %U "/proc/$pid")" = concord ] || grep "^Uid:[[:space:]]*$(id -u concord)" "/proc/$pid/status"
    grep '^CapEff:[[:space:]]*0000000000000000$' "/proc/$pid/status"
    grep '^NoNewPrivs:[[:space:]]*1$' "/proc/$pid/status"
    if grep -F "$(cat /etc/concord/root.key)" "/proc/$pid/environ" "/proc/$pid/cmdline"; then exit 1; fi

    replaced
    # A wrong setting is not tried again and again.
    echo 'CONCORD_NODE_ID=none' >> /etc/concord/concord.env
    systemctl restart concord
    until_done is_refused
    sed -i '/^CONCORD_NODE_ID=none$/d' /etc/concord/concord.env
    systemctl start concord
    until_done plan

    systemctl stop concord
    [ "$(systemctl show --property Result --value concord)" = success ]
    systemctl start concord
    until_done plan
    [ "$(plan)" = pro ] || [ "$(plan)" = '"pro"' ]

    # An upgrade keeps what the operator wrote, keeps the data, and restarts the node.
    echo 'CONCORD_WATCHES=500' >> /etc/concord/concord.env
    echo '# a certificate that was lost' >> /etc/concord/revoked
    before=$(systemctl show --property MainPID --value concord)
    dpkg --install /packages/new.deb
    [ "$(dpkg-query --show --showformat '${Version}' concord)" != 0.0.9 ]
    grep '^CONCORD_WATCHES=500$' /etc/concord/concord.env
    [ "$(systemctl is-active concord)" = active ]
    [ "$(systemctl show --property MainPID --value concord)" != "$before" ]
    until_done plan
    concord config patch limits acme --data '{"plan": "free"}'
    man_page=/usr/share/man/man1/concord-serve.1.gz
    # The images of containers leave manual pages out.
    [ -s "$man_page" ] || grep -r 'path-exclude.*man' /etc/dpkg/dpkg.cfg.d
}

# A CA, and the certificate of this node.
authority() {
    concord cert ca --cluster test.example --out "$1"
    concord cert node 1 --ca "$1" --out "$1" --host 127.0.0.1
}
install_certificate() {
    install -m 0640 "$1/node-1.key" /etc/concord/node.key
    install -m 0644 "$1/node-1.pem" /etc/concord/node.pem
}

# The root key, the CA and the certificate are replaced as the documents say, and a certificate is revoked: all that the
# running node uses without a restart.
replaced() {
    before=$(main_pid)
    (umask 077 && head -c 24 /dev/urandom | base64 > /root/new-root.key)
    install -m 0640 /root/new-root.key /etc/concord/root.key
    # Not by trying: after ten wrong credentials the node would reject others from this address unchecked.
    until_done has_logged 'the root keys have changed'
    concord whoami --api-key-file /root/new-root.key
    if concord whoami --api-key-file /root/root.key; then exit 1; fi

    authority /root/new-authority
    cat /root/authority/ca.pem /root/new-authority/ca.pem > /etc/concord/ca.pem
    install_certificate /root/new-authority
    export CONCORD_CA_FILE=/root/new-authority/ca.pem
    until_done plan
    export CONCORD_CA_FILE=/etc/concord/ca.pem
    install -m 0644 /root/new-authority/ca.pem /etc/concord/ca.pem
    until_done plan
    if concord config get limits acme --cacert /root/authority/ca.pem --timeout-s 2; then exit 1; fi

    printf '%064d # lost\n' 1 >> /etc/concord/revoked
    until_done has_logged 'of the 1 revoked certificates'
    [ "$(main_pid)" = "$before" ]
}

second() {
    # The boot has started it.
    [ "$(systemctl is-active concord)" = active ]
    until_done plan
    plan | grep free
    # An upgrade of a node that the operator stopped does not start it.
    systemctl stop concord
    dpkg --install /packages/new.deb
    [ "$(systemctl is-active concord)" = inactive ]
    systemctl start concord
    until_done plan
    # A list of revoked certificates is the operator's, too.
    grep '^# a certificate that was lost$' /etc/concord/revoked
    # Removed, not purged: the data stay, and a new installation finds them.
    dpkg --remove concord
    [ "$(systemctl is-active concord)" = inactive ]
    [ -e /var/lib/concord/identity.json ]
    [ -e /etc/concord/concord.env ]
    dpkg --install /packages/new.deb
    systemctl start concord
    until_done plan
    plan | grep free
    dpkg --purge concord
    if getent passwd concord || getent group concord; then exit 1; fi
    if pgrep_concord; then exit 1; fi
    left=$(find / -xdev \( -path /packages -o -path /proc -o -path /sys -o -path /root -o -path /var/log \) -prune \
        -o -name '*concord*' -print)
    [ -z "$left" ]
    if dpkg-query --show concord; then exit 1; fi
}
pgrep_concord() { grep -l '^concord$' /proc/[0-9]*/comm 2> /dev/null; }

"$part"
