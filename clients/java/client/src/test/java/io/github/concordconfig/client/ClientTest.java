package io.github.concordconfig.client;

import static io.github.concordconfig.client.PlayedNodes.lost;
import static io.github.concordconfig.client.PlayedNodes.ok;
import static io.github.concordconfig.client.PlayedNodes.record;
import static io.github.concordconfig.client.PlayedNodes.rejected;
import static io.github.concordconfig.client.WriteOption.dryRun;
import static io.github.concordconfig.client.WriteOption.idempotencyKey;
import static io.github.concordconfig.client.WriteOption.ifMatch;
import static io.github.concordconfig.client.WriteOption.reason;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.Supplier;
import java.util.stream.Collectors;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** What a client sends, and what it makes of responses. */
class ClientTest {
    private final PlayedNodes nodes = new PlayedNodes();
    private final ConcordClient client = nodes.client().build();

    record Limits(String plan, int seats) {}

    private PlayedNodes.Sent first() {
        return nodes.sent.get(0);
    }

    @Test
    void a_write_has_what_it_is_given() {
        nodes.answer = any -> PlayedNodes.response(201, Map.of("data", Map.of("n", 1)), "etag", "\"7\"", "x-concord-revision", "9");
        Written written = client.put("d", "k", Map.of("n", 1), ifMatch(6), reason("grün"), idempotencyKey("i"));
        Request sent = first().request();
        assertEquals("PUT /api/v1/config_definition/d/config/k {\"data\":{\"n\":1}}", sent.toString());
        assertEquals(Map.of("if-match", "\"6\"", "idempotency-key", "i", "x-change-reason", "grün", "content-type", "application/json"), sent.headers());
        assertEquals(List.of(7L, 9L, true, 9L), List.of(written.revision(), written.stateRevision(), written.isCreated(), client.revision()));
        client.patch("d", "k", List.of(Map.of("op", "remove", "path", "/n")));
        client.patch("d", "k", Map.of("n", 2));
        assertEquals("application/json-patch+json", nodes.sent.get(1).request().headers().get("content-type"));
        assertEquals("application/merge-patch+json", nodes.sent.get(2).request().headers().get("content-type"));
        client.put("d", "k", new Limits("pro", 3), dryRun());
        Request dry = nodes.sent.get(3).request();
        assertEquals("/api/v1/config_definition/d/config/k?dry_run=true", dry.target());
        assertFalse(dry.isWrite());
        assertEquals("{\"data\":{\"plan\":\"pro\",\"seats\":3}}", Cases.text(nodes.sent.get(3).body()));
    }

    @Test
    void what_would_be_changed_or_misread_is_not_sent() {
        for (String key : new String[] {"", ".", "..", "a/b", "a?b", "../x", "a b", "ä", "x".repeat(256), "a\n", "%2e%2e"}) {
            assertEquals("key_invalid", assertThrows(InvalidException.class, () -> client.delete("limits", key)).code());
            assertThrows(InvalidException.class, () -> client.deleteDefinition(key));
        }
        assertThrows(IllegalArgumentException.class, () -> client.put("d", "k", Map.of("a/b", Double.NaN)));
        assertThrows(IllegalArgumentException.class, () -> client.put("d", "k", Json.object().put("x", Double.POSITIVE_INFINITY)));
        assertThrows(IllegalArgumentException.class, () -> client.delete("d", "k", WriteOption.createOnly()));
        assertThrows(IllegalArgumentException.class, () -> client.get("d", "k", ReadOption.minRevision(1), ReadOption.minRevision(2)));
        assertThrows(InvalidException.class, () -> idempotencyKey("a b"));
        assertThrows(IllegalArgumentException.class, () -> client.listAcross(List.of(), Query.all()));
        assertThrows(IllegalArgumentException.class, () -> client.watch(WatchOptions.of("d").configs(List.of())));
        assertThrows(IllegalArgumentException.class, () -> client.request("/x y"));
        assertEquals(List.of(), nodes.sent);
    }

