package io.github.concordconfig.client;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.function.Function;

/** Nodes that a test plays: their responses are made by a function, or from configs and their changes. */
final class PlayedNodes implements Wire {
    static final String NODES = "http://a:1,http://b:2,http://c:3";
    static final String AT = "2026-11-23T00:00:00.000000Z";

    /** A copy of a request, with its node. */
    record Sent(String node, Request request) {
        String query(String name) {
            return Environment.pairs(request.target()).stream().filter(pair -> pair.startsWith(name + "="))
                    .map(pair -> pair.substring(name.length() + 1)).findFirst().orElse(null);
        }

        JsonNode body() {
            return Cases.json(new String(request.body(), StandardCharsets.UTF_8));
        }
    }

    final List<Sent> sent = new CopyOnWriteArrayList<>();
    final List<JsonNode> reports = new CopyOnWriteArrayList<>();
    Function<Sent, Reply> answer = this::answer;

    // What the nodes have.
    final Map<String, JsonNode> configs = new TreeMap<>();
    final Map<String, ObjectNode> more = new HashMap<>();
    private final List<JsonNode> events = new ArrayList<>();
    volatile long revision = 10, compacted;
    volatile String cluster = "one";
    volatile boolean isDown, isForbidden, hasNoWatch, mayReport = true;

    PlayedNodes() {
        configs.put("a", Cases.json("{\"n\":1}"));
    }

    ConcordClient.Builder client() {
        return ConcordClient.builder().nodes(NODES).reader(null).timeout(java.time.Duration.ofSeconds(2)).wire(this, Clock.SYSTEM);
    }

    @Override
    public Reply send(String node, Request request, long silence, long timeout, Scope scope) {
        Sent made = new Sent(node, request);
        synchronized (this) {
            sent.add(made);
            return answer.apply(made);
        }
    }

    @Override
    public void close() {}

    static Received ok(Object data, String... headers) {
        return response(200, Map.of("status", "SUCCESS", "data", data), headers);
    }

    static Received rejected(int status, String code, String... headers) {
        return response(status, Map.of("errors", List.of(Map.of("type", "t", "code", code, "msg", "m"))), headers);
    }

    static Received response(int status, Object body, String... headers) {
        Map<String, String> named = new HashMap<>();
        for (int n = 0; n < headers.length; n += 2) {
            named.put(headers[n], headers[n + 1]);
        }
        byte[] text = body == null ? new byte[0] : Json.bytes(Json.of(body, Json.MODELS));
        return new Received(status, named, text);
    }

    static Failed lost() {
        return new Failed("lost", true);
    }

    static ObjectNode record(String key, JsonNode data) {
        ObjectNode made = Json.object().put("config_definition_key", "d").put("config_key", key);
        made.set("data", data);
        return made.put("created_at", AT).put("modified_at", AT);
    }

    synchronized void put(long at, String key, String data) {
        add(at, record(key, Cases.json(data)).put("type", "config_updated"));
    }

    synchronized void put(long at, String key, String data, String variant) {
        ObjectNode made = record(key, Cases.json(data)).put("type", "config_updated").put("revision", 3);
        made.putObject("variant").put("change_id", variant);
        add(at, made);
    }

    synchronized void delete(long at, String key) {
        add(at, Json.object().put("type", "config_deleted").put("config_definition_key", "d").put("config_key", key));
    }

    synchronized void add(long at, ObjectNode change) {
        revision = at;
        ObjectNode made = Json.object().put("revision", at).put("at", AT).put("by", "root").put("reason", (String) null);
        made.putArray("changes").add(change);
        events.add(made);
    }

    private Reply answer(Sent made) {
        String path = Environment.path(made.request.target());
        if (isDown) {
            return new Failed("ConnectException: refused", false);
        }
        if (path.endsWith("/report")) {
            reports.add(((ObjectNode) made.body()).put("path", path));
            return mayReport ? ok(Map.of()) : rejected(403, "forbidden");
        }
        if (isForbidden) {
            return rejected(403, "forbidden");
        }
        String[] head = {"x-concord-revision", "" + revision, "x-concord-cluster", cluster};
        if (path.equals("/api/v1/watch")) {
            return hasNoWatch ? rejected(503, "unavailable") : state(made, head);
        }
        if (path.equals("/api/v1/changes")) {
            return changes(made);
        }
        return ok(Map.of("results", List.of()), head);
    }

    private Reply state(Sent made, String[] head) {
        ObjectNode part = Json.object().put("revision", revision).put("complete", false);
        part.putArray("definitions");
        ArrayNode list = part.putArray("configs");
        configs.forEach((key, data) -> {
            ObjectNode each = record(key, data).put("revision", 9);
            each.setAll(more.getOrDefault(key, Json.object()));
            list.add(each);
        });
        String end = "{\"revision\":" + revision + ",\"definitions\":[],\"configs\":[],\"complete\":true}";
        byte[] text = ("retry: 1000\nevent: state\ndata: " + Cases.text(part) + "\n\nevent: state\ndata: " + end + "\n\n")
                .getBytes(StandardCharsets.UTF_8);
        for (int n = 0; n < text.length; n += 7) {
            byte[] some = java.util.Arrays.copyOfRange(text, n, Math.min(n + 7, text.length));
            if (made.request.sink().feed(some, some.length)) {
                break;
            }
        }
        return response(200, null, head);
    }

    private Reply changes(Sent made) {
        long begin = made.query("from") == null ? revision + 1 : Long.parseLong(made.query("from"));
        if (begin <= compacted) {
            return rejected(410, "revision_compacted");
        }
        List<JsonNode> found = events.stream().filter(each -> each.path("revision").asLong() >= begin).toList();
        long next = found.isEmpty() ? revision + 1 : found.get(found.size() - 1).path("revision").asLong() + 1;
        String[] head = {"x-concord-next-from", "" + next, "x-concord-cluster", cluster};
        return found.isEmpty() ? response(304, null, head) : ok(Map.of("events", found), head);
    }
}
