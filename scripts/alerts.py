"""Makes the condition of each alert true on real nodes, for metrics-test.py.

A fault lasts until Prometheus says that its alert fires, and is then taken back. Nothing is simulated: clocks are set by
libfaketime, disks are made to hang by strace, files are broken, nodes are stopped and killed. Where such a tool is
missing the fault says SKIPPED, and rules-test.yaml alone has fired its alert.

The faults run in the order of FAULTS: each leaves a cluster of three ready nodes without another alert than before.
"""

import json
import os
import pathlib
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time

from nodes import wait_for

DEFINITION = "/api/v1/config_definition/limits"
FAKETIME = [pathlib.Path(place) / "faketime" / "libfaketimeMT.so.1"
            for place in ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64")]


class Missing(Exception):
    """What a fault needs is not on this machine."""


class Strace:
    """Delays system calls as long as it is entered: of one thread of a process if it is named, else of all."""

    def __init__(self, pid, calls, delay, thread=None):
        if not shutil.which("strace"):
            raise Missing("strace")
        named = lambda task: (task / "comm").read_text().strip() == thread
        of = next(task.name for task in pathlib.Path(f"/proc/{pid}/task").iterdir() if named(task)) if thread else pid
        self.command = ["strace", *([] if thread else ["-f"]), "-qq", "-o", os.devnull, "-p", str(of), "-e", f"trace={calls}",
                        "-e", f"inject={calls}:delay_enter={delay}"]

    def __enter__(self):
        self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(0.5)
        assert self.process.poll() is None, f"strace ends: {self.command}"

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()


class Calls:
    """Callers that go on with one request each, as long as they are entered."""

    def __init__(self, count, call):
        self.is_over = threading.Event()
        self.threads = [threading.Thread(target=self.run, args=(call, n), daemon=True) for n in range(count)]

    def run(self, call, n):
        while not self.is_over.is_set():
            call(n)

    def __enter__(self):
        for thread in self.threads:
            thread.start()

    def __exit__(self, *_):
        self.is_over.set()
        for thread in self.threads:
            thread.join()


class Faults:
    """The faults of a cluster, one method each."""

    def __init__(self, cluster, prometheus):
        self.cluster, self.prometheus = cluster, prometheus

    def write(self, n, key="k", data=None, count=1):
        body = {"operations": [{"op": "put_config", "config_definition_key": "limits", "config_key": f"{key}{number}",
                                "data": data or {"n": number}, "upsert": True} for number in range(count)]}
        return self.cluster.call(n, "POST", "/api/v1/batch", body)

    def put(self, n, key, data):
        return self.cluster.call(n, "PUT", f"{DEFINITION}/config/{key}?upsert=true", {"data": data})

    def nodes(self):
        """The leader, and the others."""
        return sorted(self.cluster.api, key=lambda n: n != self.cluster.leader())

    def restart(self, n, **settings):
        before = self.cluster.settings.get(n, {})
        self.cluster.stop(n)
        self.cluster.settings[n] = {**before, **settings}
        self.cluster.start(n)
        self.cluster.settings[n] = before
        wait_for(lambda: self.cluster.is_ready(n), f"node {n} to be ready")

    def all_ready(self):
        wait_for(lambda: all(map(self.cluster.is_ready, self.cluster.api)), "all nodes to be ready")

    def certificate(self):
        # One of three days is a true alarm from the beginning; nothing else is wrong. What a volume will have in a day
        # can't be told from the first seconds of a test.
        self.prometheus.fires("ConcordCertificateEnds")
        wait_for(lambda: self.prometheus.firing() - {"ConcordDiskFillsUp"} == {"ConcordCertificateEnds"}, "no other alert")

    def leader_changes(self):
        for turn in range(7):
            target = self.nodes()[1]
            wait_for(lambda: self.cluster.call(target, "POST", "/api/v1/cluster/leader", {"id": target})[0] == 200, "another leader")
            wait_for(lambda: self.cluster.leader() == target, "the leader to be known")
            time.sleep(1)  # Prometheus sees the counter of each
        self.prometheus.fires("ConcordLeaderChanges")

    def open_files(self):
        n = self.nodes()[1]
        pid = self.cluster.processes[n].pid
        before = subprocess.run(["prlimit", f"--pid={pid}", "--nofile", "--output=SOFT", "--noheadings"],
                                check=True, capture_output=True, text=True).stdout.strip()
        limit = lambda soft: subprocess.run(["prlimit", f"--pid={pid}", f"--nofile={soft}:"], check=True)

        def is_firing():
            # The node has fewer files open when some of its connections have ended.
            limit(len(os.listdir(f"/proc/{pid}/fd")) + 2)
            return "ConcordOpenFiles" in self.prometheus.firing()

        wait_for(is_firing, "ConcordOpenFiles to fire")
        print("fires: ConcordOpenFiles")
        limit(before)
        self.prometheus.ceases("ConcordOpenFiles")

    def data_key(self):
        n = self.nodes()[2]
        file = pathlib.Path(self.cluster.data_keys[n])
        text = file.read_bytes()
        file.write_text("no keys\n")
        self.prometheus.fires("ConcordDataKey")
        file.write_bytes(text)
        self.prometheus.ceases("ConcordDataKey")

    def clock(self):
        library = next((place for place in FAKETIME if place.exists()), None)
        if not library:
            raise Missing("libfaketime")
        n, offset = self.nodes()[2], self.cluster.home / "clock"
        offset.write_text("+1h")
        self.restart(n, LD_PRELOAD=str(library), FAKETIME_TIMESTAMP_FILE=str(offset), FAKETIME_NO_CACHE="1",
                     DONT_FAKE_MONOTONIC="1", FAKETIME_DONT_FAKE_MONOTONIC="1")
        self.prometheus.fires("ConcordClock")
        self.restart(n)
        self.prometheus.ceases("ConcordClock")

    def audit(self):
        # The file has no room for another line, and the next one has no directory.
        n = self.nodes()[1]
        directory = self.cluster.home / f"data{n}" / "audit"
        directory.rename(directory.with_name("audit.away"))
        directory.write_text("no directory")
        with Calls(2, lambda caller: self.put(n, f"audit{caller}", {})):
            self.prometheus.fires("ConcordAuditFails")
        directory.unlink()
        directory.with_name("audit.away").rename(directory)
        self.restart(n)
        self.prometheus.ceases("ConcordAuditFails")

    def snapshot(self):
        n = self.nodes()[1]
        directory = self.cluster.home / f"data{n}" / "store" / "snapshot"
        directory.rename(directory.with_name("snapshot.away"))
        directory.write_text("no directory")
        data = {"text": "x" * (200 << 10)}
        with Calls(4, lambda caller: self.put(n, f"large{caller}", data)):
            self.prometheus.fires("ConcordSnapshotFailed")
        directory.unlink()
        directory.with_name("snapshot.away").rename(directory)
        self.restart(n)

    def memory(self):
        # Bodies of which the last byte does not come. Each is held three times.
        n = self.nodes()[1]
        host, port = self.cluster.api[n].split(":")
        body = json.dumps({"data": {"text": "x" * (20 << 10)}}).encode()
        head = (f"PUT {DEFINITION}/config/slow HTTP/1.1\r\nHost: {host}\r\nAuthorization: {self.cluster.key}\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n").encode()

        def hold():
            connection = self.cluster.trust.wrap_socket(socket.create_connection((host, int(port))), server_hostname=host)
            connection.sendall(head + body[:-1])
            return connection

        def refill():
            held.extend(hold() for _ in range(20))
            return "ConcordMemoryBudget" in self.prometheus.firing()

        held = []
        try:
            wait_for(refill, "ConcordMemoryBudget to fire")
            self.prometheus.fires("ConcordMemoryBudget")
        finally:
            for connection in held:
                connection.close()
        self.prometheus.ceases("ConcordMemoryBudget")

    def log(self):
        n = self.nodes()[2]
        with Strace(self.cluster.processes[n].pid, "fdatasync,fsync,sync_file_range", "30s"):
            with Calls(2, lambda caller: self.put(self.nodes()[0], f"log{caller}", {})):
                self.prometheus.fires("ConcordLogStalled")
        self.all_ready()
        self.prometheus.ceases("ConcordLogStalled")

    def slow_flush(self):
        n = self.nodes()[0]
        with Strace(self.cluster.processes[n].pid, "fdatasync,fsync,sync_file_range", "300ms"):
            with Calls(2, lambda caller: self.put(n, f"slow{caller}", {})):
                self.prometheus.fires("ConcordSlowFlush")
        log = (self.cluster.home / f"node{n}.log").read_text()
        assert "the disk is slow: " in log, "the log says so, too"
        self.prometheus.ceases("ConcordSlowFlush")

    def lag(self):
        n = self.nodes()[2]
        process = self.cluster.processes[n]
        process.send_signal(signal.SIGSTOP)
        leader = self.nodes()[0]
        with Calls(8, lambda caller: self.put(leader, f"lag{caller}", {})):
            self.prometheus.fires("ConcordMemberLags")
        process.send_signal(signal.SIGCONT)
        self.all_ready()
        self.prometheus.ceases("ConcordMemberLags")

    def store(self):
        # The log goes on: it has a thread of its own.
        n = self.nodes()[2]
        data = {"text": "x" * (900 << 10)}
        with Strace(self.cluster.processes[n].pid, "write,writev,pwrite64,fsync,fdatasync", "10s", "store"):
            with Calls(2, lambda caller: self.put(self.nodes()[0], f"store{caller}", data)):
                self.prometheus.fires("ConcordStoreBehind")
        self.all_ready()
        self.prometheus.ceases("ConcordStoreBehind")

    def rules(self, environment, **rules):
        status, body = self.cluster.call(1, "PUT", f"/api/v1/environment/{environment}", {"freeze": [], **rules})
        assert status in (200, 201), body

    def approvers(self):
        def attested(person):
            grants = [{"verbs": ["read", "approve"], "definitions": ["alerts.*"]}]
            _, body = self.cluster.call(1, "POST", "/api/v1/api_key/", {"name": person, "person": person, "grants": grants})
            return json.loads(body)["data"]["key_id"]

        keys = [attested(person) for person in ("ann", "bob")]
        self.rules("alerts", approvals=1)
        for key in keys:
            assert self.cluster.call(1, "DELETE", f"/api/v1/api_key/{key}")[0] == 200
        self.prometheus.fires("ConcordApproversMissing")
        self.rules("alerts", approvals=0)
        self.prometheus.ceases("ConcordApproversMissing")

    def change_waits(self):
        # A freeze keeps the cluster from applying what needs no approval, for more than a minute.
        definition = {"config_definition_key": "alerts.waits", "indexes": []}
        assert self.cluster.call(1, "POST", "/api/v1/config_definition/", definition)[0] == 201
        until = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3600))
        self.rules("alerts", freeze=[{"until": until, "reason": "a test"}])
        put = {"op": "put_config", "config_definition_key": "alerts.waits", "config_key": "k", "data": {}, "upsert": True}
        change = {"title": "a change", "operations": [put], "apply": "when_approved"}
        status, body = self.cluster.call(1, "POST", "/api/v1/change_request/", change)
        assert status == 201, body
        self.prometheus.fires("ConcordChangeWaits")
        self.rules("alerts")
        self.prometheus.ceases("ConcordChangeWaits")

    def nodes_down(self):
        first, second, third = self.nodes()
        self.cluster.kill(third)
        self.prometheus.fires("ConcordNodeDown", "ConcordMemberUnreachable")
        self.cluster.kill(second)
        # Without a majority every request waits for its time-out.
        with Calls(64, lambda caller: self.put(first, f"down{caller}", {})):
            self.prometheus.fires("ConcordNoLeader", "ConcordNodeNotReady", "ConcordErrors", "ConcordSlow")
        self.cluster.start(second)
        wait_for(lambda: self.cluster.is_ready(first), "a majority")
        self.prometheus.ceases("ConcordNoLeader")
        self.cluster.start(third)
        self.all_ready()
        self.prometheus.ceases("ConcordNodeDown", "ConcordMemberUnreachable")

    def disk(self):
        # No volume has so much free space.
        n = self.nodes()[2]
        self.restart(n, CONCORD_DISK_RESERVE_BYTES=str(1 << 60))
        self.prometheus.fires("ConcordDiskReserve", "ConcordDiskFillsUp", "ConcordWritesRefused")
        log = (self.cluster.home / f"node{n}.log").read_text()
        assert "writes other than deletes are rejected" in log and '"free_bytes":' in log, "the log says so, too"


# Those of the test command, and all. `lag` comes after `nodes_down`: of its many good requests the failed ones would be a
# small part for five minutes.
SHORT = ["certificate", "approvers", "leader_changes", "open_files", "data_key", "clock", "nodes_down", "disk"]
ALL = ["certificate", "approvers", "change_waits", "leader_changes", "open_files", "data_key", "clock", "audit", "memory", "nodes_down", "log", "slow_flush", "snapshot", "store",
       "lag", "disk"]


def run(cluster, prometheus, names):
    faults = Faults(cluster, prometheus)
    for name in names:
        begin = time.monotonic()
        try:
            getattr(faults, name)()
        except Missing as what:
            print(f"SKIPPED: {name}: no {what}")
            continue
        print(f"{name}: {time.monotonic() - begin:.0f} s", flush=True)
