#!/usr/bin/env bash
# Measures a release build beside plain tools and prints the table of docs/performance.md.
#
#   benches/run.sh                          everything, a few minutes
#   benches/run.sh --only latency,stdout    some of: idle latency stdout replay checkpoint
#   benches/run.sh --percent 5              a short run; the bounds are meant for 100
#
# It starts its own runner in a temporary folder, and an sshd on a loopback port with throw-away keys.
set -euo pipefail
cd "$(dirname "$0")/.."

work=$(mktemp -d)
sshd_pid=
policy=
cleanup() {
    [ -z "$sshd_pid" ] || kill "$sshd_pid" 2>/dev/null || true
    [ -z "$policy" ] || rm -f "$policy"
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM HUP

install() { DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@" >&2; }

missing=()
[ -x /usr/sbin/sshd ] || missing+=(openssh-server)
command -v ssh >/dev/null || missing+=(openssh-client)
command -v zstd >/dev/null || missing+=(zstd)
if [ ${#missing[@]} -gt 0 ]; then
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        echo "please install: ${missing[*]}" >&2
        exit 2
    fi
    echo "installing ${missing[*]}" >&2
    # The package would open port 22; only the binary is wanted here.
    if [ ! -e /usr/sbin/policy-rc.d ]; then
        policy=/usr/sbin/policy-rc.d
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod +x "$policy"
    fi
    install "${missing[@]}" || { apt-get update -q >&2 && install "${missing[@]}"; }
    if [[ " ${missing[*]} " == *" openssh-server "* ]] && command -v systemctl >/dev/null; then
        systemctl disable --quiet ssh >&2 || true
    fi
fi

nice -n 10 cargo build --release --locked --quiet --bin fountain --example bench
target=${CARGO_TARGET_DIR:-target}/release

# Sets ssh_line to a command line that reaches this host by ssh; leaves it empty when no sshd will run here.
start_sshd() {
    # As root sshd wants the folder of its separation user.
    if [ "$(id -u)" = 0 ]; then mkdir -p /run/sshd; fi
    ssh-keygen -q -t ed25519 -N '' -f "$work/host"
    ssh-keygen -q -t ed25519 -N '' -f "$work/user"
    cp "$work/user.pub" "$work/authorized"
    local port try
    for port in 42222 42223 42224 52222; do
        cat >"$work/sshd_config" <<-CONFIG
			ListenAddress 127.0.0.1:$port
			HostKey $work/host
			PidFile none
			AuthorizedKeysFile $work/authorized
			StrictModes no
			UsePAM no
			PermitRootLogin prohibit-password
			PasswordAuthentication no
			Compression no
			CONFIG
        /usr/sbin/sshd -D -f "$work/sshd_config" -E "$work/sshd.log" &
        sshd_pid=$!
        ssh_line="ssh -q -T -p $port -i $work/user -o IdentitiesOnly=yes -o BatchMode=yes -o StrictHostKeyChecking=no"
        ssh_line+=" -o UserKnownHostsFile=/dev/null -o Compression=no $(id -un)@127.0.0.1"
        for try in 1 2 3 4 5 6 7 8 9 10; do
            if $ssh_line true 2>/dev/null; then return 0; fi
            kill -0 "$sshd_pid" 2>/dev/null || break
            sleep 0.2
        done
        kill "$sshd_pid" 2>/dev/null || true
        sshd_pid=
        ssh_line=
    done
    echo "no sshd will run here: $(tail -n 1 "$work/sshd.log")" >&2
}
ssh_line=
start_sshd

status=0
"$target/examples/bench" run --binary "$target/fountain" ${ssh_line:+--ssh "$ssh_line"} "$@" || status=$?
exit "$status"
