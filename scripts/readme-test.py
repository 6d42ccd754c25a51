"""Runs the README: every ```sh block, from the top, in one shell, on a cluster of its own data directory.

A ```text block right behind a ```sh block is what that block prints. `scripts/test.sh` itself is not run again.
Beside that: every setting of `concord serve` stands in the README.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
MARK = "=== end of block"


def blocks(text):
    """[(command, expected output or None)]"""
    found = re.findall(r"^```sh\n(.*?)^```\n(?:\n?```text\n(.*?)^```\n)?", text, re.M | re.S)
    return [(command, output or None) for command, output in found if "scripts/test.sh" not in command]


def run(commands, env):
    """What each block printed. The shell stops at the first command that fails."""
    script = "set -euo pipefail\n" + "".join(f"{command}\necho '{MARK}'\n" for command, _ in commands)
    with tempfile.TemporaryFile("w+") as trouble:
        done = subprocess.run(["bash", "-c", script], cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=trouble, text=True, timeout=600)
        printed = done.stdout.split(MARK + "\n")
        if done.returncode:
            trouble.seek(0)
            failed = commands[len(printed) - 1][0] if len(printed) <= len(commands) else "?"
            sys.exit(f"README: exit code {done.returncode} in\n{failed}\n{printed[-1]}\n{trouble.read()}")
    return printed


def main():
    text = (ROOT / "README.md").read_text()
    commands = blocks(text)
    binary = os.environ.get("CONCORD_BIN", str(ROOT / "target" / "release" / "concord"))
    helped = subprocess.run([binary, "serve", "--help"], stdout=subprocess.PIPE, text=True, check=True).stdout
    missing = [name for name in sorted(set(re.findall(r"CONCORD_[A-Z_]+", helped))) if name not in text]
    if missing:
        sys.exit(f"README: these settings are not named: {' '.join(missing)}")
    with tempfile.TemporaryDirectory(prefix="concord-readme-") as data:
        env = {**os.environ, "CONCORD_DATA": data, "CONCORD_BIN": binary, "PATH": f"{pathlib.Path(binary).parent}:{os.environ['PATH']}"}
        try:
            printed = run(commands, env)
        finally:
            subprocess.run(["scripts/cluster.sh", "wipe"], cwd=ROOT, env=env, stdout=subprocess.DEVNULL, check=False)
    wrong = 0
    for (command, expected), output in zip(commands, printed):
        if expected is not None and output.strip() != expected.strip():
            wrong += 1
            print(f"README: this block\n{command}prints\n{output}instead of\n{expected}", file=sys.stderr)
    print(f"README: {len(commands)} blocks run, {sum(e is not None for _, e in commands)} outputs compared, {wrong} wrong")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
