"""`python3 -m weir check`: whether this machine is ready for Weir, one line per finding."""
import argparse
import os
import socket
import sys

AGENT_TIMEOUT_S = 2.0
CONNECT_TIMEOUT_S = 10.0


def check_library():
    """Checks that the library can be found and loaded, and returns its capabilities."""
    from weir import _lib
    path = _lib.library_path()
    abilities = _lib.capabilities()
    codecs = ", ".join(c["name"] for c in abilities.get("codecs", []))
    collectives = ", ".join(c["name"] for c in abilities.get("collectives", []))
    return (f"{path}, version {_lib.version()}; codecs: {codecs}; collectives: {collectives}")


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


def check_agent(agent):
    """Checks that the agent accepts connections."""
    if not agent:
        raise RuntimeError("WEIR_AGENT is not set: expected unix:/path or tcp:host:port")
    kind, _, rest = agent.partition(":")
    if kind == "unix":
        family, address = socket.AF_UNIX, rest
    elif kind == "tcp" and rest.rpartition(":")[2].isdigit():
        host, _, port = rest.rpartition(":")
        family, address = socket.AF_INET, (host, int(port))
    else:
        raise RuntimeError(f"WEIR_AGENT is {agent}: expected unix:/path or tcp:host:port")
    with socket.socket(family, socket.SOCK_STREAM) as connection:
        connection.settimeout(AGENT_TIMEOUT_S)
        connection.connect(address)
    return f"{agent} accepts connections"


def check(agent):
    """Prints every finding. Returns 0 if training could run, else 1. No agent is only a warning."""
    failed = False
    findings = (("library", check_library, True), ("transport", check_transport, True),
                ("torch", check_torch, True),
                ("agent", lambda: check_agent(agent), False))
    for name, finding, needed in findings:
        try:
            print(f"ok       {name}: {finding()}")
        except Exception as error:  # every failure is a finding
            failed |= needed
            consequence = "" if needed else " (a plan file or dense training works without)"
            print(f"{'missing' if needed else 'warning'}  {name}: {error}{consequence}")
    return 1 if failed else 0


def main():
    parser = argparse.ArgumentParser(prog="python3 -m weir", description=__doc__)
    parser.add_argument("command", choices=["check"])
    parser.add_argument("--agent", default=os.environ.get("WEIR_AGENT"))
    sys.exit(check(parser.parse_args().agent))


if __name__ == "__main__":
    main()
