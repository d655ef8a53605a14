# SPDX-License-Identifier: Apache-2.0
"""`weir run -- COMMAND`: runs a training command with an agent and a controller of its own.

Both live as long as the command. Their sockets, state and logs are in a directory that is this user's; the
controller's page is on loopback. The command learns of them by its environment (WEIR_AGENT, WEIR_JOB,
WEIR_LIBRARY). At the end, what was decided and what it saved is printed, and the exit status is that of the
command (128 + n if signal n ended it). SIGINT, SIGTERM, SIGHUP and SIGQUIT are passed on; GRACE_S later, or at
the second one, whatever the command has started is killed. What remains of the command's process group when
the command itself has ended is ended, too.
"""
import argparse
import contextlib
import ctypes
import hashlib
import json
import os
import pathlib
import re
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any, List

from weir import _lib
from weir import environment
from weir import interfaces

START_S = 15.0
STOP_S = 5.0
GRACE_S = 10.0
ASK_S = 10.0
LEFT_S = 2.0
SOCKET_PATH_MAX = 107  # of sockaddr_un
_UNFIT = frozenset(":%#?,")
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
_libc = ctypes.CDLL(None, use_errno=True)
_PARTS = ("controller/server", "controller/cli", "agent")  # of a build directory


class RunError(RuntimeError):
    """Agent or controller could not be started; the message says why."""


def find_program(name):
    """The path of a program: in the directory WEIR_BIN, beside libweir in the package, on PATH, or in the
    build directory of libweir. RunError lists the places searched."""
    library = pathlib.Path(_lib.library_path()).resolve()
    places = [os.environ["WEIR_BIN"]] if os.environ.get("WEIR_BIN") else []
    places += [str(library.parent), str(library.parent / "bin"), str(library.parent.parent / "bin")]
    places += os.environ.get("PATH", "").split(os.pathsep)
    places += [str(root / part) for root in list(library.parents)[:3] for part in _PARTS]
    found = shutil.which(name, path=os.pathsep.join(places))
    if not found:
        raise RunError(f"{name} not found: set WEIR_BIN to its directory; tried {', '.join(places)}")
    return found


def _end_with_parent(number):
    """Something to call in a child, which then gets signal `number` when this process ends."""
    return lambda: _libc.prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)


def _tail(path):
    return " | ".join(path.read_text(errors="replace").splitlines()[-3:])


def private_directory(path):
    """Makes a directory that only this user can use, or takes one that others cannot write to. Returns its
    pathlib.Path. RunError: it is a link, others could write there, or its path does not suit what is told of it."""
    path = pathlib.Path(os.path.abspath(path))
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status, why = path.lstat(), ""
    except OSError as error:
        status, why = None, error.strerror.lower()
    if not why and status:
        if stat.S_ISLNK(status.st_mode):
            why = "it is a link"
        elif status.st_uid != os.geteuid():
            why = f"it belongs to user {status.st_uid}"
        elif status.st_mode & 0o022:
            why = f"others can write to it (mode {stat.S_IMODE(status.st_mode):04o}); expected 0700"
        elif unfit := sorted(set(str(path)) & _UNFIT):
            why = f"its path has a '{unfit[0]}', which has a meaning in PYTHONPATH or in gRPC's addresses"
        elif len(str(path / "controller.sock")) > SOCKET_PATH_MAX:
            why = f"the paths of its sockets would be longer than {SOCKET_PATH_MAX} bytes"
    if why:
        raise RunError(f"cannot use the directory {path}: {why}")
    return path