    @Test
    void filters_become_parameters() {
        Query query = Query.where("tier[gte]", 2).and("team", List.of("a", "b,c")).and("on", true).and("zip", null).and("limit", 5)
                .and("config_key[prefix]", "x").and("n[in]", List.of(new java.math.BigDecimal("1.50")));
        String target = Requests.target("/x", query.parameters());
        assertEquals("/x?tier[gte]=2&team=a&team=b%2Cc&on=true&zip=null&data.limit=5&config_key[prefix]=x&n=1.50", target);
        assertEquals("/x?n[exists]=true&n[exists]=false", Requests.target("/x", Query.where("n", List.of()).parameters()));
        assertThrows(IllegalArgumentException.class, () -> Query.where("n[gte]", List.of()));
    }

    @Test
    void warnings_are_in_results() {
        String header = "299 - \"without effect: `a`, `b`\", 299 - \"an index has \\\"a\\\" name\"";
        nodes.answer = any -> ok(record("k", Json.object()), "etag", "\"7\"", "warning", header);
        List<String> told = List.of("without effect: `a`, `b`", "an index has \"a\" name");
        assertEquals(told, client.get("d", "k").warnings());
        assertEquals(told, client.put("d", "k", Map.of()).warnings());
        assertEquals(told, client.batch(List.of()).warnings());
        assertEquals(told, client.setSchema("d", null).warnings());
    }

    @Test
    void copies_of_a_write_are_equal_and_the_key_goes_to_the_nodes_only() {
        List<Wire.Reply> replies = new ArrayList<>(List.of(lost(), lost(), ok(Map.of(), "etag", "\"7\"")));
        nodes.answer = any -> replies.remove(0);
        assertEquals(7, client.put("d", "k", Map.of("a", 1)).revision());
        assertEquals(3, nodes.sent.stream().map(PlayedNodes.Sent::node).collect(Collectors.toSet()).size());
        for (PlayedNodes.Sent each : nodes.sent) {
            assertEquals(first().request().toString(), each.request().toString());
            assertEquals(first().request().headers(), each.request().headers());
        }
        nodes.answer = any -> ok(Map.of("results", List.of()), "link", "<http://evil/x>; rel=\"next\"");
        assertEquals(0, client.list("d", Query.all()).count());
    }

    @Test
    void an_update_begins_again_when_somebody_else_was_faster() {
        long[] revision = {5};
        nodes.answer = sent -> {
            if (sent.request().method().equals("GET")) {
                return ok(record("k", Json.object().put("n", revision[0])), "etag", "\"" + revision[0] + "\"");
            }
            if (!sent.request().headers().get("if-match").equals("\"7\"")) {
                revision[0]++;
                return rejected(412, "precondition_failed", "etag", "\"" + revision[0] + "\"");
            }
            return ok(sent.body().get("data"), "etag", "\"8\"");
        };
        Written written = client.update("d", "k", data -> data.put("n", data.get("n").asInt() * 10));
        assertEquals("{\"n\":70}", Cases.text(written.data()));
        Set<String> keys = nodes.sent.stream().map(each -> each.request().headers().get("idempotency-key")).collect(Collectors.toSet());
        assertEquals(4, keys.size(), "each attempt is another write, and a read has no key");
        revision[0] = 100;
        PreconditionFailedException error =
                assertThrows(PreconditionFailedException.class, () -> client.put("d", "k", Map.of(), ifMatch(3)));
        assertEquals(101, error.currentRevision().orElseThrow());
    }

    @Test
    void an_update_keeps_secret_values() {
        nodes.answer = sent -> ok(sent.request().method().equals("GET")
                ? record("k", Cases.json("{\"name\":\"a\",\"password\":null}")) : Map.of(), "etag", "\"7\"", "x-concord-redacted", "#/password");
        client.update("d", "k", data -> data.put("name", "b"));
        assertEquals("{\"data\":{\"name\":\"b\",\"password\":{\"$concord-keep\":true}}}", Cases.text(nodes.sent.get(1).body()));
        assertThrows(InvalidException.class, () -> client.update("d", "k", data -> {
            data.set("other", data.remove("password"));
            return data;
        }));
        record Account(String name, String password) {}
        client.records("d", Account.class).update("k", account -> new Account("c", account.password()));
        assertEquals("{\"data\":{\"name\":\"c\",\"password\":{\"$concord-keep\":true}}}",
                Cases.text(nodes.sent.get(nodes.sent.size() - 1).body()));
        assertEquals(2, nodes.sent.stream().filter(each -> each.request().method().equals("PUT")).count());
    }

