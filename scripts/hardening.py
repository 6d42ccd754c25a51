#!/usr/bin/env python3
"""What the files in cluster/ restrict a node to: scripts/hardening.py

The systemd unit is held to `systemd-analyze verify` and to an exposure of at most 2.0 by `systemd-analyze security`, where
there is one, and the node has to see the files of its secrets change; the compose file and the Kubernetes manifests to the rules below, which for pods are those of the profile `restricted` of the Pod
Security Standards. Needs PyYAML. Prints what is wrong, and ends with 1 if anything is.
"""

import copy
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

CLUSTER = Path(__file__).resolve().parent.parent / "cluster"
EXPOSURE_MAX = "2.0"
ACCOUNT = 10001
# Names of settings whose value is a secret, and not the path of a file that holds one.
SECRETS = re.compile(r"^CONCORD_(API_KEY|CLUSTER_SECRET|DATA_KEY)$")


def unit_problems(text):
    settings = {}
    for line in text.splitlines():
        name, separator, value = line.strip().partition("=")
        if separator and not line.startswith("#"):
            settings.setdefault(name, []).append(value)
    for name, value in {
        "NoNewPrivileges": "yes",
        "CapabilityBoundingSet": "",
        "UMask": "0077",
        "LimitCORE": "0",
        "ProtectSystem": "strict",
        "RestrictAddressFamilies": "AF_INET AF_INET6",
        # The exit code of a wrong setting.
        "RestartPreventExitStatus": "2",
    }.items():
        if settings.get(name) != [value]:
            yield f"{name}={settings.get(name)} in place of {value!r}"
    for name in ("MemoryMax", "SystemCallFilter"):
        if not settings.get(name):
            yield f"{name} is not set"
    for name in ("LoadCredential", "LoadCredentialEncrypted", "SetCredential"):
        if settings.get(name):
            yield f"{name} makes a copy at the start, which does not change when a key or a certificate is replaced"
    for value in " ".join(settings.get("Environment", [])).split():
        name, _, path = value.partition("=")
        if SECRETS.match(name):
            yield f"a secret in the environment: {name}"
        if name.endswith("_FILE") and not path.startswith("/etc/concord/"):
            yield f"{name}={path} is not the file that operators replace"


def tmpfiles_problems(unit, tmpfiles):
    """Which of the files that the unit names its group may read, and nobody change."""
    lines = [line.split() for line in tmpfiles.splitlines() if line and not line.startswith("#")]
    named = {line[1]: line for line in lines}
    for path in re.findall(r"_FILE=(\S+)", unit):
        if path == "/etc/concord/revoked":
            continue
        if path not in named:
            yield f"{path}, which the unit names, has no line"
    for path, (kind, _, mode, owner, group, *_) in named.items():
        is_public = path.endswith(".pem")
        wanted = "2755" if path == "/etc/concord" else "0644" if is_public else "0640"
        if (kind, mode, owner, group) != ("z", wanted, "root", "concord"):
            yield f"{path}: {kind} {mode} {owner}:{group} in place of z {wanted} root:concord"


def analyzed_problems(path):
    """What systemd says of the unit."""
    command = ["systemd-analyze", "security", "--offline=true", f"--threshold={EXPOSURE_MAX.replace('.', '')}", path]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    overall = [line for line in ran.stdout.splitlines() if "Overall exposure" in line]
    print(*overall or [ran.stderr.strip()])
    if ran.returncode != 0 or not overall:
        yield f"systemd-analyze security is above {EXPOSURE_MAX}, or failed"


