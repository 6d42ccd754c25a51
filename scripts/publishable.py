"""Checks that registries would take the packages of the clients.

    python3 scripts/publishable.py            the manifests: name, version, description, licence, URLs, README, keywords
    python3 scripts/publishable.py FILE...    packages as registries get them: *.crate, *.whl, *.tar.gz, *.tgz, *.jar

scripts/release-clients.sh makes the packages. No registry is asked: what only the owner of a name can do, such as to
upload, is not tried.
"""

import email
import json
import pathlib
import re
import sys
import tarfile
import tomllib
import xml.etree.ElementTree
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
CLIENTS = ROOT / "clients"
# One family in all registries: `concord` and `concord-client` are of other projects in some of them.
NAME = "concord-config-client"
GROUP = "io.github.concord-config"
REPOSITORY = "https://github.com/concord-config/concord"
MODULE = "github.com/concord-config/concord/clients/go"
LICENCE = "Apache-2.0"
LICENCE_TEXT = (ROOT / "LICENSE").read_bytes()
JAVA = {"client": NAME, "testing": f"{NAME}-testing", "spring-boot-starter": "concord-config-spring-boot-starter"}
# crates.io takes no more.
CRATE_KEYWORDS_MAX, CRATE_KEYWORD_MAX = 5, 20

wrong = []


def expect(place, what, is_right):
    if not is_right:
        wrong.append(f"{place}: {what}")


def expect_all(place, found, **expected):
    """Members with these values; `...` stands for any that is not empty."""
    for name, value in expected.items():
        is_right = bool(found.get(name)) if value is ... else found.get(name) == value
        expect(place, f"{name} is {found.get(name)!r}", is_right)


# --- Manifests -----------------------------------------------------------------------------------------------------


def check_rust():
    manifest = tomllib.loads((CLIENTS / "rust/Cargo.toml").read_text())
    package, place = manifest["package"], "clients/rust/Cargo.toml"
    expect_all(place, package, name=NAME, version=..., description=..., license=LICENCE, repository=REPOSITORY, homepage=..., readme=..., keywords=..., categories=...)
    expect(place, "it can't be published", package.get("publish", True) not in (False, []))
    expect(place, "more keywords than crates.io takes", len(package["keywords"]) <= CRATE_KEYWORDS_MAX)
    expect(place, "a keyword is too long", all(len(word) <= CRATE_KEYWORD_MAX for word in package["keywords"]))
    local = [name for name, one in manifest["dependencies"].items() if isinstance(one, dict) and "version" not in one]
    expect(place, f"dependencies without a version: {local}", not local)


def check_python():
    project, place = tomllib.loads((CLIENTS / "python/pyproject.toml").read_text())["project"], "clients/python/pyproject.toml"
    expect_all(place, project, name=NAME, description=..., license=LICENCE, readme=..., keywords=..., authors=..., classifiers=...)
    expect(place, "it can't be uploaded", not any(one.startswith("Private ::") for one in project["classifiers"]))
    expect_all(place, project.get("urls", {}), Homepage=REPOSITORY, Repository=REPOSITORY)


def check_javascript():
    package, place = json.loads((CLIENTS / "js/package.json").read_text()), "clients/js/package.json"
    expect_all(place, package, name=NAME, version=..., description=..., license=LICENCE, homepage=..., keywords=..., author=..., bugs=...)
    expect_all(place, package.get("repository", {}), url=f"git+{REPOSITORY}.git", directory="clients/js")
    expect(place, "it is private", "private" not in package)


def check_go():
    version = re.search(r'\bVersion = "([^"]+)"', "".join(path.read_text() for path in (CLIENTS / "go").glob("*.go")))
    for path in (CLIENTS / "go").rglob("go.mod"):
        place, text = path.relative_to(ROOT), path.read_text()
        folder = path.parent.relative_to(CLIENTS / "go").as_posix()
        expect(place, "another module path", re.search(r"^module (\S+)", text)[1] == (MODULE if folder == "." else f"{MODULE}/{folder}"))
        # The `replace` of a module counts only in its own checkout.
        for ours in re.findall(rf"^\s*(?:require )?{re.escape(MODULE)} (v\S+)$", text, re.M):
            expect(place, f"it requires {ours} of the client, whose version is {version[1]}", ours == f"v{version[1]}")
        expect(place, "there is no documentation of the package", any(re.search(r"^// Package ", source.read_text(), re.M) for source in path.parent.glob("*.go")))