def _create(path):
    """Opens a file of this user's alone, empty, for writing."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    return open(os.open(path, flags, 0o600), "wb")


def _own_addresses():
    return [a.host for a in interfaces.addresses() if not a.loopback and not a.link_local]


def _is_address(host):
    return host == "localhost" or host in interfaces.resolve(host)


def rendezvous_here(host):
    """Where the controller of --rendezvous must listen on this node; None if another node has `host`.
    RunError: the name is unknown."""
    found = interfaces.resolve(host)
    if not found:
        raise RunError(f"cannot resolve '{host}' of --rendezvous")
    own, loopback = set(_own_addresses()), any(h == "::1" or h.startswith("127.") for h in found)
    if loopback and not _is_address(host):
        # Debian maps a host's own name to 127.0.1.1. So the name is this node's, and others know an address.
        return "::" if socket.has_dualstack_ipv6() else "0.0.0.0"
    return host if loopback or own.intersection(found) else None


class ControlPlane:
    """Agent and, unless there is one already, controller of a run. Use it in a `with` block."""

    def __init__(self, directory, options):
        self._directory = directory
        self._options = options
        self._started = []
        self.controller = options.controller or options.rendezvous or f"unix:{directory / 'controller.sock'}"
        self.page = ""
        self.token_file = None  # of the own controller, where only this user may ask it
        self.socket = directory / "agent.sock"

    def __enter__(self):
        try:
            self._start_controller()
            self._start_agent()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *unused):
        for child in reversed(self._started):
            child.terminate()
            try:
                child.wait(STOP_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        self._started = []

    def _start_controller(self):
        """Starts the controller unless it is elsewhere. Without --rendezvous only this user reaches it."""
        options = self._options
        if options.controller:
            return
        if options.policy and not os.path.isdir(options.policy):
            raise RunError(f"--policy {options.policy}: expected a directory, found "
                           f"{'a file' if os.path.exists(options.policy) else 'nothing'}")
        more = ["--policy", options.policy] if options.policy else []
        listen = self.controller
        if options.rendezvous:
            host, port = interfaces.split(options.rendezvous)
            here = rendezvous_here(host)
            if here is None:
                return
            listen = interfaces.join(here, port)
        else:
            more += ["--token-file", self._make_token()]
        log = self._directory / "controller.log"
        child = self._start(log, "weir-controller", "--listen-grpc", listen, "--listen-http",
                            f"127.0.0.1:{options.page_port}", "--state", self._directory / "controller.db",
                            *more)
        self.page = "http://" + self._wait_for(child, log, r"gRPC on .*, HTTP on (\S+), state in ")[1]

    def _make_token(self):
        """Makes the token of the page and of weirctl. Returns the file that lets the controller know it."""
        token, roles = secrets.token_hex(16), self._directory / "roles"
        self.token_file = self._directory / "token"
        digest = hashlib.sha256(token.encode()).hexdigest()
        for path, text in ((self.token_file, token), (roles, f"owner admin sha256:{digest}")):
            with _create(path) as file:
                file.write(f"{text}\n".encode())
        return roles

    def _start_agent(self):
        """Starts the agent, with the address at which other nodes measure their links to this one."""
        address = "127.0.0.1"
        if self._options.controller or self._options.rendezvous:
            host, own = interfaces.split(self.controller)[0], _own_addresses()
            routes = interfaces.towards(host)
            if not _is_address(host):  # a name may be mapped to loopback here, and to an address elsewhere
                routes = [h for h in routes if h in own] or own
            address = next(iter(routes), address)
        log = self._directory / "agent.log"
        child = self._start(log, "weir-agent", "--node", f"{socket.gethostname()}-{os.getpid()}",
                            "--address", address, "--controller", self.controller, "--socket", self.socket,
                            "--socket-mode", "0600", "--probe-port", "0", "--unprotected", "probes")
        self._wait_for(child, log, r"serves ranks at ()")

    def _start(self, log, name, *arguments):
        insecure = ["--insecure"] if self._options.insecure else []
        with _create(log) as out:
            child = subprocess.Popen([find_program(name), *map(str, arguments), *insecure],
                                     stdin=subprocess.DEVNULL, stdout=out, stderr=out, umask=0o077,
                                     start_new_session=True, preexec_fn=_end_with_parent(signal.SIGKILL))
        self._started.append(child)
        return child

    def _wait_for(self, child, log, pattern):
        deadline = time.monotonic() + START_S
        while True:
            ended = child.poll() is not None
            found = re.search(pattern, log.read_text(errors="replace"))
            if found:
                return found
            if ended or time.monotonic() > deadline:
                what = f"ended with status {child.returncode}" if ended else (
                    f"was not ready within {START_S:g} s")
                raise RunError(f"{child.args[0]} {what}: {_tail(log)}")
            time.sleep(0.05)

    def pids(self):
        return {child.pid for child in self._started}

    def watch_for_controller(self):
        """Says so when a controller elsewhere does not answer within START_S. The command runs meanwhile:
        its ranks run dense until the controller is there."""
        def try_to_connect():
            host, port = interfaces.split(self.controller)
            deadline, why = time.monotonic() + START_S, "no answer"
            while time.monotonic() < deadline:
                try:
                    socket.create_connection((host, port), timeout=2.0).close()
                    return
                except OSError as error:
                    why = (error.strerror or str(error)).lower()
                    time.sleep(0.2)
            _say(f"no controller at {self.controller} ({', '.join(interfaces.resolve(host))}) within "
                 f"{START_S:g} s: {why}. Does it run there? This node has "
                 f"{', '.join(_own_addresses()) or 'loopback alone'}. Until it answers, ranks run dense")
        if not self.page:
            threading.Thread(target=try_to_connect, name="weir-run", daemon=True).start()

    def environment(self):
        """The variables that the command needs in its environment."""
        options = self._options
        set_ = {"WEIR_AGENT": f"unix:{self.socket}", "WEIR_LIBRARY": _lib.library_path(),
                "WEIR_JOB": options.job}
        package = pathlib.Path(__file__).resolve().parent
        # A directory of this package alone: what else is installed beside it may not fit the command's Python.
        alone = self._directory / "path"
        alone.mkdir(exist_ok=True)
        (alone / "weir").unlink(missing_ok=True)  # of an earlier run, perhaps by another installation
        (alone / "weir").symlink_to(package)
        path = [str(alone), *filter(None, [os.environ.get("PYTHONPATH")])]
        if options.auto:
            path.insert(0, str(package / "auto"))
        return {**os.environ, **set_, "PYTHONPATH": os.pathsep.join(path)}

    def page_to_open(self):
        """The page's address, with a code that begins a session of this user where the page wants one."""
        made = self.ask("page") if self.token_file else None
        return (made or {}).get("url") or self.page

    def ask(self, *arguments):
        """The answer of weirctl as JSON, or None if the controller does not answer."""
        try:
            token = ["--token-file", self.token_file] if self.token_file else []
            done = subprocess.run([find_program("weirctl"), "--controller", self.controller, *token, "-o",
                                   "json", *arguments], capture_output=True, timeout=ASK_S, check=True)
            return json.loads(done.stdout)
        except (subprocess.SubprocessError, ValueError, RunError):
            return None


