"""One `fountain runner` in a folder of its own: started, awaited, stopped in order, and searched for leftovers."""

import os
import re
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path

TOKEN = "sdk-suite-token"
REPOSITORY = Path(__file__).resolve().parents[3]
BINARY = os.environ.get("FOUNTAIN_BIN", str(REPOSITORY / "target/debug/fountain"))
LISTENING = re.compile(r"^fountain runner listening on (http://127\.0\.0\.1:\d+)$")
# A debug build on a busy two-core machine starts in well under a second.
START_SECONDS = 30
STOP_SECONDS = 60


class Runner:
    """A running daemon. `base_url` is where it listens, `state` its state folder."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="py-"))
        self.state = self.folder / "state"
        self.log = self.folder / "runner.log"
        # Nothing of the environment of whoever runs the tests may change what the daemon does.
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "XDG_RUNTIME_DIR": str(self.folder / "run"),
            "FOUNTAIN_RUNNER_TOKEN": TOKEN,
        }
        (self.folder / "run").mkdir(mode=0o700)
        self.environment = environment
        command = [BINARY, "runner", "--listen", "127.0.0.1:0", "--state", str(self.state)]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True
            )
        self.base_url = ""
        ready = threading.Event()
        threading.Thread(target=self._read_stdout, args=(ready,), daemon=True).start()
        if not ready.wait(START_SECONDS) or not self.base_url:
            self.process.kill()
            self.process.wait()
            log = self.log.read_text()
            shutil.rmtree(self.folder)
            raise RuntimeError(f"the runner did not start; its log:\n{log}")

    def _read_stdout(self, ready: threading.Event) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if match := LISTENING.match(line.strip()):
                self.base_url = match.group(1)
                ready.set()
        ready.set()

    def stop(self) -> list[str]:
        """Ends agents and runner as an operator would and returns what is wrong or left afterwards."""
        wrong = []
        try:
            stop = subprocess.run(
                [BINARY, "stop", "--all", "--state", str(self.state)],
                env=self.environment, capture_output=True, text=True, timeout=STOP_SECONDS,
            )
            if stop.returncode != 0:
                wrong.append(f"`fountain stop --all` exited with {stop.returncode}: {stop.stderr}")
            if (code := self.process.wait(STOP_SECONDS)) != 0:
                wrong.append(f"the runner exited with {code}")
        except subprocess.TimeoutExpired as error:
            wrong.append(f"stopping took too long: {error}")
            self.process.kill()
        wrong += [f"left running: {process}" for process in self.processes()]
        mounts = Path("/proc/mounts").read_text().splitlines()
        wrong += [f"left mounted: {line}" for line in mounts if str(self.folder) in line]
        if wrong:
            wrong.append(f"the end of the runner's log:\n{self.log.read_text()[-4000:]}")
        shutil.rmtree(self.folder)
        return wrong

    def processes(self) -> list[str]:
        """Every process that names this runner's folder in its command line or works below it."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                directory = os.readlink(entry / "cwd")
            except OSError:
                continue  # it ended while we looked
            if str(self.folder) in command or directory.startswith(str(self.folder)):
                found.append(f"{entry.name} {command.strip()} (in {directory})")
        return found