    @Test
    void a_list_goes_on_when_the_node_that_held_it_is_gone() {
        nodes.answer = sent -> {
            if ("2".equals(sent.query("cursor"))) {
                return rejected(410, "cursor_expired");
            }
            int page = Integer.parseInt(sent.query("page") != null ? sent.query("page") : sent.query("cursor") != null ? sent.query("cursor") : "1");
            List<ObjectNode> results = new ArrayList<>();
            for (int n = (page - 1) * 4; n < Math.min(page * 4, 10); n++) {
                results.add(record("k" + n, Json.object()));
            }
            String link = page < 3 ? "</x?cursor=" + (page + 1) + ">; rel=\"next\"" : "";
            return ok(Map.of("results", results), "x-concord-revision", "50", "link", link);
        };
        assertEquals(10, client.list("d", Query.all().pageSize(4)).map(Config::key).distinct().count());
        assertEquals("2", nodes.sent.get(2).query("page"));
        assertEquals("50", nodes.sent.get(2).query("$revision"));
        nodes.answer = any -> rejected(410, "revision_compacted");
        assertThrows(ExpiredException.class, () -> client.list("d", Query.all(), ReadOption.atRevision(3)).count());
    }

    @Test
    void a_response_of_another_record_is_no_response() {
        nodes.answer = any -> ok(record("other", Json.object()), "etag", "\"7\"");
        assertThrows(ProtocolException.class, () -> client.get("d", "k"));
        assertThrows(ProtocolException.class, () -> client.getDefinition("x"));
        nodes.answer = any -> ok(Map.of("revision", 7, "results",
                List.of(Map.of("config_definition_key", "d", "config_key", "x", "status", "absent"))));
        assertThrows(ProtocolException.class, () -> client.readMany(List.of(new ConfigName("d", "k"))));
        assertEquals("absent", client.readMany(List.of(new ConfigName("d", "x"))).missing().get(new ConfigName("d", "x")));
    }

    @Test
    void a_candidate_has_no_revision_and_an_update_rests_on_what_is_proven() {
        ConcordClient reader = nodes.client().reader("h").build();
        nodes.answer = sent -> sent.request().headers().containsKey("x-concord-reader")
                ? ok(record("k", Json.object().put("n", 9)), "etag", "\"change-1\"", "x-concord-variant", "candidate; change=change-1")
                : ok(record("k", Json.object().put("n", 1)), "etag", "\"7\"");
        Config found = reader.get("d", "k");
        assertEquals(List.of("change-1", 0L, 9), List.of(found.change(), found.revision(), found.data().get("n").asInt()));
        reader.getIfChanged(found);
        assertFalse(nodes.sent.get(1).request().headers().containsKey("if-none-match"));
        reader.update("d", "k", data -> data.put("n", data.get("n").asInt() + 1));
        PlayedNodes.Sent last = nodes.sent.get(nodes.sent.size() - 1);
        assertEquals("\"7\" {\"data\":{\"n\":2}}", last.request().headers().get("if-match") + " " + Cases.text(last.body()));
    }

    @Test
    void data_are_read_only_and_a_copy_is_not() {
        nodes.answer = any -> ok(record("k", Cases.json("{\"a\":{\"b\":[1]}}")), "etag", "\"7\"");
        JsonNode data = client.get("d", "k").data();
        assertThrows(UnsupportedOperationException.class, () -> ((ObjectNode) data).put("x", 1));
        assertThrows(UnsupportedOperationException.class, () -> ((com.fasterxml.jackson.databind.node.ArrayNode) data.at("/a/b")).add(1));
        ObjectNode copy = data.deepCopy();
        copy.put("price", new java.math.BigDecimal("1.50"));
        assertEquals("{\"a\":{\"b\":[1]},\"price\":1.50}", Cases.text(copy));
    }