def _children(pid, but=()):
    """The processes that `pid` has started and that were not waited for, and theirs; `but` those not."""
    found = []
    for task in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in set(map(int, task.read_text().split())).difference(but):
                found += [child, *_children(child)]
    return found


class Command:
    """The training command: passes signals on to it, and knows all processes that come from it."""

    def __init__(self, arguments, environment, spare):
        # Processes whose parent has ended become children of this one, where they can be found.
        _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._spare = spare  # processes of this run that are not of the command
        self._signals: List[int] = []
        self._kill_at = None
        self._child: Any = None
        self._handlers = {s: signal.signal(s, self._pass_on) for s in handled_signals()}
        try:
            self._child = subprocess.Popen(arguments, env=environment, start_new_session=True,
                                           preexec_fn=_end_with_parent(signal.SIGTERM))
        except OSError as error:
            raise RunError(f"cannot run {arguments[0]}: {error.strerror.lower()}") from None
        for number in self._signals:  # that came before the command was known
            self._send(number)

    def _pass_on(self, number, unused_frame):
        self._signals.append(number)
        self._kill_at = time.monotonic() + (GRACE_S if len(self._signals) == 1 else 0.0)
        if self._child is not None:
            self._send(number)

    def _send(self, number):
        """Sends a signal to the command's process group. Returns whether it has a process."""
        try:
            os.killpg(self._child.pid, number)
        except ProcessLookupError:
            return False
        return True

    def wait(self):
        """Returns the exit status, as a shell counts it."""
        child = self._child
        while True:
            try:
                child.wait(0.2)
                break
            except subprocess.TimeoutExpired:
                self._left()
                if self._kill_at and time.monotonic() > self._kill_at:
                    self._kill_all()
        if self._signals or child.returncode < 0:
            self._kill_all()
        else:
            self._end_group()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        code = child.returncode
        return 128 - code if code < 0 else code

    def _left(self):
        """The running processes that come from the command. Those that have ended are waited for."""
        self._child.poll()
        for pid in set(_children(os.getpid(), self._spare)) - {self._child.pid}:
            with contextlib.suppress(ChildProcessError):  # not of this process, but of one of its children
                os.waitpid(pid, os.WNOHANG)
        return _children(os.getpid(), self._spare)

    def _end_group(self):
        """Ends what the command has left behind in its process group."""
        self._send(signal.SIGTERM)
        deadline = time.monotonic() + LEFT_S
        while self._send(0) and time.monotonic() < deadline:
            self._left()
            time.sleep(0.02)
        self._send(signal.SIGKILL)
        self._left()

    def _kill_all(self):
        """Kills everything that comes from the command, until nothing is left."""
        for _ in range(20):
            left = self._left()
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not left:
                return
            time.sleep(0.05)


def handled_signals():
    """The signals that end a run. nohup lets its command ignore SIGHUP."""
    ignored = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else set()
    return {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT} - ignored


