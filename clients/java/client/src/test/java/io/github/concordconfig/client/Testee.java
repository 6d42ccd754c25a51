package io.github.concordconfig.client;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.NoSuchElementException;

/** The program of {@code clients/conformance}: makes the calls of its stdin, and writes how they end. */
public final class Testee {
    private final BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    private final PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);

    private interface Call {
        JsonNode run() throws Exception;
    }

    public static void main(String[] arguments) throws Exception {
        new Testee().run();
    }

    private JsonNode next() throws IOException {
        String line = in.readLine();
        return line == null ? null : Json.parse(line.getBytes(StandardCharsets.UTF_8));
    }

    private void run() throws Exception {
        JsonNode message = next();
        while (message != null) {
            JsonNode call = message.get("call");
            try (ConcordClient client = client(message.get("client"))) {
                if (call.path("do").asText().equals("cache")) {
                    tell(Json::object);
                    message = cache(client, call.get("definition").asText());
                } else {
                    tell(() -> value(client, call));
                    message = next();
                }
            }
        }
    }

    private static ConcordClient client(JsonNode given) {
        Map<String, String> labels = new LinkedHashMap<>();
        given.path("labels").properties().forEach(each -> labels.put(each.getKey(), each.getValue().asText()));
        return ConcordClient.builder()
                .nodes(Definition.texts(given.get("urls")))
                .key(given.get("key").asText())
                .timeout(seconds(given.get("timeout_s")))
                .attemptTimeout(seconds(given.get("attempt_timeout_s")))
                .environment(given.path("environment").asText(null))
                .reader(given.path("reader").asText(null))
                .labels(labels)
                .build();
    }

    private static Duration seconds(JsonNode number) {
        return Duration.ofNanos(Clock.nanos(number.asDouble()));
    }

    private void tell(Call call) throws Exception {
        ObjectNode outcome = Json.object();
        try {
            outcome.set("value", call.run());
        } catch (IllegalArgumentException error) {
            outcome.set("error", Json.object().put("kind", "invalid"));
        } catch (ConcordException error) {
            outcome.set("error", error(error));
        }
        out.write(Json.bytes(outcome));
        out.println();
        out.flush();
    }

    private static ObjectNode error(ConcordException error) {
        ObjectNode told = Json.object();
        if (error instanceof RejectedException rejected && rejected.node().isEmpty()) {
            return told.put("kind", "invalid");
        }
        if (error instanceof RejectedException rejected) {
            told.put("kind", "rejected").put("status", rejected.status()).put("code", rejected.code());
            told.set("paths", Json.texts(rejected.paths()));
            if (error instanceof PreconditionFailedException failed && failed.currentRevision().isPresent()) {
                told.put("current_revision", failed.currentRevision().getAsLong());
            }
            return told;
        }
        if (error instanceof UnknownOutcomeException unknown) {
            return told.put("kind", "unknown").put("idempotency_key", unknown.idempotencyKey().orElse(null));
        }
        boolean isNotReady = error instanceof NotReadyException;
        return told.put("kind", isNotReady ? "not_ready" : error instanceof ProtocolException ? "protocol" : "unavailable");
    }

    private static JsonNode value(ConcordClient client, JsonNode call) {
        String definition = call.path("definition").asText();
        String config = call.path("config").asText();
        WriteOption[] options = options(call);
        return switch (call.get("do").asText()) {
            case "get" -> {
                Config found = client.get(definition, config, reads(call));
                ObjectNode told = Json.object();
                told.set("data", found.data());
                yield told.put("revision", found.revision());
            }
            case "put" -> revision(client.put(definition, config, call.get("data"), options));
            case "create" -> revision(client.create(definition, config, call.get("data"), options));
            case "patch" -> revision(client.patch(definition, config, call.get("patch"), options));
            case "delete" -> {
                client.delete(definition, config, options);
                yield Json.object();
            }
            case "update" -> revision(client.update(definition, config, data -> data.setAll((ObjectNode) call.get("set"))));
            case "list" -> Json.texts(client.list(definition, Query.all().pageSize(call.get("page_size").asInt()))
                    .map(Config::key).toList());
            case "batch" -> Json.object().put("revision", client.request("POST", "/api/v1/batch",
                    Json.object().set("operations", call.get("operations")), "testee-" + System.nanoTime(), null)
                    .data().path("revision").asLong());
            case "request" -> client.request(call.get("method").asText(), call.get("path").asText(), call.get("body"),
                    call.path("idempotency_key").asText(null), null).data();
            case "watch" -> watched(client, definition, call.get("from").asLong(), call.get("take").asInt());
            default -> throw new NoSuchElementException(call.toString());
        };
    }

    private static ReadOption[] reads(JsonNode call) {
        List<ReadOption> made = new ArrayList<>();
        if (call.has("revision")) {
            made.add(ReadOption.atRevision(call.get("revision").asLong()));
        }
        if (call.has("consistency")) {
            String name = call.get("consistency").asText().toUpperCase(Locale.ROOT);
            made.add(ReadOption.consistency(ReadOption.Consistency.valueOf(name)));
        }
        return made.toArray(new ReadOption[0]);
    }

    private static WriteOption[] options(JsonNode call) {
        List<WriteOption> made = new ArrayList<>();
        boolean isRequest = call.get("do").asText().equals("request");
        if (call.has("if_match")) {
            made.add(WriteOption.ifMatch(call.get("if_match").asLong()));
        }
        if (call.has("reason")) {
            made.add(WriteOption.reason(call.get("reason").asText()));
        }
        if (call.has("idempotency_key") && !isRequest) {
            made.add(WriteOption.idempotencyKey(call.get("idempotency_key").asText()));
        }
        return made.toArray(new WriteOption[0]);
    }

    private static ObjectNode revision(Written written) {
        return Json.object().put("revision", written.revision());
    }

    private static JsonNode watched(ConcordClient client, String definition, long from, int take) {
        ArrayNode told = Json.NODES.arrayNode();
        try (Watch watch = client.watch(WatchOptions.of(definition).from(from))) {
            while (told.size() < take) {
                Event event = (Event) watch.next();
                for (Change change : event.changes()) {
                    ObjectNode each = told.addObject().put("revision", event.revision()).put("type", change.type());
                    each.put("config", change.key());
                    if (change.data() != null) {
                        each.set("data", change.data());
                    }
                }
            }
            return told;
        }
    }

    // --- Caches -------------------------------------------------------------------------------------------------------

    /** Makes the steps of a cache. Returns the message after them, or null. */
    private JsonNode cache(ConcordClient client, String definition) throws Exception {
        Cache[] cache = new Cache[1];
        JsonNode message = next();
        for (; message != null && message.has("step"); message = next()) {
            JsonNode step = message.get("step");
            tell(() -> switch (step.get("do").asText()) {
                case "start" -> {
                    CacheOptions options = CacheOptions.of(definition).pollSeconds(1).fresh(Duration.ofSeconds(3))
                            .startTimeout(seconds(step.get("start_timeout_s")));
                    cache[0] = client.cache(step.has("file") ? options.file(Path.of(step.get("file").asText())) : options);
                    yield Json.object();
                }
                case "stop" -> {
                    if (cache[0] != null) {
                        cache[0].close();
                    }
                    yield Json.object();
                }
                case "get" -> shown(cache[0], definition, step.get("config").asText());
                default -> waited(cache[0], definition, step);
            });
        }
        return message;
    }

    private static ObjectNode shown(Cache cache, String definition, String config) {
        ObjectNode told = Json.object();
        try {
            CacheValue value = cache.get(definition, config);
            told.set("data", value.data());
            told.put("revision", value.revision()).put("is_fresh", value.isFresh());
            return value.source() == Source.FILE ? told.put("source", "file") : told;
        } catch (NotCachedException error) {
            return told.put("missing", true);
        }
    }

    private static JsonNode waited(Cache cache, String definition, JsonNode step) throws InterruptedException {
        ObjectNode told = Json.object();
        for (int n = 0; n < 4000; n++) {
            told = shown(cache, definition, step.get("config").asText());
            if (isAwaited(told, step)) {
                break;
            }
            Thread.sleep(10);
        }
        return told;
    }

    private static boolean isAwaited(JsonNode told, JsonNode step) {
        for (String name : List.of("data", "is_fresh", "missing")) {
            if (step.has(name) && !step.get(name).equals(told.get(name))) {
                return false;
            }
        }
        return true;
    }
}
