"""The pods of the Kubernetes manifests, run without Kubernetes: scripts/pods-test.py MANIFESTS IMAGE DIRECTORY

Each pod of the StatefulSet, and each job, runs as the manifests say: the image's own command with the arguments, the
environment and the mounts of the container, as its account, without capabilities, on a root that it can't write. Each has
a network of its own with an address, and finds the others by the names that the headless service gives them. IMAGE is the
unpacked file system of the image, DIRECTORY one for volumes and logs. Needs root, PyYAML and iproute2.

Checked: the three form a cluster without hands; every startup and readiness probe succeeds; a pod that is replaced comes
back with its volume; with one pod gone writes go on; the job applied again finds the cluster formed.
"""

import base64
import contextlib
import json
import os
import pathlib
import secrets
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request

import yaml

DEADLINE_S = 120
NETWORK = "10.213.71"


def run(*command, **options):
    return subprocess.run([str(part) for part in command], check=True, text=True, **options)


def eventually(what, check):
    """Calls `check` until it returns something true."""
    deadline, last = time.monotonic() + DEADLINE_S, None
    while time.monotonic() < deadline:
        try:
            result = check()
            if result:
                return result
        except (OSError, subprocess.CalledProcessError, AssertionError) as error:
            last = error
        time.sleep(0.2)
    raise SystemExit(f"pods-test.py: {what}: not within {DEADLINE_S} s: {last}")


