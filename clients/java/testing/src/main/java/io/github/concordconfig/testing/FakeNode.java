package io.github.concordconfig.testing;

import com.fasterxml.jackson.databind.DeserializationFeature;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.json.JsonMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import com.fasterxml.jackson.databind.node.ObjectNode;
import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import io.github.concordconfig.client.ConcordClient;
import java.io.IOException;
import java.io.OutputStream;
import java.io.UncheckedIOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;

/**
 * A node in memory for unit tests: definitions and configs with revisions and conditions, lists, changes and watches.
 *
 * <pre>{@code
 * try (FakeNode node = FakeNode.start(); ConcordClient client = node.client().build()) {
 *     node.put("limits", "acme", Map.of("seats", 3));
 *     …
 * }
 * }</pre>
 *
 * <p>It checks no schemas and no permissions, and has no batches and no history: {@link ConcordDemo} does. A list has
 * equality filters, sorts as texts, and has the present state on each page. While the node is not
 * {@linkplain #setAvailable available}, it responds with 503.
 */
public final class FakeNode implements AutoCloseable {
    private static final String ROOT = "/api/v1/";
    private static final String KEY = "fake-node-key";
    private static final List<String> PARAMETERS =
            List.of("page", "limit", "sort_by", "sort_order", "consistency", "max_staleness_ms", "min_revision");

    @SuppressWarnings("deprecation") // Without it, decimals lose zeros at their end.
    private static final ObjectMapper JSON = JsonMapper.builder()
            .enable(DeserializationFeature.USE_BIG_DECIMAL_FOR_FLOATS)
            .nodeFactory(JsonNodeFactory.withExactBigDecimals(true))
            .build();

    private record Stored(JsonNode content, long revision, String createdAt, String modifiedAt) {}

    private record Reply(int status, JsonNode body, Map<String, String> headers) {}

    private static final class Rejection extends RuntimeException {
        private final transient Reply reply;

        private Rejection(int status, String type, String code, String message, String... headers) {
            super(message, null, false, false);
            ObjectNode body = JSON.createObjectNode().put("status", "FAILURE");
            body.putArray("errors").addObject().put("type", type).put("code", code).put("msg", message);
            reply = new Reply(status, body, headers.length == 0 ? Map.of() : Map.of(headers[0], headers[1]));
        }
    }

    private final HttpServer server;
    private final ExecutorService threads = Executors.newCachedThreadPool(task -> {
        Thread thread = new Thread(task, "concord-fake-node");
        thread.setDaemon(true);
        return thread;
    });
    private final TreeMap<String, Stored> definitions = new TreeMap<>();
    private final Map<String, TreeMap<String, Stored>> configs = new HashMap<>();
    private final List<ObjectNode> events = new ArrayList<>();
    private final Map<String, Reply> replies = new HashMap<>();
    private long revision = 1;
    private boolean isAvailable = true, isClosed;

