package io.github.concordconfig.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;
import org.junit.jupiter.api.Test;

/** The cases that all clients share, as far as they need no nodes. */
class CasesTest {
    private static final JsonNode ENVIRONMENTS = Cases.of("environments"), READERS = Cases.of("readers");
    private static final Environment PROD = Environment.of(ENVIRONMENTS.get("name").asText());

    @Test
    void documents_keep_digits_texts_and_order() {
        for (JsonNode each : Cases.of("documents")) {
            String text = each.get("text").asText();
            String expected = text.replaceAll("(?<=[0-9])[eE]\\+?(?=-?[0-9])", "e").replace("\\u2028", "\u2028")
                    .replace("\\u2029", "\u2029").replace("\\u0085", "\u0085").replace("\\ufeff", "\ufeff");
            assertEquals(expected, Cases.plain(Cases.json(text)), each.get("name").asText());
            assertEquals(expected, Cases.plain(Json.frozen(Cases.json(text))));
            // Through a type of the program.
            assertEquals(expected, Cases.plain(Json.of(Json.to(Holder.class, wrapped(text), Json.MODELS), Json.MODELS).get("data")));
        }
    }

    record Holder(JsonNode data) {}

    private static JsonNode wrapped(String text) {
        return Json.object().set("data", Cases.json(text));
    }

    @Test
    void urls_that_can_not_be_used_are_rejected_and_show_no_password() {
        for (JsonNode each : Cases.of("urls").get("refused")) {
            IllegalArgumentException error = assertThrows(IllegalArgumentException.class,
                    () -> ConcordClient.builder().nodes(each.asText()).key("k").build());
            assertFalse(error.toString().contains("hunter2"));
            assertNull(error.getCause());
        }
    }

    @Test
    void reasons_are_sent_as_the_history_has_them() {
        for (JsonNode each : Cases.of("reasons").get("cases")) {
            String reason = each.get("reason").asText();
            if (each.has("sent")) {
                assertEquals(each.get("sent").asText(), Requests.reason(reason));
            } else if (!reason.isEmpty()) {
                assertEquals("header_invalid", assertThrows(InvalidException.class, () -> WriteOption.reason(reason)).code());
            }
        }
    }

    @Test
    void requests_have_the_whole_keys() {
        for (JsonNode each : ENVIRONMENTS.get("requests")) {
            byte[] body = each.has("body") ? Json.bytes(each.get("body")) : null;
            String method = each.get("method").asText();
            Request sent = PROD.enter(new Request(method, each.get("path").asText(), Map.of(), body, false, null, null, false));
            assertEquals(each.get("sent").asText(), sent.target());
            if (body != null) {
                JsonNode expected = each.has("sent_body") ? each.get("sent_body") : each.get("body");
                assertEquals(expected, Cases.json(new String(sent.body(), StandardCharsets.UTF_8)), each.toString());
            }
        }
    }

    @Test
    void responses_events_and_pages_have_the_keys_of_the_program() {
        for (JsonNode each : ENVIRONMENTS.get("responses")) {
            JsonNode data = each.get("data").deepCopy();
            PROD.leave(each.get("method").asText(), each.get("path").asText(), data);
            assertEquals(each.has("shown") ? each.get("shown") : each.get("data"), data, each.toString());
        }
        for (JsonNode each : ENVIRONMENTS.get("events")) {
            JsonNode data = each.get("data").deepCopy();
            PROD.leaveEvent(data);
            assertEquals(each.get("shown"), data);
        }
        for (JsonNode each : ENVIRONMENTS.get("next_pages")) {
            Environment of = Environment.of(each.get("environment").asText());
            String left = of.left(each.get("link").asText());
            assertEquals(each.get("shown").asText(), left);
            assertEquals(each.get("sent").asText(), of.enter(Request.read(left)).target());
        }
    }

    @Test
    void names_of_environments_are_valid_or_rejected() {
        for (JsonNode each : ENVIRONMENTS.get("names")) {
            assertEquals(each.asText(), Environment.of(each.asText()).name);
        }
        for (JsonNode each : ENVIRONMENTS.get("without_prefix")) {
            assertNull(Environment.of(each.asText()));
        }
        for (JsonNode each : ENVIRONMENTS.get("refused")) {
            assertThrows(IllegalArgumentException.class, () -> Environment.of(each.asText()), each.toString());
        }
        Map<String, String> variables = Map.of("CONCORD_API_KEY", "k", "CONCORD_ENVIRONMENT", "");
        assertThrows(IllegalArgumentException.class, () -> ConcordClient.fromEnvironment(variables).build());
    }