class Pods:
    """The pods, and what they share: the bridge between their networks, their names, the secrets."""

    def __init__(self, manifests, image, directory):
        self.documents = list(yaml.safe_load_all(manifests.read_text()))
        self.image, self.directory = image, directory
        self.directory.mkdir(parents=True)
        # The account of the pods reaches its volumes through it.
        self.directory.chmod(0o711)
        self.bridge = f"cb{os.getpid() % 100000}"
        self.spaces, self.running = [], {}
        self.set = self.only("StatefulSet")["spec"]
        self.namespace = self.only("StatefulSet")["metadata"]["namespace"]
        start = self.set["ordinals"]["start"]
        self.numbers = list(range(start, start + self.set["replicas"]))
        service = self.set["serviceName"]
        name = self.only("StatefulSet")["metadata"]["name"]
        hosts = ["127.0.0.1 localhost"]
        for number in self.numbers:
            pod = f"{name}-{number}"
            hosts.append(f"{NETWORK}.{number} {pod}.{service}.{self.namespace}.svc {pod}")
        self.hosts = directory / "hosts"
        self.hosts.write_text("\n".join(hosts) + "\n")
        self.names = {number: f"{name}-{number}.{service}.{self.namespace}.svc" for number in self.numbers}

    def only(self, kind):
        found = [document for document in self.documents if document["kind"] == kind]
        assert len(found) == 1, f"{len(found)} of kind {kind}"
        return found[0]

    def make_secrets(self):
        """What the head of the manifests tells to make before."""
        program = self.image / "usr/local/bin/concord"
        made = self.directory / "made"
        run(program, "cert", "ca", "--cluster", "pods.example", "--out", made, stdout=subprocess.DEVNULL)
        for number in self.numbers:
            run(program, "cert", "node", number, "--ca", made, "--out", made, "--host", self.names[number],
                "--host", f"{NETWORK}.{number}", stdout=subprocess.DEVNULL)
        (made / "root.key").write_text(base64.b64encode(secrets.token_bytes(24)).decode() + "\n")
        self.key = (made / "root.key").read_text().strip()
        (made / "revoked").touch()
        contents = {
            "concord-secrets": ["root.key", "revoked"],
            "concord-certificates": ["ca.pem"] + [f"node-{n}.{end}" for n in self.numbers for end in ("pem", "key")],
        }
        self.secrets = {}
        for secret, files in contents.items():
            folder = self.directory / secret
            folder.mkdir()
            for name in files:
                (folder / name).write_bytes((made / name).read_bytes())
            self.secrets[secret] = folder

    def make_networks(self):
        run("ip", "link", "add", self.bridge, "type", "bridge")
        run("ip", "addr", "add", f"{NETWORK}.254/24", "dev", self.bridge)
        run("ip", "link", "set", self.bridge, "up")
        for number in [*self.numbers, 200]:
            space = f"{self.bridge}-{number}"
            run("ip", "netns", "add", space)
            self.spaces.append(space)
            outer, inner = f"{self.bridge}o{number}", f"{self.bridge}i{number}"
            run("ip", "link", "add", outer, "type", "veth", "peer", "name", inner)
            run("ip", "link", "set", inner, "netns", space)
            run("ip", "link", "set", outer, "master", self.bridge, "up")
            run("ip", "-n", space, "addr", "add", f"{NETWORK}.{number}/24", "dev", inner)
            run("ip", "-n", space, "link", "set", inner, "up")
            run("ip", "-n", space, "link", "set", "lo", "up")

    def remove_networks(self):
        for space in self.spaces:
            subprocess.run(["ip", "netns", "delete", space], check=False)
        subprocess.run(["ip", "link", "delete", self.bridge], check=False, stderr=subprocess.DEVNULL)

    def environment(self, container, number):
        environment = {}
        for variable in container.get("env", []):
            if "value" in variable:
                environment[variable["name"]] = variable["value"]
            else:
                field = variable["valueFrom"]["fieldRef"]["fieldPath"]
                assert field == "metadata.labels['apps.kubernetes.io/pod-index']", field
                environment[variable["name"]] = str(number)
        return environment

    def command(self, name, spec, number, volumes):
        """The command that runs the one container of a pod."""
        (container,) = spec["containers"]
        account = {**spec["securityContext"], **container["securityContext"]}
        user, group = account["runAsUser"], account["runAsGroup"]
        assert account["readOnlyRootFilesystem"] and account["capabilities"] == {"drop": ["ALL"]}
        environment = self.environment(container, number)
        root = self.directory / name / "root"
        upper, work = self.directory / name / "upper", self.directory / name / "work"
        for folder in (root, upper, work):
            folder.mkdir(parents=True, exist_ok=True)
        lines = ["set -e", "mount --make-rprivate /",
                 f"mount -t overlay -o lowerdir={self.image},upperdir={upper},workdir={work} overlay {root}",
                 f"touch {root}/etc/hosts", f"mount --bind {self.hosts} {root}/etc/hosts"]
        for place in container["volumeMounts"]:
            path = place.get("subPathExpr", place.get("subPath", ""))
            for variable, value in environment.items():
                path = path.replace(f"$({variable})", value)
            source = volumes[place["name"]] / path
            target = f"{root}{place['mountPath']}"
            make = f"mkdir -p {target}" if source.is_dir() else f"mkdir -p $(dirname {target}); touch {target}"
            lines += [make, f"mount --bind {source} {target}"]
            if place.get("readOnly"):
                lines.append(f"mount -o remount,bind,ro {target}")
        lines += [f"mount -t proc proc {root}/proc", f"mount -o remount,ro {root}",
                  f"cd {root}; exec chroot . setpriv --reuid {user} --regid {group} --clear-groups --no-new-privs "
                  "--bounding-set=-all --inh-caps=-all env -i PATH=/usr/local/bin:/usr/bin:/bin "
                  '"$@"']
        assigned = [f"{variable}={value}" for variable, value in environment.items()]
        return ["ip", "netns", "exec", f"{self.bridge}-{number}", "unshare", "--mount", "--pid", "--fork", "--kill-child",
                "sh", "-c", "\n".join(lines), name, *assigned, "concord", *container["args"]]

    def volumes(self, spec, number, group):
        """The volumes of a pod, with the modes that the kubelet gives them."""
        found = {}
        for volume in spec.get("volumes", []):
            secret = volume["secret"]
            folder = self.secrets[secret["secretName"]]
            for file in folder.iterdir():
                os.chown(file, 0, group)
                file.chmod(secret["defaultMode"])
            found[volume["name"]] = folder
        for claim in self.set["volumeClaimTemplates"]:
            folder = self.directory / f"{claim['metadata']['name']}-{number}"
            folder.mkdir(exist_ok=True)
            os.chown(folder, 0, group)
            folder.chmod(0o2770)
            found[claim["metadata"]["name"]] = folder
        return found

    def start(self, number):
        spec = self.set["template"]["spec"]
        volumes = self.volumes(spec, number, spec["securityContext"]["fsGroup"])
        command = self.command(f"pod-{number}", spec, number, volumes)
        log = (self.directory / f"pod-{number}.log").open("ab")
        self.running[number] = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def stop(self, number, sent=signal.SIGTERM):
        """Ends the program in the pod, as the kubelet does; the processes around it end with it."""
        pod = self.running.pop(number)
        inner = pathlib.Path(f"/proc/{pod.pid}/task/{pod.pid}/children").read_text().split()
        for process in inner:
            os.kill(int(process), sent)
        status = pod.wait(timeout=DEADLINE_S)
        assert sent != signal.SIGTERM or status == 0, f"pod {number} ended with {status}"

    def job(self, document):
        """Runs a job until a pod of it succeeds, as its policy says; returns how many it took."""
        spec = document["spec"]["template"]["spec"]
        assert spec["restartPolicy"] == "OnFailure"
        volumes = self.volumes(spec, 200, spec["securityContext"]["fsGroup"])
        command = self.command("job", spec, 200, volumes)
        deadline = time.monotonic() + DEADLINE_S
        for tries in range(1, document["spec"]["backoffLimit"] + 1):
            ran = subprocess.run(command, capture_output=True, text=True, check=False)
            if ran.returncode == 0:
                return tries
            if time.monotonic() > deadline:
                break
            time.sleep(1)
        raise SystemExit(f"pods-test.py: the job does not succeed: {ran.stdout}{ran.stderr}")

    def probe(self, number, name):
        (container,) = self.set["template"]["spec"]["containers"]
        get = container[name]["httpGet"]
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        # The kubelet does not check the certificate.
        url = f"{get['scheme'].lower()}://{NETWORK}.{number}:{ports[get['port']]}{get['path']}"
        trusted = ssl.create_default_context()
        trusted.check_hostname, trusted.verify_mode = False, ssl.CERT_NONE
        with urllib.request.urlopen(url, timeout=5, context=trusted) as answer:
            return answer.status == 200

    def ask(self, number, path, body=None, method=None):
        trusted = ssl.create_default_context(cafile=self.directory / "made/ca.pem")
        url = f"https://{NETWORK}.{number}:8100/api/v1/{path}"
        headers = {"Authorization": self.key, "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data=data, headers=headers, method=method)
        with urllib.request.urlopen(request, timeout=30, context=trusted) as answer:
            return json.load(answer)["data"]


def check(pods):
    # The pods start in no order, and the job before them.
    jobs = [document for document in pods.documents if document["kind"] == "Job"]
    for number in reversed(pods.numbers):
        pods.start(number)
    for number in pods.numbers:
        eventually(f"pod {number} lives", lambda number=number: pods.probe(number, "startupProbe"))
    tries = [pods.job(job) for job in jobs]
    for number in pods.numbers:
        eventually(f"pod {number} is ready", lambda number=number: pods.probe(number, "readinessProbe"))
    formed = pods.ask(pods.numbers[0], "cluster")
    assert [member["id"] for member in formed["members"]] == pods.numbers, formed
    print(f"   {len(pods.numbers)} pods formed a cluster; tries of the jobs: {tries}")

    pods.ask(1, "config_definition/", {"config_definition_key": "limits", "json_schema": {}})
    pods.ask(2, "config_definition/limits/config/", {"config_key": "acme", "data": {"plan": "pro"}})
    # A pod is replaced: with its volume it is the member that it was. Meanwhile the two others take writes.
    pods.stop(2)
    eventually("two pods take a write",
               lambda: pods.ask(3, "config_definition/limits/config/acme", {"data": {"plan": "free"}}, "PUT"))
    pods.start(2)
    eventually("pod 2 is ready again", lambda: pods.probe(2, "readinessProbe"))
    read = pods.ask(2, "config_definition/limits/config/acme")
    assert read["data"] == {"plan": "free"}, read
    for job in jobs:
        pods.job(job)
    again = pods.ask(2, "cluster")
    assert again["cluster_id"] == formed["cluster_id"], (formed, again)
    written = [path for number in pods.numbers for path in (pods.directory / f"pod-{number}/upper").rglob("*")
               if path.is_file() and path.stat().st_size > 0]
    assert not written, f"a pod wrote outside its volume: {written}"
    for number in list(pods.running):
        pods.stop(number)


def main():
    manifests, image, directory = (pathlib.Path(text).resolve() for text in sys.argv[1:])
    pods = Pods(manifests, image, directory)
    try:
        pods.make_secrets()
        pods.make_networks()
        check(pods)
    except BaseException:
        for log in sorted(directory.glob("pod-*.log")):
            print(f"{log.name}:", *log.read_text(errors="replace").splitlines()[-15:], sep="\n  ", file=sys.stderr)
        raise
    finally:
        for pod in pods.running.values():
            with contextlib.suppress(OSError):
                pod.kill()
            pod.wait()
        pods.remove_networks()


if __name__ == "__main__":
    main()