    private FakeNode() {
        try {
            server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
        server.createContext("/", this::handle);
        server.setExecutor(threads);
        server.start();
    }

    /** Starts a node on loopback. */
    public static FakeNode start() {
        return new FakeNode();
    }

    /** Its URL. */
    public String url() {
        return "http://127.0.0.1:" + server.getAddress().getPort();
    }

    /** Its access key. */
    public String key() {
        return KEY;
    }

    /** A builder of clients of this node. */
    public ConcordClient.Builder client() {
        return ConcordClient.builder().nodes(url()).key(KEY);
    }

    /** Whether it serves requests. If not, it responds with 503. */
    public synchronized void setAvailable(boolean isAvailable) {
        this.isAvailable = isAvailable;
        notifyAll();
    }

    /** Creates or replaces a config, and its definition if there is none. Returns the revision. */
    public synchronized long put(String definition, String key, Object data) {
        if (!definitions.containsKey(definition)) {
            define(definition, JSON.createObjectNode().putArray("indexes"), null);
        }
        return write(definition, key, JSON.valueToTree(data));
    }

    /** Deletes a config. Returns the revision. */
    public synchronized long delete(String definition, String key) {
        config(definition, key);
        configs.get(definition).remove(key);
        return happened(JSON.createObjectNode().put("type", "config_deleted")
                .put("config_definition_key", definition).put("config_key", key));
    }

    /** The data of a config, or null if there is none. */
    public synchronized JsonNode data(String definition, String key) {
        Stored found = configs.getOrDefault(definition, new TreeMap<>()).get(key);
        return found == null ? null : found.content.deepCopy();
    }

    @Override
    public void close() {
        synchronized (this) {
            isClosed = true;
            notifyAll();
        }
        server.stop(0);
        threads.shutdownNow();
    }

    // --- What it has --------------------------------------------------------------------------------------------------

    private void define(String key, JsonNode indexes, JsonNode schema) {
        Stored before = definitions.get(key);
        ObjectNode content = JSON.createObjectNode().put("config_definition_key", key);
        content.set("indexes", indexes);
        if (schema != null && !schema.isNull()) {
            content.set("json_schema", schema);
        }
        String now = now();
        definitions.put(key, new Stored(content, revision + 1, before == null ? now : before.createdAt, now));
        configs.computeIfAbsent(key, none -> new TreeMap<>());
        happened(definition(key).put("type", before == null ? "definition_created" : "definition_updated"));
    }

    private ObjectNode definition(String key) {
        Stored found = definitions.get(key);
        if (found == null) {
            throw new Rejection(404, "not_found_error", "definition_not_found", "definition does not exist");
        }
        return shown(found.content.deepCopy(), found);
    }

    private Stored config(String definition, String key) {
        definition(definition);
        Stored found = configs.get(definition).get(key);
        if (found == null) {
            throw new Rejection(404, "not_found_error", "config_not_found", "config does not exist");
        }
        return found;
    }

    private long write(String definition, String key, JsonNode data) {
        Stored before = configs.get(definition).get(key);
        String now = now();
        Stored made = new Stored(data, revision + 1, before == null ? now : before.createdAt, now);
        configs.get(definition).put(key, made);
        return happened(record(definition, key, made).put("type", before == null ? "config_created" : "config_updated"));
    }

    private long happened(ObjectNode change) {
        revision++;
        change.remove("revision");
        ObjectNode event = JSON.createObjectNode().put("revision", revision).put("at", now()).put("by", "root");
        event.putNull("reason").putArray("changes").add(change);
        events.add(event);
        notifyAll();
        return revision;
    }

    private static ObjectNode record(String definition, String key, Stored stored) {
        ObjectNode made = JSON.createObjectNode().put("config_definition_key", definition).put("config_key", key);
        made.set("data", stored.content);
        return shown(made, stored);
    }

    private static ObjectNode shown(ObjectNode record, Stored stored) {
        return record.put("created_at", stored.createdAt).put("modified_at", stored.modifiedAt).put("revision", stored.revision);
    }

    private static String now() {
        return Instant.now().truncatedTo(ChronoUnit.MICROS).toString();
    }

    // --- HTTP ---------------------------------------------------------------------------------------------------------

    private record Call(String method, List<String> path, Map<String, List<String>> query, HttpExchange exchange, JsonNode body) {
        String header(String name) {
            return exchange.getRequestHeaders().getFirst(name);
        }

        String first(String name, String otherwise) {
            return query.getOrDefault(name, List.of(otherwise)).get(0);
        }

        boolean isWrite() {
            return !method.equals("GET") && !first("dry_run", "false").equals("true");
        }
    }

    private void handle(HttpExchange exchange) throws IOException {
        try (exchange) {
            byte[] body = exchange.getRequestBody().readAllBytes();
            Reply reply;
            try {
                String path = exchange.getRequestURI().getRawPath();
                List<String> parts = path.startsWith(ROOT) ? List.of(path.substring(ROOT.length()).split("/")) : List.of("");
                JsonNode content = body.length == 0 ? JSON.createObjectNode() : JSON.readTree(body);
                reply = answer(new Call(exchange.getRequestMethod(), parts, query(exchange), exchange, content));
            } catch (Rejection rejection) {
                reply = rejection.reply;
            }
            reply.headers.forEach(exchange.getResponseHeaders()::set);
            send(exchange, reply);
        }
    }

    private static void send(HttpExchange exchange, Reply reply) throws IOException {
        boolean isStream = reply.headers.containsKey("Content-Type");
        byte[] text = reply.body == null ? new byte[0] : JSON.writeValueAsBytes(reply.body);
        if (isStream) {
            text = ("event: state\ndata: " + new String(text, StandardCharsets.UTF_8) + "\n\n").getBytes(StandardCharsets.UTF_8);
        }
        exchange.sendResponseHeaders(reply.status, text.length == 0 ? -1 : text.length);
        try (OutputStream out = exchange.getResponseBody()) {
            out.write(text);
        }
    }

    private static Map<String, List<String>> query(HttpExchange exchange) {
        Map<String, List<String>> found = new HashMap<>();
        String query = exchange.getRequestURI().getRawQuery();
        for (String pair : query == null ? new String[0] : query.split("&")) {
            String[] sides = pair.split("=", 2);
            String name = URLDecoder.decode(sides[0], StandardCharsets.UTF_8);
            found.computeIfAbsent(name, none -> new ArrayList<>())
                    .add(sides.length < 2 ? "" : URLDecoder.decode(sides[1], StandardCharsets.UTF_8));
        }
        return found;
    }

    private synchronized Reply answer(Call call) {
        if (!("Bearer " + KEY).equals(call.header("Authorization"))) {
            throw new Rejection(401, "unauthorized_error", "unauthorized", "the access key is invalid");
        }
        if (!isAvailable) {
            throw new Rejection(503, "unavailable_error", "unavailable", "the node is not available");
        }
        String key = call.header("Idempotency-Key");
        if (key == null) {
            return routed(call);
        }
        Reply known = replies.get(key);
        if (known == null) {
            try {
                known = routed(call);
            } catch (Rejection rejection) {
                known = rejection.reply;
            }
            replies.put(key, known);
        }
        return known;
    }

    private Reply routed(Call call) {
        List<String> path = call.path;
        String last = path.get(path.size() - 1);
        if (last.equals("report")) {
            return success(200, JSON.createObjectNode(), 0);
        }
        if (path.equals(List.of("changes"))) {
            return changes(call);
        }
        if (path.equals(List.of("watch"))) {
            return state(call);
        }
        if (path.get(0).equals("config_definition")) {
            switch (path.size()) {
                case 1:
                    return call.method.equals("POST") ? createDefinition(call) : listDefinitions(call);
                case 2:
                    return ofDefinition(call, path.get(1));
                case 3:
                    return call.method.equals("POST") ? create(call, path.get(1)) : list(call, path.get(1));
                case 4:
                    return ofConfig(call, path.get(1), path.get(3));
                default:
                    break;
            }
        }
        throw new Rejection(404, "not_found_error", "path_not_found", "a fake node does not have this path");
    }

    private Reply success(int status, JsonNode data, long etag, String... headers) {
        Map<String, String> all = new HashMap<>(Map.of("X-Concord-Revision", String.valueOf(revision), "X-Concord-Cluster", "fake"));
        if (etag > 0) {
            all.put("ETag", "\"" + etag + "\"");
        }
        for (int n = 0; n < headers.length; n += 2) {
            all.put(headers[n], headers[n + 1]);
        }
        ObjectNode body = JSON.createObjectNode().put("status", "SUCCESS").put("message", "done");
        body.set("data", data);
        return new Reply(status, status == 304 ? null : body, all);
    }

    private Reply createDefinition(Call call) {
        String key = call.body.path("config_definition_key").asText();
        if (definitions.containsKey(key)) {
            throw new Rejection(409, "conflict_error", "definition_exists", "definition exists");
        }
        if (call.isWrite()) {
            JsonNode indexes = call.body.path("indexes");
            define(key, indexes.isArray() ? indexes : JSON.createArrayNode(), call.body.get("json_schema"));
        }
        return success(201, call.body, revision);
    }

    private Reply listDefinitions(Call call) {
        List<ObjectNode> all = definitions.keySet().stream().filter(key -> isFollowed(call, key)).map(this::definition).toList();
        return page(call, all);
    }

    private Reply ofDefinition(Call call, String key) {
        ObjectNode found = definition(key);
        long etag = definitions.get(key).revision;
        if (call.method.equals("GET")) {
            return success(200, found, etag);
        }
        check(call, etag);
        if (call.method.equals("PUT")) {
            define(key, call.body.path("indexes"), found.get("json_schema"));
            return success(200, definition(key), revision);
        }
        int count = configs.get(key).size();
        definitions.remove(key);
        configs.remove(key);
        happened(JSON.createObjectNode().put("type", "definition_deleted").put("config_definition_key", key).put("count", count));
        return success(200, JSON.createObjectNode().put("config_definition_key", key), 0);
    }

    private Reply create(Call call, String definition) {
        String key = call.body.path("config_key").asText();
        definition(definition);
        if (configs.get(definition).containsKey(key)) {
            throw new Rejection(409, "conflict_error", "config_exists", "config exists");
        }
        return written(call, definition, key, call.body.path("data"), 201);
    }

    private Reply written(Call call, String definition, String key, JsonNode data, int status) {
        if (!call.isWrite()) {
            return success(200, data, 0, "X-Concord-Dry-Run", "true");
        }
        return success(status, data, write(definition, key, data));
    }

    private Reply ofConfig(Call call, String definition, String key) {
        definition(definition);
        Stored found = configs.get(definition).get(key);
        boolean mayCreate = call.method.equals("PUT")
                && (call.first("upsert", "false").equals("true") || "*".equals(call.header("If-None-Match")));
        if (found == null && !mayCreate) {
            config(definition, key);
        }
        if (call.method.equals("GET")) {
            boolean isKnown = ("\"" + found.revision + "\"").equals(call.header("If-None-Match"));
            return success(isKnown ? 304 : 200, record(definition, key, found), found.revision);
        }
        if (found != null) {
            check(call, found.revision);
        }
        switch (call.method) {
            case "PUT":
                return written(call, definition, key, call.body.path("data"), found == null ? 201 : 200);
            case "PATCH":
                return written(call, definition, key, merged(found.content, call.body), 200);
            default:
                if (call.isWrite()) {
                    delete(definition, key);
                }
                return success(200, JSON.createObjectNode().put("config_definition_key", definition).put("config_key", key), 0);
        }
    }

    private static void check(Call call, long etag) {
        String expected = call.header("If-Match");
        boolean isOther = expected != null && !expected.equals("*") && !expected.equals("\"" + etag + "\"");
        if (isOther || "*".equals(call.header("If-None-Match"))) {
            throw new Rejection(412, "precondition_failed", "precondition_failed", "the current revision is " + etag,
                    "ETag", "\"" + etag + "\"");
        }
    }

    /** RFC 7396. */
    private static JsonNode merged(JsonNode target, JsonNode patch) {
        if (!patch.isObject()) {
            return patch;
        }
        ObjectNode made = target.isObject() ? target.deepCopy() : JSON.createObjectNode();
        patch.properties().forEach(each -> {
            if (each.getValue().isNull()) {
                made.remove(each.getKey());
            } else {
                made.set(each.getKey(), merged(made.path(each.getKey()), each.getValue()));
            }
        });
        return made;
    }

    private Reply list(Call call, String definition) {
        definition(definition);
        List<ObjectNode> all = new ArrayList<>();
        configs.get(definition).forEach((key, stored) -> {
            if (isSelected(call, key, stored.content)) {
                all.add(record(definition, key, stored));
            }
        });
        return page(call, all);
    }

    private static boolean isSelected(Call call, String key, JsonNode data) {
        return call.query.entrySet().stream().allMatch(each -> {
            String name = each.getKey();
            if (name.startsWith("$") || PARAMETERS.contains(name)) {
                return true;
            }
            if (name.equals("search")) {
                return key.contains(each.getValue().get(0));
            }
            if (name.contains("[")) {
                throw new Rejection(422, "validation_error", "query_invalid", "a fake node has no parameter " + name);
            }
            JsonNode found = data.at("/" + name.replaceFirst("^data\\.", "").replace('.', '/'));
            String value = name.equals("config_key") ? key : found.isContainerNode() ? found.toString() : found.asText();
            return each.getValue().contains(value);
        });
    }

    private Reply page(Call call, List<ObjectNode> unsorted) {
        String sortBy = call.first("sort_by", "modified_at");
        Comparator<ObjectNode> order = sortBy.equals("modified_at")
                ? Comparator.comparingLong(each -> each.path("revision").asLong())
                : Comparator.comparing(each -> (each.has(sortBy) ? each : each.path("data")).path(sortBy).asText());
        boolean isAscending = call.first("sort_order", "desc").equals("asc");
        List<ObjectNode> all = unsorted.stream().sorted(isAscending ? order : order.reversed()).toList();
        int page = Integer.parseInt(call.first("page", "1")), limit = Integer.parseInt(call.first("limit", "10"));
        ArrayNode results = JSON.createArrayNode();
        all.stream().skip((page - 1L) * limit).limit(limit).forEach(results::add);
        ObjectNode data = JSON.createObjectNode();
        data.set("results", results);
        data.putObject("meta").put("page", page).put("limit", limit).put("total", all.size());
        if ((long) page * limit >= all.size()) {
            return success(200, data, 0);
        }
        String query = call.exchange.getRequestURI().getRawQuery();
        String others = query == null ? "" : query.replaceAll("(^|&)page=[^&]*", "").replaceFirst("^&", "") + "&";
        String next = call.exchange.getRequestURI().getRawPath() + "?" + others + "page=" + (page + 1);
        return success(200, data, 0, "Link", "<" + next + ">; rel=\"next\"");
    }

    private static boolean isFollowed(Call call, String definition) {
        List<String> patterns = call.query.getOrDefault("definition", List.of("*"));
        return patterns.stream().anyMatch(pattern -> pattern.endsWith("*")
                ? definition.startsWith(pattern.substring(0, pattern.length() - 1)) : definition.equals(pattern));
    }

    private static boolean isFollowed(Call call, JsonNode change) {
        List<String> keys = call.query.getOrDefault("config_key", List.of());
        return isFollowed(call, change.path("config_definition_key").asText())
                && (keys.isEmpty() || !change.has("config_key") || keys.contains(change.get("config_key").asText()));
    }

    private Reply changes(Call call) {
        long from = Long.parseLong(call.first("from", String.valueOf(revision + 1)));
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(Long.parseLong(call.first("wait", "30")));
        while (true) {
            ArrayNode found = JSON.createArrayNode();
            for (ObjectNode event : events.subList((int) Math.min(events.size(), Math.max(0, from - 2)), events.size())) {
                ObjectNode copy = event.deepCopy();
                ArrayNode changes = copy.putArray("changes");
                event.get("changes").forEach(each -> {
                    if (isFollowed(call, each)) {
                        changes.add(each);
                    }
                });
                if (!changes.isEmpty()) {
                    found.add(copy);
                }
            }
            long left = end - System.nanoTime();
            if (!found.isEmpty() || left <= 0 || !isAvailable || isClosed) {
                String next = String.valueOf(revision + 1);
                JsonNode data = JSON.createObjectNode().set("events", found);
                return success(found.isEmpty() ? 304 : 200, data, 0, "X-Concord-Next-From", next);
            }
            try {
                TimeUnit.NANOSECONDS.timedWait(this, left);
            } catch (InterruptedException error) {
                Thread.currentThread().interrupt();
                throw new Rejection(503, "unavailable_error", "unavailable", "the node ends");
            }
        }
    }

    private Reply state(Call call) {
        ObjectNode state = JSON.createObjectNode().put("revision", revision).put("complete", true);
        ArrayNode found = state.putArray("definitions"), records = state.putArray("configs");
        List<String> keys = call.query.getOrDefault("config_key", List.of());
        definitions.keySet().stream().filter(key -> isFollowed(call, key)).forEach(definition -> {
            found.add(definition(definition));
            configs.get(definition).forEach((key, stored) -> {
                if (keys.isEmpty() || keys.contains(key)) {
                    records.add(record(definition, key, stored));
                }
            });
        });
        Reply reply = success(200, state, 0, "Content-Type", "text/event-stream");
        return new Reply(200, state, reply.headers);
    }
}