    @Test
    void types_are_read_strictly_and_name_the_place() {
        assertEquals(new Limits("pro", 3), Json.to(Limits.class, Cases.json("{\"plan\":\"pro\",\"seats\":3,\"new\":1}"), Json.MODELS));
        assertEquals(new Limits(null, 3), Json.to(Limits.class, Cases.json("{\"seats\":3}"), Json.MODELS));
        for (String text : List.of("{\"plan\":\"pro\"}", "{\"seats\":\"3\"}", "{\"seats\":1.5}", "{\"seats\":null}", "{\"seats\":1e400}")) {
            ModelException error = assertThrows(ModelException.class, () -> Json.to(Limits.class, Cases.json(text), Json.MODELS), text);
            assertEquals(List.of("/seats"), error.paths(), text);
        }
    }

    @Test
    void a_rejection_has_its_code_and_places() {
        JsonNode body = Cases.json("{\"errors\":[{\"type\":\"v\",\"code\":\"data_invalid\",\"msg\":\"bad\",\"loc\":[\"data\",\"a/b\",0]}]}");
        RejectedException error = RejectedException.of(422, body, "http://a", Map.of("x-request-id", "r", "x-concord-revision", "7"));
        assertTrue(error instanceof InvalidException);
        assertEquals(List.of("data_invalid", List.of("/data/a~1b/0"), "422: /data/a~1b/0: bad", "r", 7L),
                List.of(error.code(), error.paths(), error.getMessage(), error.requestId().orElseThrow(), error.revision().orElseThrow()));
        JsonNode shape = Cases.json("{\"detail\":[{\"type\":\"missing\",\"msg\":\"required\",\"loc\":[\"body\",\"data\"]}]}");
        assertEquals(List.of("/body/data"), RejectedException.of(422, shape, "http://a", Map.of()).paths());
    }

    @Test
    void a_watch_resumes_and_notices_another_cluster() {
        Watch watch = client.watch(WatchOptions.of("d").from(11)), anew = client.watch(WatchOptions.of("d").initial());
        assertEquals(10, anew.next().revision());
        nodes.put(12, "a", "{\"n\":2}");
        assertEquals(12, watch.next().revision());
        assertEquals("{\"n\":2}", Cases.text(((Event) anew.next()).changes().get(0).data()));
        nodes.cluster = "two";
        nodes.put(13, "a", "{\"n\":7}");
        assertEquals("cluster_changed", assertThrows(ExpiredException.class, watch::next).code());
        assertEquals(13, ((State) anew.next()).revision());
        anew.close();
        assertFalse(anew.hasNext());
        nodes.compacted = 20;
        assertThrows(ExpiredException.class, client.watch(WatchOptions.of("d").from(5))::next);
    }

    @Test
    void a_key_in_a_file_is_read_again_when_it_changes(@TempDir Path folder) throws Exception {
        Path file = Files.writeString(folder.resolve("key"), "one\nolder\n");
        Credential credential = new Credential(null, file);
        assertEquals("one", credential.key());
        Files.move(Files.writeString(folder.resolve("other"), "two\n"), file, java.nio.file.StandardCopyOption.REPLACE_EXISTING);
        assertEquals("two", credential.key());
        Files.delete(file);
        assertEquals("two", credential.key());
        List<Supplier<Credential>> wrong = List.of(() -> new Credential(null, null), () -> new Credential("a b", null),
                () -> new Credential("a", file), () -> new Credential("", null));
        wrong.forEach(each -> assertFalse(assertThrows(IllegalArgumentException.class, each::get).getMessage().contains("a b")));
        assertFalse(Arrays.asList(new Credential("very-secret", null).toString(), client.toString()).toString().contains("very-secret"));
    }

