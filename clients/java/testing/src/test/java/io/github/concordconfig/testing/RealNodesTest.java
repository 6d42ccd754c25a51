package io.github.concordconfig.testing;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.github.concordconfig.client.BatchResult;
import io.github.concordconfig.client.Cache;
import io.github.concordconfig.client.CacheOptions;
import io.github.concordconfig.client.ChangeRequiredException;
import io.github.concordconfig.client.ConcordClient;
import io.github.concordconfig.client.Config;
import io.github.concordconfig.client.ConfigName;
import io.github.concordconfig.client.Event;
import io.github.concordconfig.client.InvalidException;
import io.github.concordconfig.client.NotReadyException;
import io.github.concordconfig.client.Operation;
import io.github.concordconfig.client.Past;
import io.github.concordconfig.client.Query;
import io.github.concordconfig.client.ReadOption;
import io.github.concordconfig.client.State;
import io.github.concordconfig.client.Watch;
import io.github.concordconfig.client.WatchOptions;
import io.github.concordconfig.client.WriteOption;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.condition.EnabledIfEnvironmentVariable;
import org.junit.jupiter.api.io.TempDir;

/** The cases that all clients share, {@code clients/cases.json}, with a real node; and connections that go silent. */
@EnabledIfEnvironmentVariable(named = "CONCORD_BIN", matches = ".+")
class RealNodesTest {
    private static final Duration PATIENCE = Duration.ofSeconds(60);
    private static ConcordDemo demo;
    private static ConcordClient client;

    @BeforeAll
    static void start() {
        demo = ConcordDemo.start();
        client = demo.client().build();
    }

    @AfterAll
    static void end() {
        client.close();
        demo.close();
    }

    private static JsonNode cases(String name) throws Exception {
        Path at = Path.of("").toAbsolutePath();
        while (!Files.isRegularFile(at.resolve("clients/cases.json"))) {
            at = at.getParent();
        }
        return new ObjectMapper().readTree(at.resolve("clients/cases.json").toFile()).get(name);
    }

    /** Documents with the same numbers, texts and members have the same text. */
    private static String plain(JsonNode data) {
        return plain(data.toString());
    }

    private static String plain(String text) {
        return text.replaceAll("(?<=[0-9])[eE]\\+?(?=-?[0-9])", "e");
    }