def check_java():
    """Each pom, with what it has of its parent: Maven Central looks at both."""
    space = {"pom": "http://maven.apache.org/POM/4.0.0"}
    parent = xml.etree.ElementTree.parse(CLIENTS / "java/pom.xml").getroot()
    text = lambda pom, path: (pom.findtext(path, namespaces=space) or "").strip()
    required = ("pom:url", "pom:licenses/pom:license/pom:name", "pom:licenses/pom:license/pom:url", "pom:developers/pom:developer/pom:name", "pom:scm/pom:connection", "pom:scm/pom:developerConnection", "pom:scm/pom:url")
    for path in required:
        expect("clients/java/pom.xml", f"{path.replace('pom:', '')} is missing", text(parent, path))
    expect("clients/java/pom.xml", "another group", text(parent, "pom:groupId") == GROUP)
    for module, name in JAVA.items():
        place = f"clients/java/{module}/pom.xml"
        pom = xml.etree.ElementTree.parse(ROOT / place).getroot()
        expect(place, "another artifact", text(pom, "pom:artifactId") == name)
        for path in ("pom:name", "pom:description"):
            expect(place, f"{path.replace('pom:', '')} is missing", text(pom, path))
        for path in ("pom:groupId", "pom:artifactId", "pom:version"):
            expect(place, f"another parent: {path.replace('pom:', '')}", text(pom, f"pom:parent/{path}") == text(parent, path))
        expect(place, "a snapshot", "SNAPSHOT" not in text(parent, "pom:version"))


# --- Packages ------------------------------------------------------------------------------------------------------


def files_of(path):
    """{name: bytes} of a package; of a tarball without the folder that all are in."""
    if path.suffix in (".whl", ".jar"):
        with zipfile.ZipFile(path) as archive:
            return {name: archive.read(name) for name in archive.namelist()}
    with tarfile.open(path) as archive:
        return {member.name.partition("/")[2]: archive.extractfile(member).read() for member in archive if member.isfile()}


def expect_files(path, files, *names):
    for name in names:
        expect(path.name, f"{name} is missing", name in files)
    for name, content in files.items():
        if name.rsplit("/", 1)[-1] == "LICENSE":
            expect(path.name, f"{name} is another text", content == LICENCE_TEXT)


def check_crate(path, files):
    expect_files(path, files, "Cargo.toml", "LICENSE", "README.md", "src/lib.rs")
    manifest = tomllib.loads(files["Cargo.toml"].decode())
    expect_all(path.name, manifest["package"], name=NAME, license=LICENCE, repository=REPOSITORY)
    expect_all(path.name, manifest["lib"], name="concord_client")
    local = [name for name, one in manifest["dependencies"].items() if "path" in one]
    expect(path.name, f"dependencies by path: {local}", not local)


def check_metadata(path, text):
    metadata = email.message_from_bytes(text)
    for name, value in {"Name": NAME, "License-Expression": LICENCE, "License-File": "LICENSE"}.items():
        expect(path.name, f"{name} is {metadata[name]}", metadata[name] == value)
    for name in ("Summary", "Keywords", "Requires-Python", "Author"):
        expect(path.name, f"{name} is missing", metadata[name])
    expect(path.name, "the README is not the description", metadata.get_payload().startswith(f"# {NAME}"))


def check_wheel(path, files):
    folder = f"{NAME.replace('-', '_')}-{path.name.split('-')[1]}.dist-info"
    expect_files(path, files, "concord_client/__init__.py", "concord_client/py.typed", f"{folder}/METADATA", f"{folder}/licenses/LICENSE")
    check_metadata(path, files[f"{folder}/METADATA"])


def check_sdist(path, files):
    expect_files(path, files, "PKG-INFO", "LICENSE", "README.md", "pyproject.toml", "src/concord_client/py.typed")
    check_metadata(path, files["PKG-INFO"])


def check_npm(path, files):
    expect_files(path, files, "package.json", "LICENSE", "README.md")
    package = json.loads(files["package.json"])
    exported = [file for one in package["exports"].values() for file in one.values()]
    expect_files(path, files, *(file.removeprefix("./") for file in [*exported, package["types"]]))


def check_jar(path, files):
    kind = re.fullmatch(r".*-\d+\.\d+\.\d+(?:-(\w+))?", path.stem)[1]
    if kind == "sources":
        expect(path.name, "it has no source", any(name.endswith(".java") for name in files))
    elif kind == "javadoc":
        expect_files(path, files, "index.html")
    else:
        expect_files(path, files, "META-INF/LICENSE")
        expect(path.name, "it has no class", any(name.endswith(".class") for name in files))
        for other in ("sources", "javadoc"):
            expect(path.name, f"there is no jar of its {other}", path.with_name(f"{path.stem}-{other}.jar").exists())


KINDS = {".crate": check_crate, ".whl": check_wheel, ".tar.gz": check_sdist, ".tgz": check_npm, ".jar": check_jar}


def main():
    for name in sys.argv[1:]:
        path = pathlib.Path(name)
        kind = next(kind for ending, kind in KINDS.items() if name.endswith(ending))
        kind(path, files_of(path))
    if not sys.argv[1:]:
        for check in (check_rust, check_python, check_javascript, check_go, check_java):
            check()
    for text in wrong:
        print(f"publishable: {text}", file=sys.stderr)
    print(f"publishable: {len(sys.argv) - 1 or 'all'} {'packages' if sys.argv[1:] else 'manifests'}, {len(wrong)} things wrong")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
