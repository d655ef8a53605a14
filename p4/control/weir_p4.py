#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Turns leases into table entries and multicast groups of the switch programs in p4/, and takes them out again.

    weir_p4.py hosts  --hosts hosts.json
    weir_p4.py add    --hosts hosts.json --request request.json --grant grant.json
    weir_p4.py remove --job train-7
    weir_p4.py loss   --port 3 --share 0.01 [--replies]
    weir_p4.py show   [--job train-7]
    weir_p4.py reinstall
    weir_p4.py serve  --hosts hosts.json --address 10.0.0.9:48864 [--http 127.0.0.1:9466]

request.json is the body of POST /v1/leases, grant.json its answer, in which `address` is the switch's own;
hosts.json says where hosts are: {"10.0.0.1": {"port": 1, "mac": "02:00:00:00:00:01"}, ...}. `serve` answers such
requests itself, for weir-controller's --aggregator (weir_p4_server.py).

Entries go to simple_switch_CLI (--cli: the command to run). What was installed is kept in --state, so that it can be
removed; one process at a time may use that file. A switch that has lost its entries, because it was restarted, gets
all of them again before anything else. Status 1, and one line that says why, when something is wrong; what a failed
`add` had installed is removed again.
"""
import argparse
import fcntl
import json
import sys
import time

import weir_p4_server
from weir_p4_control import CommandLine, Control, ControlError, Lease, load


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=("hosts", "add", "remove", "loss", "show", "reinstall", "serve"))
    parser.add_argument("--state", default="weir-p4.json", help="what is installed (default: %(default)s)")
    parser.add_argument("--cli", default="simple_switch_CLI", help="command that reads lines")
    for name in ("hosts", "request", "grant"):
        parser.add_argument(f"--{name}", help="a JSON file")
    parser.add_argument("--job")
    parser.add_argument("--port", type=int, help="of the switch")
    parser.add_argument("--share", type=float, help="of packets to drop, 0 .. 1")
    parser.add_argument("--replies", action="store_true", help="drop replies to the port instead")
    weir_p4_server.add_arguments(parser)
    return parser.parse_args()


def lock(path):
    """The lock on a state file, as long as the result is open."""
    file = open(path + ".lock", "w", encoding="utf-8")
    for _ in range(50):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        except BlockingIOError:
            time.sleep(0.1)
    file.close()
    raise ControlError(f"{path}: another process uses it; does `serve` run?")


def perform(control, given):
    if given.command != "reinstall" and (done := control.recover()):
        print(f"weir_p4: {done}", file=sys.stderr)
    if given.command == "hosts":
        control.add_hosts(load(given.hosts))
    elif given.command == "add":
        lease = Lease(load(given.request), load(given.grant), load(given.hosts))
        control.add(lease)
        if lease.warning():
            print(f"weir_p4: {lease.warning()}", file=sys.stderr)
    elif given.command == "remove":
        control.remove(given.job)
    elif given.command == "loss":
        control.inject_loss(given.port, given.share, given.replies)
    elif given.command == "reinstall":
        control.reinstall()
    elif given.command == "serve":
        weir_p4_server.serve(control, given)
    else:
        print(json.dumps(control.statistics(given.job)))


def main():
    given = arguments()
    try:
        with lock(given.state):
            perform(Control(CommandLine(given.cli), given.state), given)
    except (ControlError, OSError, TypeError, ValueError) as error:
        print(f"weir_p4: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
