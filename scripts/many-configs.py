#!/usr/bin/env python3
"""Many configs by the command line: imported with a progress bar, interrupted and resumed, exported, applied elsewhere.

    CONFIGS=100000 scripts/many-configs.py

Two clusters of `concord demo` are real ones, of three nodes each. A terminal is a real one, too, and the interruption is
a Ctrl-C typed into it. What the second cluster exports must be what the first one exported, byte for byte. Prints how
long each step took. CONCORD_BIN names the binary; measure with one of a release build.
"""

import filecmp
import json
import os
import pathlib
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BINARY = os.environ.get("CONCORD_BIN", str(ROOT / "target" / "release" / "concord"))
CONFIGS = int(os.environ.get("CONFIGS", "100000"))
PATIENCE_S = 1800


class Demo:
    """A cluster, and a home whose context it is."""

    def __init__(self, root, name, port):
        self.home = root / name
        self.home.mkdir()
        settings = {name: value for name, value in os.environ.items() if not name.startswith("CONCORD_")}
        self.env = {**settings, "HOME": str(self.home), "XDG_CONFIG_HOME": str(self.home), "TMPDIR": str(root), "TERM": "xterm"}
        self.process = subprocess.Popen([BINARY, "demo", "--no-sample", "--port", str(port)], env=self.env,
                                        stdout=subprocess.PIPE, text=True)
        for line in self.process.stdout:
            if "not for production" in line:
                return
        raise SystemExit("the demo did not start")

    def run(self, *arguments, interrupt_at=None):
        """Runs a command on a terminal, and returns its exit code, its seconds and its screen. With `interrupt_at`,
        types Ctrl-C once so many parts are done."""
        begin = time.monotonic()
        child, terminal = pty.fork()
        if child == 0:
            os.environ.clear()
            os.environ.update(self.env, COLUMNS="120", LINES="40")
            os.execv("/bin/sh", ["sh", "-c", 'stty cols 120 rows 40; exec "$0" "$@"', BINARY, *arguments])
        screen, typed = "", interrupt_at is None
        while time.monotonic() - begin < PATIENCE_S:
            ready, _, _ = select.select([terminal], [], [], 1)
            if not ready:
                continue
            try:
                part = os.read(terminal, 65536)
            except OSError:  # the terminal has ended
                break
            if not part:
                break
            screen += part.decode(errors="replace")
            done = [int(number.replace(",", "")) for number in re.findall(r"([\d,]+) of [\d,]+ ", screen[-500:])]
            if not typed and done and done[-1] >= interrupt_at:
                os.write(terminal, b"\x03")
                typed = True
        _, status = os.waitpid(child, 0)
        os.close(terminal)
        return os.waitstatus_to_exitcode(status), time.monotonic() - begin, screen

    def end(self):
        self.process.send_signal(signal.SIGINT)
        self.process.wait()


def last_bar(screen):
    bars = re.findall(r"[\d,]+ of [\d,]+ \w+, [\d,.]+/s, \S+ left", screen)
    return bars[len(bars) // 2] if bars else None


def step(name, result, code=0):
    got, seconds, screen = result
    if got != code:
        raise SystemExit(f"{name}: exit code {got} instead of {code}\n{screen[-2000:]}")
    said = [line for line in re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen)) if "left" not in line and line.strip()]
    print(f"{name:<28} {seconds:7.1f} s   {said[-1].strip() if said else ''}\n{'':<28}   bar: {last_bar(screen)}", flush=True)


def same(one, two):
    compared = filecmp.dircmp(one, two)
    if compared.left_only or compared.right_only or compared.funny_files:
        return False
    _, wrong, unread = filecmp.cmpfiles(one, two, compared.common_files, shallow=False)
    return not wrong and not unread and all(same(f"{one}/{name}", f"{two}/{name}") for name in compared.common_dirs)


def main():
    root = pathlib.Path(tempfile.mkdtemp(prefix="concord-many-"))
    demos = []
    try:
        source = root / "source" / "many" / "config"
        source.mkdir(parents=True)
        schema = {"type": "object", "properties": {"n": {"type": "integer"}, "owner": {"type": "string"}}}
        definition = {"config_definition_key": "many", "indexes": ["owner"], "json_schema": schema}
        (source.parent / "definition.json").write_text(json.dumps(definition))
        for n in range(CONFIGS):
            data = {"n": n, "owner": f"team-{n % 50}", "text": "x" * 100}
            (source / f"k{n:06}.json").write_text(json.dumps({"config_definition_key": "many", "config_key": f"k{n:06}", "data": data}))
        demos.append(Demo(root, "one", 17400))
        one = demos[0]
        step("import, interrupted", one.run("import", "--dir", str(root / "source"), interrupt_at=CONFIGS // 3), 130)
        step("import, resumed", one.run("import", "--dir", str(root / "source")))
        step("import, nothing to do", one.run("import", "--dir", str(root / "source")))
        step("export, interrupted", one.run("export", "--dir", str(root / "first"), interrupt_at=CONFIGS // 3), 130)
        step("export, resumed", one.run("export", "--dir", str(root / "first")))
        demos.append(Demo(root, "two", 17500))
        two = demos[1]
        step("apply --prune, elsewhere", two.run("apply", "-f", str(root / "first"), "-R", "--prune", "--yes", "--split", "-o", "jsonpath={.meta}"))
        step("export, elsewhere", two.run("export", "--dir", str(root / "second")))
        if not same(root / "first", root / "second"):
            raise SystemExit("the two exports differ")
        files = sum(1 for path in (root / "second").rglob("*.json") if path.is_file())
        print(f"the exports are the same, byte for byte: {files} files")
    finally:
        for demo in demos:
            demo.end()
        shutil.rmtree(root)


if __name__ == "__main__":
    sys.exit(main())