def report(jobs, decisions):
    """Returns lines on every job of the run: what was decided, and what it saved."""
    lines = []
    for job in (jobs or {}).get("jobs", []):
        made = [d for d in (decisions or {}).get("decisions", []) if d.get("job") == job["name"]]
        switched = [d for d in made if d.get("switched")]
        lines.append(f"job {job['name']}: {job.get('step', 0)} steps on {job.get('world', 0)} ranks; "
                     f"{len(made)} decisions, {len(switched)} of them changed the plan")
        for decision in sorted(switched, key=lambda d: d.get("unix_s", 0)):
            lines.append(f"  step {decision.get('step', 0)}: {decision.get('from') or 'dense'} -> "
                         f"{decision.get('to')} ({decision.get('trigger')}; {decision.get('outcome')})")
        benefit = job.get("benefit", {})
        text = benefit.get("text", "not compared with dense yet")
        if benefit.get("compared_s", 0.0) > 0 and benefit.get("saved_s", 0.0) != 0:
            text += f" ({benefit['saved_s']:+.1f} s in {benefit['compared_s']:.1f} s of steps)"
        lines.append(f"  {text}")
    return lines or ["the controller has seen no job: did the command call weir.attach (or use --auto)?"]


def parser(add=argparse.ArgumentParser):
    """The arguments of `weir run`. add: what makes a parser."""
    made = add(prog="weir run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    where = made.add_mutually_exclusive_group()
    where.add_argument("--controller", type=_endpoint, metavar="HOST:PORT", help="use this controller; start none")
    where.add_argument("--rendezvous", type=_endpoint, metavar="HOST:PORT",
                       help="several nodes: the one that has the address HOST runs the controller there")
    made.add_argument("--insecure", action="store_true",
                      help="allow plain text between nodes, on a network that nobody else uses")
    made.add_argument("--job", type=_job, default=os.environ.get("WEIR_JOB") or "training",
                      help="name of the job; WEIR_JOB, else %(default)s")
    made.add_argument("--policy", metavar="DIRECTORY", help="policy files of the own controller")
    made.add_argument("--directory", help="for state and logs, kept; default: a temporary one")
    made.add_argument("--page-port", type=_port, default=0, help="of the page on loopback; 0: any")
    made.add_argument("--auto", action="store_true",
                      help="attach Weir to every model in DDP or FSDP that the command trains")
    made.add_argument("command", nargs=argparse.REMAINDER, help="-- torchrun ... train.py")
    return made


def _job(text):
    """The name of a job, for argparse."""
    try:
        return environment.check_job(text)
    except _lib.WeirError as error:
        raise argparse.ArgumentTypeError(error.message.removeprefix("job: ")) from None


def _port(text):
    """A port, or 0, for argparse."""
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"'{text}': expected 0 to 65535")
    return int(text)


def _endpoint(text):
    """HOST:PORT, for argparse."""
    try:
        host, port = interfaces.split(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if not host or not port:
        raise argparse.ArgumentTypeError(f"'{text}': expected HOST:PORT, with a port above 0")
    return text


def _say(text):
    print(f"weir run: {text}", file=sys.stderr, flush=True)


def main(arguments=None):
    """Returns the exit status."""
    made = parser()
    options = made.parse_args(arguments)
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        made.error("expected a command, such as: weir run -- torchrun --nproc-per-node 2 train.py")
    for number in handled_signals():  # outside of Command: ends agent and controller
        signal.signal(number, lambda received, frame: sys.exit(128 + received))
    with contextlib.ExitStack() as stack:
        try:
            directory = private_directory(
                options.directory or stack.enter_context(tempfile.TemporaryDirectory(prefix="weir-run-")))
            plane = stack.enter_context(ControlPlane(directory, options))
            token = f" (opens once; the token is in {plane.token_file})" if plane.token_file else ""
            _say(f"page {plane.page_to_open() or 'at the controller'}{token}, controller {plane.controller}, state in "
                 f"{directory}")
            plane.watch_for_controller()
            status = Command(command, plane.environment(), plane.pids()).wait()
        except (RunError, _lib.WeirError) as error:
            _say(str(error))
            return 1
        jobs = plane.ask("get", "jobs")
        if jobs is None:
            _say(f"the controller at {plane.controller} does not answer")
        else:
            mine = {"jobs": [j for j in jobs.get("jobs", [])
                             if j["name"] == options.job or j["name"].startswith(options.job + ".")]}
            for line in report(mine, plane.ask("get", "decisions", "--limit", "0")):
                _say(line)
    return status


if __name__ == "__main__":
    sys.exit(main())
