#!/usr/bin/env python3
"""A real Prometheus reads three nodes: every panel of the dashboard has data, and alerts fire when they should.

The nodes speak TLS to callers with a certificate that ends soon, so that its alert is true. The rules are those of
cluster/monitoring, with their waits shortened to a second; rules-test.yaml fires all of them with their real waits in
simulated time, and this script checks that it forgets none. The condition of each is made true on real nodes by alerts.py:
of most of them always, of all with --all, of some where they are named.

CONCORD_BIN names the binary.
"""

import json
import os
import pathlib
import re
import ssl
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.parse
import urllib.request

import alerts
from nodes import free_ports, wait_for

ROOT = pathlib.Path(__file__).resolve().parent.parent
MONITORING = ROOT / "cluster" / "monitoring"
BINARY = os.environ.get("CONCORD_BIN", str(ROOT / "target" / "debug" / "concord"))
KEY = "metrics-test-root-key-0123456789abcdef"


class Cluster:
    """Three nodes with certificates, and a listener of metrics each."""

    def __init__(self, home):
        self.home, self.processes, self.settings = home, {}, {}
        ports = free_ports(9)
        self.api, self.peer, self.metrics = (
            {n: f"127.0.0.1:{ports[3 * kind + n - 1]}" for n in (1, 2, 3)} for kind in range(3)
        )
        run = lambda *command: subprocess.run([BINARY, "cert", *command], cwd=home, check=True, stdout=subprocess.DEVNULL)
        run("ca")
        self.key, self.data_keys = KEY, {n: home / f"data-keys{n}" for n in self.api}
        for n in self.api:
            run("node", str(n), "--host", "127.0.0.1", "--days", "3")
            keygen = [BINARY, "keygen", "data", "--out", str(self.data_keys[n])]
            subprocess.run(keygen, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.trust = ssl.create_default_context(cafile=str(home / "ca.pem"))

    def start(self, n):
        env = {
            **os.environ, "CONCORD_NODE_ID": str(n), "CONCORD_API_ADDR": self.api[n], "CONCORD_PEER_ADDR": self.peer[n],
            "CONCORD_METRICS_ADDR": self.metrics[n], "CONCORD_DATA_DIR": str(self.home / f"data{n}"),
            "CONCORD_API_KEY": KEY, "CONCORD_LOG_FORMAT": "json",
            "CONCORD_TLS_CERT_FILE": str(self.home / f"node-{n}.pem"), "CONCORD_TLS_KEY_FILE": str(self.home / f"node-{n}.key"),
            "CONCORD_PEER_CERT_FILE": str(self.home / f"node-{n}.pem"), "CONCORD_PEER_KEY_FILE": str(self.home / f"node-{n}.key"),
            "CONCORD_PEER_CA_FILE": str(self.home / "ca.pem"), "CONCORD_DATA_KEY_FILE": str(self.data_keys[n]),
            # Small, so that a test fills them.
            "CONCORD_IN_FLIGHT_BYTES": str(32 << 20), "CONCORD_AUDIT_FILE_BYTES": "4096", "CONCORD_SNAPSHOT_LOG_BYTES": str(4 << 20),
            # A log that hangs for the alert's 5 s is no reason to end.
            "CONCORD_LOG_STALL_TIMEOUT_MS": "120000", **self.settings.get(n, {}),
        }
        log = open(self.home / f"node{n}.log", "ab")
        self.processes[n] = subprocess.Popen([BINARY, "serve"], env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def kill(self, n):
        self.processes[n].kill()
        self.processes[n].wait()

    def stop(self, n):
        self.processes[n].terminate()
        self.processes[n].wait()

    def end(self):
        for n, process in self.processes.items():
            if process.poll() is None:
                self.kill(n)

    def call(self, n, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"https://{self.api[n]}{path}", data, method=method)
        request.add_header("Authorization", KEY)
        request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=30, context=self.trust) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except (urllib.error.URLError, ConnectionError, TimeoutError) as error:
            return 0, str(error)

    def is_ready(self, n):
        return self.call(n, "GET", "/readyz")[0] == 200

    def form(self):
        for n in self.api:
            self.start(n)
        wait_for(lambda: all(self.call(n, "GET", "/livez")[0] == 200 for n in self.api), "the nodes to start")
        members = [{"id": n, "api_addr": self.api[n], "peer_addr": self.peer[n]} for n in self.api]
        status, body = self.call(1, "POST", "/api/v1/cluster/init", {"members": members})
        assert status == 200, body
        wait_for(lambda: all(map(self.is_ready, self.api)), "the nodes to be ready")

    def leader(self):
        return wait_for(lambda: json.loads(self.call(1, "GET", "/api/v1/cluster")[1])["data"]["leader_id"], "a leader")


class Load:
    """Callers that write to and read from each node, as long as it is entered: so many that writes wait for each other."""

    CALLERS = 12

    def __init__(self, cluster):
        self.cluster, self.is_over = cluster, threading.Event()
        self.threads = [threading.Thread(target=self.run, args=(caller,)) for caller in range(self.CALLERS)]

    def run(self, caller):
        path, n = "/api/v1/config_definition/limits/config/", 0
        while not self.is_over.wait(0.05):
            n += 1
            self.cluster.call(n % 3 + 1, "POST", path, {"config_key": f"k{caller}.{n}", "data": {"n": n}})
            self.cluster.call(n % 3 + 1, "GET", f"{path}k{caller}.{n}")

    def __enter__(self):
        for thread in self.threads:
            thread.start()

    def __exit__(self, *_):
        self.is_over.set()
        for thread in self.threads:
            thread.join()


class Prometheus:
    """Reads the nodes each second, with the waits of the rules shortened."""

    def __init__(self, home, targets):
        rules = (MONITORING / "rules.yaml").read_text()
        (home / "rules.yaml").write_text(re.sub(r"^( +for:) .*$", r"\1 1s", rules, flags=re.M))
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"}, "rule_files": ["rules.yaml"],
            "scrape_configs": [{"job_name": "concord", "static_configs": [{"targets": targets}]}],
        }
        # JSON is YAML.
        (home / "prometheus.yaml").write_text(json.dumps(config))
        self.address = f"127.0.0.1:{free_ports(1)[0]}"
        log = open(home / "prometheus.log", "ab")
        self.process = subprocess.Popen(
            ["prometheus", f"--config.file={home}/prometheus.yaml", f"--storage.tsdb.path={home}/tsdb",
             f"--web.listen-address={self.address}"], stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def ask(self, path, **query):
        try:
            with urllib.request.urlopen(f"http://{self.address}{path}?{urllib.parse.urlencode(query)}", timeout=30) as answer:
                return json.loads(answer.read())["data"]
        except urllib.error.HTTPError as error:
            if error.code == 503:
                return None  # it is starting
            sys.exit(f"metrics-test.py: {query}: {error.read().decode()}")
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return None

    def samples(self, query):
        found = self.ask("/api/v1/query", query=query)
        return found["result"] if found else []

    def firing(self):
        return {one["metric"]["alertname"] for one in self.samples('ALERTS{alertstate="firing"}')}

    def fires(self, *names):
        wait_for(lambda: set(names) <= self.firing(), f"{', '.join(names)} to fire")
        print(f"fires: {', '.join(names)}")

    def ceases(self, *names):
        wait_for(lambda: not set(names) & self.firing(), f"{', '.join(names)} to cease")


def alerts_of(path):
    return set(re.findall(r"alert: (\w+)", path.read_text()))


def check_texts():
    """Each alert is fired by rules-test.yaml and described on the page."""
    alerts = alerts_of(MONITORING / "rules.yaml")
    fired = set(re.findall(r'alertname="(\w+)",alertstate="firing",severity', (MONITORING / "rules-test.yaml").read_text()))
    page = set(re.findall(r"`(Concord\w+)`", (ROOT / "docs" / "operations" / "monitoring.md").read_text()))
    assert alerts == fired, f"alerts that rules-test.yaml does not know, or the other way round: {alerts ^ fired}"
    assert alerts == page, f"alerts that docs/operations/monitoring.md does not know, or the other way round: {alerts ^ page}"


def queries():
    """(title of the panel, query) of the dashboard."""
    for panel in json.loads((MONITORING / "grafana.json").read_text())["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"].replace("$__rate_interval", "30s").replace("$instance", ".*")


def check_dashboard(prometheus):
    every = list(queries())
    assert len(every) > 30, "the dashboard has panels"
    for title, query in every:
        is_number = lambda one: one["value"][1] != "NaN"
        wait_for(lambda: any(map(is_number, prometheus.samples(query))), f"the panel `{title}` to have data: {query}")
    print(f"{len(every)} queries of the dashboard have data")


def main():
    check_texts()
    with tempfile.TemporaryDirectory(prefix="concord-metrics-") as directory:
        home = pathlib.Path(directory)
        cluster, prometheus = Cluster(home), None
        try:
            cluster.form()
            prometheus = Prometheus(home, list(cluster.metrics.values()))
            create = {"config_definition_key": "limits", "indexes": []}
            status, text = cluster.call(1, "POST", "/api/v1/config_definition/", create)
            assert status == 201, text
            wait_for(lambda: len(prometheus.samples('up{job="concord"} == 1')) == 3, "Prometheus to read three nodes")
            with Load(cluster):
                check_dashboard(prometheus)
            names = alerts.ALL if sys.argv[1:] == ["--all"] else sys.argv[1:] or alerts.SHORT
            alerts.run(cluster, prometheus, names)
        finally:
            if prometheus:
                prometheus.end()
            cluster.end()
    print("metrics-test.py: all as it should be")


if __name__ == "__main__":
    main()
