# SPDX-License-Identifier: Apache-2.0
"""`python3 -m weir check`: whether this machine is ready for Weir, one line per finding.

With --peers, on every host of a job at the same time: whether the hosts reach each other, too.
`python3 -m weir run` runs a training command with an agent and a controller of its own (weir/run.py).
"""
import argparse
import contextlib
import ipaddress
import json
import os
import pathlib
import socket
import sys
import time

from weir import interfaces
from weir import probe

AGENT_TIMEOUT_S = 2.0
CONNECT_TIMEOUT_S = 10.0
PEERS_PORT = 29600
PEERS_WAIT_S = 20.0
MTU_BYTES_USUAL = 1500
SOCKET_PATH_MAX = 107  # of sockaddr_un
NCCL_PLUGIN = "libnccl-weir.so"
_PEERS_TOKEN = "weir check"


def check_library():
    """Checks that the library can be found and loaded, and returns its capabilities."""
    from weir import _lib
    path = _lib.library_path()
    abilities = _lib.capabilities()
    codecs = ", ".join(c["name"] for c in abilities.get("codecs", []))
    collectives = ", ".join(c["name"] for c in abilities.get("collectives", []))
    return (f"{path}, version {_lib.version()}; codecs: {codecs}; collectives: {collectives}")


class Wrong(RuntimeError):
    """A setting that keeps training from starting, whatever it sets."""


def check_settings():
    """Checks the variables that weir.attach reads, by the same means. Returns the names of those that are set."""
    import weir
    from weir import addresses
    from weir.environment import read
    read("WEIR_COMPARE_PARAMETERS", bool)
    read("WEIR_FRAMEWORK_DENSE", bool)
    addresses.alone()
    job = read("WEIR_JOB") or read("TORCHELASTIC_RUN_ID") or "training"
    plan_file, world = read("WEIR_PLAN_FILE"), max(2, read("WORLD_SIZE", int, 2))
    if plan_file and _is_for_a_certain_world(plan_file):
        plan_file = None  # which may be another one
    weir.Session(job, 0, world, plan_file=plan_file, operation_timeout_s=read("WEIR_TIMEOUT_S", float, 0.0),
                 encode_workers=read("WEIR_ENCODE_WORKERS", int, 0),
                 compare_every_steps=read("WEIR_COMPARE_EVERY_STEPS", int, 0), labels=read("WEIR_LABELS"),
                 local_steps=True, caller_sums=True, **weir.keys.settings()).close()
    found = sorted(name for name, value in os.environ.items() if name.startswith("WEIR_") and value)
    return ", ".join(found) if found else "no variable is set, and none needs to be"


def _is_for_a_certain_world(path):
    with contextlib.suppress(OSError, ValueError), open(path, encoding="utf-8") as file:
        plan = json.load(file)
        return isinstance(plan, dict) and not {"ring_order", "shard_shares", "leases"}.isdisjoint(plan)
    return False


def check_transport():
    """Connects two ranks in this process and returns the transport that they use."""
    import secrets
    import threading
    import weir
    job = f"check-{os.getpid()}"
    options = dict(transport=os.environ.get("WEIR_TRANSPORT"), connect_timeout_s=CONNECT_TIMEOUT_S,
                   **weir.keys.settings())
    if weir.keys.wants_key(options):
        options["job_key"] = secrets.token_bytes(weir.keys.KEY_BYTES)
    with weir.Session(job, 0, 2, **options) as one, weir.Session(job, 1, 2, **options) as two:
        addresses = [one.address, two.address]
        failures = []

        def connect(session):
            try:
                session.connect(addresses)
            except weir.WeirError as error:
                failures.append(error)

        other = threading.Thread(target=connect, args=(two,))
        other.start()
        connect(one)
        other.join()
        if failures:
            raise failures[0]
        if one.stats().peers_shared_memory:
            return "ranks of this machine share memory"
        return "ranks of this machine use TCP (they cannot share memory, or WEIR_TRANSPORT says so)"


def check_torch():
    """Checks for torch with the distributed package and the hooks that weir uses."""
    import torch
    import torch.distributed as dist
    if not dist.is_available():
        raise RuntimeError(f"torch {torch.__version__} has no distributed package")
    from torch.nn.parallel import DistributedDataParallel
    if not hasattr(DistributedDataParallel, "register_comm_hook"):
        raise RuntimeError(f"torch {torch.__version__}: expected at least 1.8")
    if not hasattr(torch.autograd.Variable._execution_engine, "queue_callback"):
        raise RuntimeError(f"torch {torch.__version__} has no autograd queue_callback")
    return f"torch {torch.__version__}"


def check_nccl_plugin():
    """Looks for the plug-ins for NCCL beside the library, and says whether NCCL is told to use them."""
    from weir import _lib
    folder = pathlib.Path(_lib.library_path()).parent
    # The folders of a wheel, of an installed package and of a build directory.
    places = [folder / NCCL_PLUGIN, folder / "weir" / NCCL_PLUGIN,
              folder.parent / "nccl" / "plugin" / NCCL_PLUGIN]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise RuntimeError(f"{NCCL_PLUGIN} not found; tried " + ", ".join(map(str, places)))
    used = [name for name in ("NCCL_ENV_PLUGIN", "NCCL_TUNER_PLUGIN", "NCCL_PROFILER_PLUGIN")
            if os.path.basename(os.environ.get(name, "")) == NCCL_PLUGIN]
    return f"{found}; " + (f"used by {', '.join(used)}" if used else "NCCL uses it if NCCL_ENV_PLUGIN names it")