    private static Map<String, String> labels(JsonNode given) {
        Map<String, String> labels = new LinkedHashMap<>();
        given.path("labels").properties().forEach(each -> labels.put(each.getKey(), each.getValue().asText()));
        return labels;
    }

    @Test
    void readers_are_sent_or_rejected() {
        Request read = Request.read("/api/v1/config_definition/limits/config/acme");
        for (JsonNode each : READERS.get("sent")) {
            Reader reader = Reader.of(each.path("reader").asText(null), labels(each));
            Map<String, String> headers = reader == null ? Map.of() : reader.on(read).headers();
            assertEquals(each.path("reader_header").asText(null), headers.get("x-concord-reader"));
            assertEquals(each.path("labels_header").asText(null), headers.get("x-concord-labels"));
        }
        for (JsonNode each : READERS.get("refused")) {
            assertThrows(IllegalArgumentException.class, () -> Reader.of(each.get("reader").asText(null), labels(each)),
                    each.toString());
        }
        for (JsonNode each : READERS.get("requests")) {
            assertEquals(each.get("is_sent").asBoolean(),
                    Reader.isReadAsReader(each.get("method").asText(), each.get("path").asText()), each.toString());
        }
        for (JsonNode each : READERS.get("variants")) {
            assertEquals(each.get("change").asText(null), Reader.variantOf(each.get("header").asText()));
        }
        assertTrue(Reader.hostName() != null);
        assertEquals(Map.of("ring", "canary", "region", "eu"), Reader.labelsOf("ring=canary, region=eu"));
        for (String text : new String[] {"ring", "ring=a,ring=b", "ring="}) {
            assertThrows(IllegalArgumentException.class, () -> Reader.of("h", Reader.labelsOf(text)));
        }
    }

    @Test
    void markers_keep_secret_values_and_can_not_be_moved() {
        ObjectNode data = (ObjectNode) Cases.of("secrets").get("data").deepCopy();
        ObjectNode hidden = data.deepCopy();
        hidden.putNull("password");
        ((ObjectNode) hidden.at("/databases/0/users/1")).putNull("pin");
        java.util.List<String> redacted = java.util.List.of("#/password", "#/databases/0/users/1/pin");
        ObjectNode made = (ObjectNode) Secrets.marked(hidden, redacted);
        made.put("name", "other");
        JsonNode stored = Secrets.stored(made);
        assertEquals("{\"$concord-keep\":true}", Cases.text(stored.get("password")));
        assertEquals("{\"$concord-keep\":true}", Cases.text(stored.at("/databases/0/users/1/pin")));
        ((com.fasterxml.jackson.databind.node.ArrayNode) made.at("/databases/0/users")).remove(0);
        InvalidException error = assertThrows(InvalidException.class, () -> Secrets.stored(made));
        assertEquals(java.util.List.of("/data/databases/0/users/0/pin"), error.paths());
    }

    @Test
    void a_type_keeps_secret_values_that_it_does_not_see() {
        JsonNode before = Cases.json("{\"p\":null,\"l\":[{\"h\":\"a\",\"t\":null},{\"h\":\"b\",\"n\":1.50}]}");
        java.util.List<String> redacted = java.util.List.of("#/p", "#/l/0/t");
        JsonNode kept = Secrets.kept(Cases.json("{\"l\":[{\"h\":\"a\"},{\"h\":\"b\",\"n\":1.5}]}"), before, redacted);
        assertEquals("{\"l\":[{\"h\":\"a\",\"t\":{\"$concord-keep\":true}},{\"h\":\"b\",\"n\":1.50}],\"p\":{\"$concord-keep\":true}}",
                Cases.text(Secrets.stored(kept)));
        JsonNode written = Secrets.kept(Cases.json("{\"p\":\"new\"}"), before, redacted);
        assertEquals("{\"p\":\"new\"}", Cases.text(Secrets.stored(written)));
        assertThrows(InvalidException.class, () -> Secrets.kept(Cases.json("{\"l\":[{\"h\":\"b\"},{\"h\":\"a\"}]}"), before, redacted));
    }
}