def verified_problems(unit):
    """What systemd does not understand in the unit. It reports an unknown setting, and succeeds all the same."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "concord.service"
        # It looks for the program, too, which is not installed here.
        path.write_text(re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", unit, flags=re.MULTILINE))
        command = ["systemd-analyze", "verify", "--man=no", str(path)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
    own = [line for line in ran.stderr.splitlines() if "concord.service" in line]
    if ran.returncode != 0 or own:
        yield f"systemd-analyze verify: {'; '.join(own) or ran.stderr.strip()}"


def compose_problems(document):
    services = document.get("services", {})
    if len(services) != 3:
        yield f"{len(services)} services"
    for name, service in services.items():
        def wrong(what, name=name):
            return f"{name}: {what}"

        if service.get("read_only") is not True:
            yield wrong("its root is writable")
        if service.get("cap_drop") != ["ALL"] or service.get("cap_add"):
            yield wrong("it has capabilities")
        if "no-new-privileges:true" not in service.get("security_opt", []):
            yield wrong("it may gain privileges")
        if service.get("privileged") or service.get("network_mode") == "host" or service.get("pid"):
            yield wrong("it shares what is the host's")
        if str(service.get("user", "")).split(":")[0] != str(ACCOUNT):
            yield wrong("another account than the image's")
        ulimits = service.get("ulimits", {})
        if ulimits.get("core") != 0 or ulimits.get("nofile") != 65536:
            yield wrong("its limits of cores and files")
        if not service.get("mem_limit") or not service.get("pids_limit"):
            yield wrong("its memory or processes are not limited")
        yield from (wrong(text) for text in image_problems(service.get("image", "")))
        for port in service.get("ports", []):
            if not str(port).startswith("127.0.0.1:"):
                yield wrong(f"the port {port} is reached from elsewhere")
        for variable in service.get("environment", {}):
            if SECRETS.match(variable):
                yield wrong(f"a secret in the environment: {variable}")


def image_problems(image):
    tag = image.rpartition(":")[2] if ":" in image.rpartition("/")[2] else ""
    if "@sha256:" not in image and tag in ("", "latest"):
        yield f"the image {image!r} names no release"


def dockerfile_problems(text):
    for image in re.findall(r"^FROM\s+(\S+)", text, re.MULTILINE):
        yield from image_problems(image)
    users = re.findall(r"^USER\s+(\S+)", text, re.MULTILINE)
    if users != [f"{ACCOUNT}:{ACCOUNT}"]:
        yield f"the account of the image is {users}"


def kubernetes_problems(documents):
    by_kind = {}
    for document in documents:
        by_kind.setdefault(document["kind"], []).append(document)
    for kind in ("Namespace", "ServiceAccount", "PodDisruptionBudget", "NetworkPolicy", "StatefulSet"):
        if len(by_kind.get(kind, [])) != 1:
            yield f"{len(by_kind.get(kind, []))} of kind {kind}"
            return
    labels = by_kind["Namespace"][0]["metadata"].get("labels", {})
    if labels.get("pod-security.kubernetes.io/enforce") != "restricted":
        yield "the namespace does not enforce the profile `restricted`"
    nodes = by_kind["StatefulSet"][0]["spec"]
    headless = [service for service in by_kind.get("Service", []) if service["spec"].get("clusterIP") == "None"]
    if [service["metadata"]["name"] for service in headless] != [nodes["serviceName"]]:
        yield "there is no headless service of the nodes"
    elif headless[0]["spec"].get("publishNotReadyAddresses") is not True:
        yield "nodes that are not ready have no names"
    if by_kind["PodDisruptionBudget"][0]["spec"].get("maxUnavailable") != 1:
        yield "more than one node may be taken at once"
    yield from pod_problems(nodes["template"]["spec"])
    for job in by_kind.get("Job", []):
        name = job["metadata"]["name"]
        yield from (f"{name}: {text}" for text in pod_problems(job["spec"]["template"]["spec"], serves=False))


def pod_problems(pod, serves=True):
    """The profile `restricted`, and what goes beyond it. A pod that serves has probes."""
    for name in ("hostNetwork", "hostPID", "hostIPC"):
        if pod.get(name):
            yield f"{name} is set"
    if pod.get("automountServiceAccountToken") is not False:
        yield "a token of the API server is mounted"
    shared = pod.get("securityContext", {})
    if shared.get("sysctls"):
        yield "it sets sysctls"
    allowed = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
    for volume in pod.get("volumes", []):
        if not set(volume) - {"name"} <= allowed:
            yield f"the volume {volume['name']} is of a kind that is not allowed"
        if volume.get("secret", {}).get("defaultMode", 0o644) & 0o007:
            yield f"others may read the secret {volume['name']}"
    for container in [*pod.get("initContainers", []), *pod["containers"]]:
        def wrong(what, name=container["name"]):
            return f"{name}: {what}"

        own = container.get("securityContext", {})
        both = {**shared, **own}
        if own.get("privileged"):
            yield wrong("it is privileged")
        if own.get("allowPrivilegeEscalation") is not False:
            yield wrong("it may gain privileges")
        if own.get("capabilities", {}) != {"drop": ["ALL"]}:
            yield wrong("it has capabilities")
        if own.get("readOnlyRootFilesystem") is not True:
            yield wrong("its root is writable")
        if both.get("runAsNonRoot") is not True or both.get("runAsUser") != ACCOUNT:
            yield wrong("it may run as root, or not as the account of the image")
        if both.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"):
            yield wrong("its system calls are not filtered")
        if both.get("procMount", "Default") != "Default" or any(
            port.get("hostPort") for port in container.get("ports", [])
        ):
            yield wrong("it shares what is the host's")
        if "memory" not in container.get("resources", {}).get("limits", {}):
            yield wrong("its memory is not limited")
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            if serves and probe not in container:
                yield wrong(f"there is no {probe}")
        yield from (wrong(text) for text in image_problems(container["image"]))
        for variable in container.get("env", []):
            if SECRETS.match(variable["name"]):
                yield wrong(f"a secret in the environment: {variable['name']}")


def blind_spots(unit, tmpfiles, compose, documents):
    """Each restriction taken away: the checks above must see it."""
    for line in (
        "NoNewPrivileges=yes",
        "UMask=0077",
        "LimitCORE=0",
        "CapabilityBoundingSet=\n",
        "ProtectSystem=strict",
        "RestartPreventExitStatus=2",
    ):
        if not list(unit_problems(unit.replace(line, ""))):
            yield f"the unit without {line.strip()!r}"
    if not list(unit_problems(unit.replace("=/etc/concord/node.key", "=%d/node.key"))):
        yield "the unit with a copy of a key"
    for line in tmpfiles.splitlines():
        if line.startswith("z ") and not list(tmpfiles_problems(unit, tmpfiles.replace(line, line.replace("root", "nobody")))):
            yield f"another owner in {line!r}"
    if shutil.which("systemd-analyze") and not list(verified_problems(unit.replace("RestartSec=", "RestartSecs="))):
        yield "a setting that systemd does not know"
    for name in ("read_only", "cap_drop", "security_opt", "ulimits", "user", "mem_limit"):
        changed = copy.deepcopy(compose)
        del changed["services"]["node2"][name]
        if not list(compose_problems(changed)):
            yield f"the compose file without {name}"
    for container in (False, True):
        pod = [one for one in documents if one["kind"] == "StatefulSet"][0]["spec"]["template"]["spec"]
        context = (pod["containers"][0] if container else pod)["securityContext"]
        for name in context:
            if name in ("runAsGroup", "fsGroup", "fsGroupChangePolicy"):
                continue
            changed = copy.deepcopy(pod)
            del (changed["containers"][0] if container else changed)["securityContext"][name]
            if not list(pod_problems(changed)):
                yield f"the pod without {name}"


def main():
    path = CLUSTER / "concord.service"
    unit = path.read_text()
    tmpfiles = (CLUSTER / "tmpfiles.conf").read_text()
    compose = yaml.safe_load((CLUSTER / "compose.yaml").read_text())
    documents = list(yaml.safe_load_all((CLUSTER / "kubernetes.yaml").read_text()))
    problems = [f"{path.name}: {text}" for text in unit_problems(unit)]
    problems += [f"tmpfiles.conf: {text}" for text in tmpfiles_problems(unit, tmpfiles)]
    if shutil.which("systemd-analyze"):
        problems += [f"{path.name}: {text}" for text in verified_problems(unit)]
        problems += [f"{path.name}: {text}" for text in analyzed_problems(str(path))]
    else:
        print("SKIPPED what systemd says of the unit: there is no systemd-analyze", file=sys.stderr)
    problems += [f"compose.yaml: {text}" for text in compose_problems(compose)]
    problems += [f"Dockerfile: {text}" for text in dockerfile_problems((CLUSTER / "Dockerfile").read_text())]
    problems += [f"kubernetes.yaml: {text}" for text in kubernetes_problems(documents)]
    problems += [f"hardening.py does not see {text}" for text in blind_spots(unit, tmpfiles, compose, documents)]
    for problem in problems:
        print(problem, file=sys.stderr)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