    private static void store(String definition, String key, String data) throws Exception {
        // As another program stores it.
        HttpRequest request = HttpRequest.newBuilder(URI.create(demo.urls().get(0) + "/api/v1/config_definition/" + definition + "/config/"))
                .header("authorization", demo.key()).header("content-type", "application/json")
                .POST(HttpRequest.BodyPublishers.ofString("{\"config_key\":\"" + key + "\",\"data\":" + data + "}")).build();
        HttpResponse<String> response = HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString());
        assertEquals(201, response.statusCode(), response.body());
    }

    @Test
    void documents_are_read_and_written_back() throws Exception {
        client.createDefinition("documents", List.of());
        JsonNode cases = cases("documents");
        try (Cache cache = client.cache(CacheOptions.of("documents").pollSeconds(1))) {
            for (int n = 0; n < cases.size(); n++) {
                String name = cases.get(n).get("name").asText(), key = "k" + n;
                store("documents", key, cases.get(n).get("text").asText());
                Config found = client.get("documents", key);
                String text = plain(found.data());
                if (!cases.get(n).get("text").asText().contains("\\u")) {
                    assertEquals(plain(cases.get(n).get("text").asText()), text, name);
                }
                assertTrue(cache.waitRevision(found.revision(), PATIENCE), name + cache.status());
                assertEquals(text, plain(cache.get("documents", key).data()), name);
                client.put("documents", key, found.data(), WriteOption.ifMatch(found.revision()));
                assertEquals(text, plain(client.get("documents", key).data()), name);
            }
            assertEquals("Optional.empty {}", cache.status().error() + " " + cache.status().unreadable());
        }
        assertEquals(cases.size(), client.list("documents", Query.all().pageSize(3)).count());
        try (Watch watch = client.watch(WatchOptions.of("documents").initial())) {
            assertEquals(cases.size(), ((State) watch.next()).configs().size());
        }
    }

    @Test
    void filters_select_what_they_name() throws Exception {
        JsonNode cases = cases("filters");
        List<String> indexes = new ArrayList<>();
        cases.get("indexes").forEach(each -> indexes.add(each.asText()));
        client.createDefinition("filters", indexes, cases.get("schema"));
        for (Map.Entry<String, JsonNode> each : cases.get("configs").properties()) {
            store("filters", each.getKey(), each.getValue().asText());
        }
        for (JsonNode each : cases.get("cases")) {
            String path = each.get("path").asText();
            List<Object> values = new ArrayList<>();
            // Numbers as the client itself returned them.
            each.path("values_of").forEach(key -> values.add(client.get("filters", key.asText()).data().get(path)));
            each.path("values").forEach(value -> values.add(value.asText()));
            Object value = each.has("value") ? each.get("value").asText() : values;
            Query query = Query.where(each.has("operator") ? path + "[" + each.get("operator").asText() + "]" : path, value);
            List<String> selected = new ArrayList<>();
            each.get("selects").forEach(key -> selected.add(key.asText()));
            assertEquals(selected, client.list("filters", query).map(Config::key).sorted().toList(), each.toString());
            assertEquals(selected.size(), client.page("filters", query, 1, 10).total());
        }
    }

    @Test
    void reasons_are_as_the_history_has_them() throws Exception {
        client.createDefinition("reasons", List.of());
        for (JsonNode each : cases("reasons").get("cases")) {
            String reason = each.get("reason").asText();
            if (each.has("sent")) {
                client.upsert("reasons", "k", Map.of(), WriteOption.reason(reason));
                assertEquals(each.get("sent").asText(), client.history("reasons", "k").findFirst().orElseThrow().reason());
            } else {
                assertThrows(InvalidException.class, () -> WriteOption.reason(reason), reason);
            }
        }
    }

    @Test
    void several_as_one_history_and_undeletes() {
        client.createDefinition("several", List.of("n"));
        BatchResult made = client.batch(List.of(Operation.create("several", "a", Map.of("n", 1)),
                Operation.put("several", "b", Map.of("n", 2)).upsert(), Operation.get("several", "a")));
        assertTrue(made.revision() > 0 && made.results().get(0).isCreated() && made.results().get(2).config().isEmpty());
        BatchResult moved = client.transaction(List.of(Operation.checkEquals("several", "a", 1).pointer("/n"), Operation.checkAbsent("several", "c")),
                List.of(Operation.patch("several", "a", Map.of("n", 5)), Operation.delete("several", "b")), List.of());
        assertTrue(moved.isSucceeded());
        assertFalse(client.transaction(List.of(Operation.checkPresent("several", "b")), List.of(), List.of()).isSucceeded());
        assertEquals(List.of("delete", "create"), client.history("several", "b").map(Past::operation).toList());
        assertEquals(1, client.get("several", "a", ReadOption.atRevision(made.revision())).data().get("n").asInt());
        client.rollback("several", "a", made.revision());
        assertEquals("{\"n\":1}", client.get("several", "a").data().toString());
        ConfigName a = new ConfigName("several", "a"), b = new ConfigName("several", "b");
        assertEquals(Set.of(a), client.readMany(List.of(a, b)).found().keySet());
        assertTrue(client.put("several", "a", Map.of("n", 9), WriteOption.dryRun()).isDryRun());
        assertEquals(List.of("a"), client.listAcross(List.of("sever*"), Query.all()).map(Config::key).toList());
        client.setProtected("several", true);
        assertTrue(client.isProtected("several"));
        client.setProtected("several", false);
        client.setUnique("several", List.of("n"));
        assertEquals(List.of("n"), client.getUnique("several"));
        assertTrue(client.indexProgress("several").get(0).isReady());
        JsonNode schema = new ObjectMapper().valueToTree(Map.of("properties", Map.of("n", Map.of("type", "integer"))));
        assertEquals(schema, client.ensureDefinition("several", List.of("n"), schema).jsonSchema());
        assertThrows(InvalidException.class, () -> client.put("several", "a", Map.of("n", "x")));
        client.deleteDefinition("several");
        assertEquals("several", client.deletedDefinitions().get(0).key());
        client.undeleteDefinition("several");
        assertEquals("{\"n\":1}", client.get("several", "a").data().toString());
        assertTrue(client.definitionHistory("several").count() > 1);
        assertEquals("root", client.whoami().path("id").asText("root"));
        assertFalse(client.cluster().path("members").isEmpty());
    }

    private static String everything(ConcordClient of, String value, Path file) {
        of.createDefinition("limits", List.of("v"));
        long first = of.create("limits", "a", Map.of("v", value)).revision();
        of.batch(List.of(Operation.create("limits", "b", Map.of("v", value)), Operation.put("limits", "a", Map.of("v", value)).ifMatch(first)));
        of.update("limits", "b", data -> data.put("n", 1));
        List<Object> told = new ArrayList<>();
        try (Cache cache = of.cache(CacheOptions.of().file(file).pollSeconds(1)); Watch watch = of.watch(WatchOptions.of().from(first))) {
            cache.snapshot().values().forEach(each -> told.add(each.definition()));
            told.add(((Event) watch.next()).changes().get(0).definition());
        }
        told.add(of.getDefinition("limits").key());
        told.add(of.listDefinitions(Query.all().pageSize(1)).map(each -> each.key()).toList());
        told.add(of.list("limits", Query.where("v", value).pageSize(1)).map(Config::key).sorted().toList());
        told.add(of.listAcross(null, Query.all().pageSize(1)).map(Config::definition).distinct().toList());
        told.add(of.readMany(List.of(new ConfigName("limits", "a"), new ConfigName("limits", "c"))).found().keySet());
        of.deleteDefinition("limits");
        told.add(of.deletedDefinitions().stream().map(each -> each.key()).toList());
        of.undeleteDefinition("limits");
        return told.toString();
    }

    @Test
    void one_program_runs_in_every_environment(@TempDir Path folder) {
        Set<String> told = new HashSet<>();
        for (String name : List.of("prod", "staging")) {
            Path file = folder.resolve(name + ".json");
            try (ConcordClient of = demo.client().environment(name).build()) {
                told.add(everything(of, "of-" + name, file));
            }
            // Without a node, the file is used in its environment, and in no other.
            CacheOptions options = CacheOptions.of().file(file).startTimeout(Duration.ofMillis(100));
            try (ConcordClient alone = ConcordClient.builder().nodes("http://127.0.0.1:1").key("k").environment(name).build();
                    Cache cache = alone.cache(options)) {
                assertEquals("of-" + name, cache.get("limits", "a").data().get("v").asText());
            }
            try (ConcordClient other = ConcordClient.builder().nodes("http://127.0.0.1:1").key("k").environment("other").build()) {
                assertThrows(NotReadyException.class, () -> other.cache(options));
            }
        }
        assertEquals(Set.of("[limits, limits, limits, limits, [limits], [a, b], [limits], [limits/a], [limits]]"), told);
        assertEquals("of-prod", client.get("prod.limits", "a").data().get("v").asText());
    }

    @Test
    void a_restricted_environment_accepts_change_requests() {
        client.createDefinition("restricted.limits", List.of());
        client.request("PUT", "/api/v1/environment/restricted", Map.of("direct", "refuse", "approvals", 0, "freeze", List.of()), null, null);
        assertThrows(ChangeRequiredException.class, () -> client.create("restricted.limits", "a", Map.of()));
        JsonNode made = client.propose("a limit", "for a customer", List.of(Operation.create("restricted.limits", "a", Map.of("n", 1))));
        assertEquals("open", made.get("phase").asText());
        String path = "/api/v1/change_request/" + made.get("change_id").asText() + "/apply";
        client.request("POST", path, Map.of("digest", made.get("digest").asText()), null, null);
        assertEquals("{\"n\":1}", client.get("restricted.limits", "a").data().toString());
    }

    // --- Secret values ------------------------------------------------------------------------------------------------

    /** Each secret value with the names of those that it belongs to. */
    private static Map<String, List<String>> secretsOf(JsonNode value, List<String> owners) {
        Map<String, List<String>> found = new LinkedHashMap<>();
        if (value.isObject()) {
            List<String> own = owner(value, owners);
            value.forEach(each -> found.putAll(secretsOf(each, own)));
        } else if (value.isArray()) {
            value.forEach(each -> found.putAll(secretsOf(each, owners)));
        } else if (value.asText().startsWith("secret-")) {
            found.put(value.asText(), owners);
        }
        return found;
    }

    private static Set<List<String>> owners(JsonNode value, List<String> above) {
        Set<List<String>> found = new HashSet<>();
        List<String> own = value.isObject() ? owner(value, above) : above;
        if (value.isObject()) {
            found.add(own);
        }
        value.forEach(each -> found.addAll(owners(each, own)));
        return found;
    }

    private static List<String> owner(JsonNode value, List<String> owners) {
        List<String> own = new ArrayList<>(owners);
        own.add(value.path("host").asText(value.path("login").asText()));
        return own;
    }

    /** One change of what a client sees: of a text, of an element, of the order. Names are never used twice. */
    private static ObjectNode edited(Random dice, ObjectNode data) {
        ArrayNode databases = (ArrayNode) data.get("databases");
        List<ArrayNode> lists = new ArrayList<>(List.of(databases));
        databases.forEach(each -> {
            if (each.has("users")) {
                lists.add((ArrayNode) each.get("users"));
            }
        });
        ArrayNode chosen = lists.get(dice.nextInt(lists.size()));
        int kind = dice.nextInt(6);
        String fresh = Long.toHexString(dice.nextLong());
        ObjectNode made = chosen == databases ? data.objectNode().put("host", "h" + fresh).set("users", data.arrayNode())
                : data.objectNode().put("login", "u" + fresh);
        if (kind == 0) {
            data.put("name", fresh);
        } else if (kind == 1 && !chosen.isEmpty()) {
            chosen.remove(dice.nextInt(chosen.size()));
        } else if (kind == 2 && chosen.size() < 6) {
            chosen.insert(dice.nextInt(chosen.size() + 1), made);
        } else if (kind == 3) {
            List<JsonNode> all = new ArrayList<>();
            chosen.forEach(all::add);
            Collections.shuffle(all, dice);
            chosen.removeAll().addAll(all);
        } else if (kind == 4 && !chosen.isEmpty()) {
            ((ObjectNode) chosen.get(dice.nextInt(chosen.size()))).put("note", fresh);
        } else if (kind == 5 && chosen.size() < 6) {
            chosen.add(made.put(chosen == databases ? "token" : "pin", "secret-" + fresh));
        }
        return data;
    }

    @Test
    void many_edits_by_a_key_that_sees_no_secrets() throws Exception {
        JsonNode cases = cases("secrets");
        client.createDefinition("secrets", List.of(), cases.get("schema"));
        client.create("secrets", "k", cases.get("data"));
        Object grants = List.of(Map.of("verbs", List.of("read", "write"), "definitions", List.of("secrets")));
        JsonNode key = client.request("POST", "/api/v1/api_key/", Map.of("name", "blind", "grants", grants), null, null).data();
        Random dice = new Random(7);
        int done = 0, rejected = 0;
        try (ConcordClient blind = ConcordClient.builder().nodes(demo.urls()).key(key.get("api_key").asText()).build()) {
            JsonNode before = client.get("secrets", "k").data();
            for (int turn = 0; turn < 300; turn++) {
                if (turn % 50 == 0) {
                    // Begin again, as the lists run empty.
                    client.put("secrets", "k", cases.get("data"));
                    before = client.get("secrets", "k").data();
                }
                List<String> seen = new ArrayList<>();
                try {
                    seen.add(String.valueOf(blind.update("secrets", "k", data -> {
                        seen.add(data.toString());
                        return edited(dice, data);
                    }).data()));
                } catch (InvalidException error) {
                    rejected++;
                    assertEquals(before, client.get("secrets", "k").data());
                    continue;
                }
                done++;
                assertFalse(seen.toString().contains("secret-"), "turn " + turn);
                JsonNode after = client.get("secrets", "k").data();
                Map<String, List<String>> old = secretsOf(before, List.of()), now = secretsOf(after, List.of());
                Set<List<String>> owners = owners(after, List.of());
                // Nothing has moved to another owner, and nothing is lost except with its owner.
                now.forEach((secret, owner) -> assertEquals(old.getOrDefault(secret, owner), owner, secret));
                old.forEach((secret, owner) -> assertTrue(now.containsKey(secret) || !owners.contains(owner), secret));
                before = after;
            }
        }
        assertTrue(done > 30 && rejected > 10, done + " " + rejected);
    }

    // --- Silence ------------------------------------------------------------------------------------------------------

    @Test
    void a_connection_that_goes_silent_is_left_in_time() throws Exception {
        client.createDefinition("silence", List.of());
        try (Proxy proxy = new Proxy(demo.urls().get(0));
                ConcordClient through = demo.client().nodes(List.of(proxy.url(), demo.urls().get(0))).attemptTimeout(Duration.ofSeconds(1)).build();
                Watch watch = through.watch(WatchOptions.of("silence").from(client.upsert("silence", "k", Map.of("n", 0)).revision()).idleEvents(1));
                Cache cache = through.cache(CacheOptions.of("silence").pollSeconds(1))) {
            assertEquals(0, data(watch));
            proxy.silent(true);
            long revision = client.upsert("silence", "k", Map.of("n", 1)).revision();
            long began = System.nanoTime();
            assertEquals(1, data(watch));
            assertTrue(cache.waitRevision(revision, PATIENCE));
            for (int n = 2; n < 5; n++) {
                through.put("silence", "k", Map.of("n", n));
                assertEquals(n, through.get("silence", "k").data().get("n").asInt());
            }
            assertTrue(Duration.ofNanos(System.nanoTime() - began).toSeconds() < 30);
            for (long end = System.nanoTime() + PATIENCE.toNanos(); !cache.get("silence", "k").isFresh(); Thread.sleep(20)) {
                assertTrue(System.nanoTime() < end, cache.status().toString());
            }
        }
    }

    private static int data(Watch watch) {
        while (true) {
            if (watch.next() instanceof Event event && !event.changes().isEmpty()) {
                return event.changes().get(0).data().get("n").asInt();
            }
        }
    }
}
