package io.github.concordconfig.testing;

import io.github.concordconfig.client.ConcordClient;
import io.github.concordconfig.client.ConcordException;
import io.github.concordconfig.client.Query;
import java.io.IOException;
import java.net.ServerSocket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;
import java.util.stream.Stream;

/**
 * Three nodes of the program that {@code CONCORD_BIN} names, as processes that a test may kill and pause. They end with the
 * thread that starts them.
 */
final class Nodes implements AutoCloseable {
    static final Duration PATIENCE = Duration.ofSeconds(120);

    private final String program = Path.of(System.getenv("CONCORD_BIN")).toAbsolutePath().toString();
    private final Path home = Files.createTempDirectory("concord-java-");
    private final String key = "java-client-root-key-" + ProcessHandle.current().pid() + "-0123456789abcdef";
    private final boolean isTls;
    private final Map<Integer, String> api = new TreeMap<>(), peer = new TreeMap<>();
    private final Map<Integer, Process> processes = new HashMap<>();

    Nodes(boolean isTls) throws Exception {
        this.isTls = isTls;
        List<Integer> ports = freePorts();
        cert("ca");
        for (int n = 1; n <= 3; n++) {
            api.put(n, "127.0.0.1:" + ports.get(n - 1));
            peer.put(n, "127.0.0.1:" + ports.get(n + 2));
            cert("node", String.valueOf(n), "--host", "127.0.0.1");
        }
        if (isTls) {
            // The CA of clients is another one than that of the nodes.
            cert("ca", "--out", "callers");
            cert("node", "9", "--ca", "callers", "--out", "callers", "--host", "caller");
        }
        try {
            for (int n : api.keySet()) {
                start(n);
            }
            List<Map<String, Object>> members = new ArrayList<>();
            api.forEach((n, address) -> members.add(Map.of("id", n, "api_addr", address, "peer_addr", peer.get(n))));
            await("a cluster", () -> isDone(1, client -> client.request("POST", "/api/v1/cluster/init", Map.of("members", members), null, null)));
            waitReady();
        } catch (AssertionError error) {
            close();
            throw error;
        }
    }

    private static List<Integer> freePorts() throws IOException {
        List<ServerSocket> probes = new ArrayList<>();
        List<Integer> found = new ArrayList<>();
        for (int n = 0; n < 6; n++) {
            probes.add(new ServerSocket(0));
            found.add(probes.get(n).getLocalPort());
        }
        for (ServerSocket each : probes) {
            each.close();
        }
        return found;
    }

    private void cert(String... command) throws Exception {
        List<String> all = new ArrayList<>(List.of(program, "cert"));
        all.addAll(List.of(command));
        Process process = new ProcessBuilder(all).directory(home.toFile()).redirectOutput(ProcessBuilder.Redirect.DISCARD).start();
        if (process.waitFor() != 0) {
            throw new IllegalStateException(all + " failed");
        }
    }

    List<String> urls() {
        return api.keySet().stream().map(this::url).toList();
    }

    String url(int n) {
        return (isTls ? "https://" : "http://") + api.get(n);
    }

    Path home() {
        return home;
    }

    ConcordClient.Builder client() {
        ConcordClient.Builder builder = ConcordClient.builder().nodes(urls()).key(key).timeout(Duration.ofSeconds(10));
        Path callers = home.resolve("callers");
        return isTls ? builder.caFile(home.resolve("ca.pem")).certificate(callers.resolve("node-9.pem"), callers.resolve("node-9.key")) : builder;
    }

    void start(int n) throws IOException {
        ProcessBuilder builder = new ProcessBuilder("setpriv", "--pdeathsig", "KILL", "--", program, "serve");
        Map<String, String> variables = builder.environment();
        variables.keySet().removeIf(name -> name.startsWith("CONCORD_"));
        variables.put("CONCORD_NODE_ID", String.valueOf(n));
        variables.put("CONCORD_API_ADDR", api.get(n));
        variables.put("CONCORD_PEER_ADDR", peer.get(n));
        variables.put("CONCORD_DATA_DIR", home.resolve("data" + n).toString());
        variables.put("CONCORD_API_KEY", key);
        variables.put("CONCORD_PEER_CERT_FILE", home.resolve("node-" + n + ".pem").toString());
        variables.put("CONCORD_PEER_KEY_FILE", home.resolve("node-" + n + ".key").toString());
        variables.put("CONCORD_PEER_CA_FILE", home.resolve("ca.pem").toString());
        if (isTls) {
            variables.put("CONCORD_TLS_CERT_FILE", home.resolve("node-" + n + ".pem").toString());
            variables.put("CONCORD_TLS_KEY_FILE", home.resolve("node-" + n + ".key").toString());
            variables.put("CONCORD_TLS_CLIENT_CA_FILE", home.resolve("callers").resolve("ca.pem").toString());
        }
        Path log = home.resolve("node" + n + ".log");
        processes.put(n, builder.redirectErrorStream(true).redirectOutput(ProcessBuilder.Redirect.appendTo(log.toFile())).start());
    }

    void kill(int n) {
        Process process = processes.remove(n);
        if (process != null) {
            process.destroyForcibly().onExit().join();
        }
    }

    void pause(int n) throws Exception {
        signal(n, "-STOP");
    }

    void resume(int n) throws Exception {
        signal(n, "-CONT");
    }

    private void signal(int n, String signal) throws Exception {
        new ProcessBuilder("kill", signal, String.valueOf(processes.get(n).pid())).start().waitFor();
    }

    int leader() {
        int[] found = {0};
        await("a leader", () -> processes.keySet().stream().anyMatch(n -> isDone(n, client -> {
            int leader = client.cluster().path("leader_id").asInt();
            found[0] = processes.containsKey(leader) ? leader : 0;
        }) && found[0] > 0));
        return found[0];
    }

    void waitReady() {
        processes.keySet().forEach(n -> await("node " + n, () -> isDone(n, client -> client.listDefinitions(Query.all()).count())));
    }

    private interface Call {
        void on(ConcordClient client);
    }

    private boolean isDone(int n, Call call) {
        try (ConcordClient client = client().nodes(url(n)).timeout(Duration.ofSeconds(2)).build()) {
            call.on(client);
            return true;
        } catch (ConcordException error) {
            return false;
        }
    }

    static void await(String what, BooleanSupplier condition) {
        long end = System.nanoTime() + PATIENCE.toNanos();
        while (!condition.getAsBoolean()) {
            if (System.nanoTime() > end) {
                throw new AssertionError(what + ": not in time");
            }
            sleep(0.03);
        }
    }

    static void sleep(double seconds) {
        try {
            TimeUnit.NANOSECONDS.sleep((long) (seconds * 1e9));
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }

    @Override
    public void close() throws IOException {
        for (int n : List.copyOf(processes.keySet())) {
            kill(n);
        }
        try (Stream<Path> all = Files.walk(home)) {
            for (Path each : all.sorted(Comparator.reverseOrder()).toList()) {
                Files.deleteIfExists(each);
            }
        }
    }
}