def _address_of(agent):
    """(family, address) of WEIR_AGENT as libweir takes it, which asks no name server. Wrong: it would refuse it."""
    kind, _, rest = agent.partition(":")
    host, _, port = rest.rpartition(":")
    host = "127.0.0.1" if host == "localhost" else host.removeprefix("[").removesuffix("]")
    with contextlib.suppress(ValueError):
        if kind == "unix" and 0 < len(os.fsencode(rest)) <= SOCKET_PATH_MAX:
            return socket.AF_UNIX, rest
        if kind == "tcp" and port.isdigit() and 0 < int(port) < 65536:
            found = ipaddress.ip_address(host)
            return socket.AF_INET if found.version == 4 else socket.AF_INET6, (host, int(port))
    raise Wrong(f"WEIR_AGENT is {agent}: expected unix:/path or tcp:host:port with a numeric host or 'localhost'")


def check_agent(agent):
    """Checks that the agent accepts connections."""
    if not agent:
        raise RuntimeError("WEIR_AGENT is not set: expected unix:/path or tcp:host:port")
    family, address = _address_of(agent)
    with socket.socket(family, socket.SOCK_STREAM) as connection:
        connection.settimeout(AGENT_TIMEOUT_S)
        try:
            connection.connect(address)
        except OSError as error:
            raise RuntimeError(f"{agent}: {(error.strerror or str(error)).lower()}") from None
    return f"{agent} accepts connections"


def check_peer(host, port, end):
    """Checks that the `check --peers` of another host can be reached, which must begin before `end`."""
    limit_s = probe.PROBE_S
    while True:
        try:
            seconds, answer, local, mtu = probe.once(host, port, time.monotonic() + limit_s)
            break
        except probe.Unreachable as error:
            if time.monotonic() > end:
                raise RuntimeError(str(error)) from None
            limit_s = probe.PATIENT_S if error.late else probe.PROBE_S
        time.sleep(0.2)
    if answer and answer["seen"] != local:
        raise RuntimeError(f"a NAT lies between: this host's {local} arrives there as {answer['seen']}; "
                           "others cannot connect to it, so let the hosts share a network")
    small = f"; MTU {mtu}, usual is {MTU_BYTES_USUAL}" if 0 < mtu < MTU_BYTES_USUAL else ""
    return f"answers, {1e3 * seconds:.1f} ms for {probe.BURST_BYTES >> 10} KiB{small}"


def check_own(listed, own):
    """Checks that one of the `listed` (host, port) is this host's, and returns a responder there."""
    mine = [(host, port) for host, port in listed
            if own.intersection(interfaces.resolve(host)) or host.startswith("127.")]
    if not mine:
        raise RuntimeError("none of the listed addresses is this host's, which has " +
                           ", ".join(sorted(own)) + "; behind a NAT others cannot connect to it")
    try:
        return mine[0], probe.Responder(_PEERS_TOKEN, mine[0][1])
    except OSError as error:
        raise RuntimeError(f"cannot listen at port {mine[0][1]}: {error.strerror}") from None


def check_peers(text, wait_s):
    """Prints whether the hosts reach each other. Returns 1 if one of them does not reach another."""
    listed = [interfaces.split(peer.strip(), PEERS_PORT) for peer in text.split(",") if peer.strip()]
    own = {a.host for a in interfaces.addresses() if not a.link_local}
    end, failed, me, responder = time.monotonic() + wait_s, False, None, None
    try:
        me, responder = check_own(listed, own)
        print(f"ok       own address: {interfaces.join(*me)}", flush=True)
    except RuntimeError as error:
        print(f"missing  own address: {error}", flush=True)
        failed = True
    others = [peer for peer in listed if peer != me]
    for host, port in others:
        try:
            print(f"ok       peer {interfaces.join(host, port)}: {check_peer(host, port, end)}", flush=True)
        except RuntimeError as error:
            print(f"missing  peer {interfaces.join(host, port)}: {error}", flush=True)
            failed = True
    if me and responder:
        while len(responder.answered) < len(others) and time.monotonic() < end:
            time.sleep(0.1)
        if len(responder.answered) < len(others):
            print(f"missing  own address: {len(responder.answered)} of {len(others)} peers have connected to "
                  f"{interfaces.join(*me)} within {wait_s:g} s: is the port closed?")
            failed = True
        responder.close()
    return 1 if failed else 0


def check(agent):
    """Prints every finding. Returns 0 if training could run, else 1. What training can do without is a warning."""
    failed = False
    # Name, function, and True or what a failure leaves possible.
    findings = (("library", check_library, True), ("settings", check_settings, True),
                ("transport", check_transport, True),
                ("torch", check_torch, True),
                ("agent", lambda: check_agent(agent), "a plan file or dense training works without"),
                ("nccl_plugin", check_nccl_plugin, "only needed to measure and steer NCCL"))
    for name, finding, needed in findings:
        try:
            print(f"ok       {name}: {finding()}")
        except Exception as error:  # every failure is a finding
            missing = needed is True or isinstance(error, Wrong)
            failed |= missing
            print(f"missing  {name}: {error}" if missing else f"warning  {name}: {error} ({needed})")
    return 1 if failed else 0


def main():
    if sys.argv[1:2] == ["run"]:
        from weir import run
        sys.exit(run.main(sys.argv[2:]))
    parser = argparse.ArgumentParser(prog="python3 -m weir", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["check", "run"])
    parser.add_argument("--agent", default=os.environ.get("WEIR_AGENT"))
    parser.add_argument("--peers", metavar="HOST[:PORT],...",
                        help=f"all hosts of the job, this one, too; default port {PEERS_PORT}")
    parser.add_argument("--wait", type=float, default=PEERS_WAIT_S, metavar="SECONDS",
                        help="for the other hosts to begin; default %(default)g")
    given = parser.parse_args()
    try:
        sys.exit(check_peers(given.peers, given.wait) if given.peers else check(given.agent))
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