    @Test
    void a_clock_does_not_go_back() {
        long last = Clock.SYSTEM.nanos();
        for (int n = 0; n < 1000; n++) {
            long now = Clock.SYSTEM.nanos();
            // The wall clock has milliseconds.
            assertTrue(now - last > -2_000_000);
            last = now;
        }
        assertTrue(Duration.ofNanos(Clock.SYSTEM.nanos() - last).toSeconds() < 5);
    }

    @Test
    void a_marker_is_never_stored_in_place_of_a_secret_value() {
        JsonNode marked = Secrets.marked(Cases.json("{\"password\":null}"), List.of("#/password"));
        int count = nodes.sent.size();
        for (Runnable write : List.<Runnable>of(() -> client.patch("d", "k", marked),
                () -> client.patch("d", "k", List.of(Map.of("op", "add", "path", "/copy", "value", marked.get("password")))),
                () -> client.batch(List.of(Operation.patch("d", "k", marked))),
                () -> client.request("PUT", "/api/v1/config_definition/d/config/k", Map.of("data", marked), null, null))) {
            assertThrows(InvalidException.class, write::run);
        }
        assertEquals(count, nodes.sent.size());
    }

    @Test
    void a_number_that_became_a_text_is_a_change_of_a_list() {
        JsonNode before = Cases.json("{\"l\":[{\"v\":5,\"s\":null}]}");
        JsonNode changed = Cases.json("{\"l\":[{\"v\":\"5\",\"s\":null}]}");
        assertThrows(InvalidException.class, () -> Secrets.kept(changed, before, List.of("#/l/0/s")));
        JsonNode same = Cases.json("{\"l\":[{\"v\":5.0,\"s\":null}]}");
        assertEquals(5, Secrets.kept(same, before, List.of("#/l/0/s")).at("/l/0/v").asInt());
    }

    @Test
    void a_write_whose_response_can_not_be_read_has_not_failed() {
        Map<String, Object> config = Map.of("config_key", "k", "data", Map.of(), "modified_at", "the first of May");
        nodes.answer = sent -> PlayedNodes.ok(Map.of("revision", 7, "results", List.of(Map.of("op", "get_config", "config", config))));
        UnknownOutcomeException error = assertThrows(UnknownOutcomeException.class,
                () -> client.batch(List.of(Operation.delete("d", "a"), Operation.get("d", "k"))));
        String sent = nodes.sent.get(nodes.sent.size() - 1).request().idempotencyKey();
        assertEquals(sent, error.idempotencyKey().orElseThrow());
        assertThrows(ProtocolException.class, () -> client.batch(List.of(Operation.get("d", "k")), WriteOption.dryRun()));
        nodes.answer = any -> PlayedNodes.ok(List.of());
        assertThrows(UnknownOutcomeException.class, () -> client.propose("t", "", List.of(Operation.delete("d", "a"))));
    }

    @Test
    void nothing_is_left_of_what_was_not_made() throws Exception {
        for (int n = 0; n < 3; n++) {
            assertThrows(IllegalArgumentException.class, () -> client.watch(WatchOptions.of("d").from(1).initial()));
            assertThrows(IllegalArgumentException.class, () -> client.cache(CacheOptions.of("d").configs(List.of())));
        }
        var scope = ConcordClient.class.getDeclaredField("scope");
        var open = Scope.class.getDeclaredField("open");
        scope.setAccessible(true);
        open.setAccessible(true);
        assertEquals(Set.of(), open.get(scope.get(client)));
    }

    @Test
    void an_event_that_can_not_be_read_is_an_error_of_the_client() {
        nodes.add(11, Json.object().put("type", "config_deleted").put("config_definition_key", "d").put("config_key", "a"));
        var event = Map.of("revision", 11, "at", "the first of May", "changes", List.of());
        nodes.answer = sent -> PlayedNodes.ok(Map.of("events", List.of(event)), "x-concord-next-from", "12");
        try (Watch watch = client.watch(WatchOptions.of("d").from(11))) {
            assertThrows(ProtocolException.class, watch::hasNext);
        }
    }
}
