package io.github.concordconfig.client;

import static org.junit.jupiter.api.Assertions.assertTimeoutPreemptively;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.CountDownLatch;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFilePermissions;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.function.BooleanSupplier;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** What a cache makes of the responses of nodes. */
class CacheTest {
    private static final Duration PATIENCE = Duration.ofSeconds(30), SHORT = Duration.ofMillis(200);

    private final PlayedNodes nodes = new PlayedNodes();
    private final ConcordClient client = nodes.client().build();

    record Numbered(int n) {}

    @AfterEach
    void no_thread_outlives_its_client() {
        client.close();
        assertFalse(Thread.getAllStackTraces().keySet().stream().anyMatch(each -> each.getName().startsWith("concord-")));
    }

    private static CacheOptions options() {
        return CacheOptions.of("d").pollSeconds(0).startTimeout(PATIENCE);
    }

    private static void until(BooleanSupplier condition) throws InterruptedException {
        for (long end = System.nanoTime() + PATIENCE.toNanos(); !condition.getAsBoolean(); Thread.sleep(5)) {
            assertTrue(System.nanoTime() < end, "not in time");
        }
    }

    private static String shown(CacheValue value) {
        return Cases.text(value.data()) + " " + value.source() + " " + value.revision();
    }

    @Test
    void a_cache_follows_and_says_where_a_value_is_from() throws Exception {
        Cache cache = client.cache(options());
        assertEquals("{\"n\":1} LIVE 9", shown(cache.get("d", "a")));
        assertTrue(PlayedNodes.NODES.contains(cache.get("d", "a").node()));
        List<Long> heard = new CopyOnWriteArrayList<>();
        cache.onChange(item -> heard.add(item.revision()));
        nodes.put(12, "a", "{\"n\":2}");
        nodes.put(13, "b", "{\"n\":3}");
        assertTrue(cache.waitRevision(13, PATIENCE));
        assertEquals("{\"n\":2} LIVE 12", shown(cache.get("d", "a")));
        assertEquals(Set.of(new ConfigName("d", "a"), new ConfigName("d", "b")), cache.snapshot().keySet());
        nodes.delete(14, "a");
        assertTrue(cache.waitRevision(14, PATIENCE));
        assertEquals(Source.LIVE, assertThrows(NotCachedException.class, () -> cache.get("d", "a")).source());
        assertEquals("{} DEFAULT 0", shown(cache.get("d", "a", Json.object())));
        nodes.add(15, Json.object().put("type", "definition_deleted").put("config_definition_key", "d"));
        assertTrue(cache.waitRevision(15, PATIENCE));
        assertEquals(Map.of(), cache.snapshot());
        until(() -> heard.equals(List.of(12L, 13L, 14L, 15L)));
        assertThrows(IllegalArgumentException.class, () -> cache.get("other", "a"));
    }

    @Test
    void a_cache_without_nodes_goes_on_and_is_not_fresh() throws Exception {
        Cache cache = client.cache(options());
        nodes.isDown = true;
        until(() -> cache.status().source() == Source.CACHE);
        Duration age = cache.get("d", "a").age();
        assertTrue(cache.get("d", "a").age().compareTo(age) > 0);
        assertTrue(cache.status().error().isPresent());
        nodes.put(12, "a", "{\"n\":2}");
        nodes.isDown = false;
        until(() -> cache.get("d", "a").isFresh());
        assertEquals("{\"n\":2} LIVE 12", shown(cache.get("d", "a")));
        nodes.isForbidden = true;
        until(() -> cache.status().error().orElse("").contains("403"));
        assertEquals("{\"n\":2} CACHE 12", shown(cache.get("d", "a")));
    }

    @Test
    void a_cache_resyncs_when_changes_are_compacted() throws Exception {
        Cache cache = client.cache(options());
        synchronized (nodes) {
            nodes.revision = 90;
            nodes.compacted = 80;
            nodes.configs.clear();
            nodes.configs.put("z", Cases.json("{\"n\":9}"));
        }
        until(() -> cache.find("d", "z").isPresent());
        assertTrue(cache.find("d", "a").isEmpty());
    }

    @Test
    void what_another_cluster_does_not_confirm_is_not_live() throws Exception {
        for (long revision : new long[] {5, 10, 70}) {
            nodes.cluster = "one";
            nodes.configs.put("a", Cases.json("{\"n\":1}"));
            Cache cache = client.cache(options().fresh(Duration.ofHours(1)));
            synchronized (nodes) {
                nodes.cluster = "two" + revision;
                nodes.revision = revision;
                nodes.configs.put("a", Cases.json("{\"n\":0}"));
                nodes.hasNoWatch = true;
            }
            until(() -> cache.status().error().orElse("").contains("another cluster"));
            assertEquals("{\"n\":1}", Cases.text(cache.get("d", "a").data()));
            assertEquals(Source.CACHE, cache.status().source());
            nodes.hasNoWatch = false;
            until(() -> cache.get("d", "a").isFresh());
            assertEquals("{\"n\":0}", Cases.text(cache.get("d", "a").data()));
            cache.close();
        }
    }

    @Test
    void an_age_is_counted_from_before_the_read_that_confirms() throws Exception {
        Cache cache = client.cache(options().fresh(Duration.ofHours(1)));
        // The confirmation tells a revision that the replica does not have, and no poll brings it.
        synchronized (nodes) {
            nodes.answer = sent -> PlayedNodes.response(304, null, "x-concord-next-from", sent.query("from") == null ? "12" : "11");
        }
        int count = nodes.sent.size();
        until(() -> nodes.sent.size() > count + 10);
        long confirmed = cache.replica().confirmedAt();
        until(() -> nodes.sent.size() > count + 20);
        assertEquals(confirmed, cache.replica().confirmedAt());
    }

    @Test
    void a_start_without_nodes_is_from_the_file(@TempDir Path folder) throws Exception {
        Path file = folder.resolve("good.json");
        nodes.configs.put("a", Cases.json("{\"price\":1.50}"));
        client.cache(options().file(file)).close();
        assertEquals("rw-------", PosixFilePermissions.toString(Files.getPosixFilePermissions(file)));
        assertEquals(1, folder.toFile().list().length);
        nodes.isDown = true;
        Cache cache = client.cache(options().startTimeout(SHORT).file(file));
        assertEquals("{\"price\":1.50} FILE 9", shown(cache.get("d", "a")));
        assertTrue(cache.status().error().isPresent());
        nodes.isDown = false;
        until(() -> cache.get("d", "a").isFresh());
        cache.close();
        nodes.isDown = true;
        for (String environment : new String[] {"prod", "staging"}) {
            ConcordClient other = nodes.client().environment(environment).build();
            assertThrows(NotReadyException.class, () -> other.cache(options().startTimeout(SHORT).file(file)));
            other.close();
        }
        assertThrows(NotReadyException.class, () -> client.cache(options().startTimeout(SHORT).configs(List.of("a")).file(file)));
    }

    @Test
    void a_file_that_can_not_be_trusted_is_not_used_and_not_removed(@TempDir Path folder) throws Exception {
        Path file = folder.resolve("cache.json");
        JsonNode scope = Json.object().put("of", 1);
        ObjectNode content = Json.object();
        content.set("scope", scope);
        content.set("v", Cases.json("[1e400,1.50,1e1000000000000000000]"));
        LastKnownFile.save(file, content);
        assertEquals("[1e400,1.50,1e1000000000000000000]", Cases.plain(LastKnownFile.load(file, scope).get("v")));
        assertEquals(null, LastKnownFile.load(folder.resolve("absent"), scope));
        assertThrows(LastKnownFile.UnusableException.class, () -> LastKnownFile.load(file, Json.object()));
        Files.setPosixFilePermissions(file, PosixFilePermissions.fromString("rw-rw----"));
        assertThrows(LastKnownFile.UnusableException.class, () -> LastKnownFile.load(file, scope));
        Files.setPosixFilePermissions(file, PosixFilePermissions.fromString("rw-------"));
        String whole = Files.readString(file);
        for (String damaged : List.of(whole.substring(0, whole.length() - 70), whole.substring(0, 20), "", whole.replace("1.50", "1.51"))) {
            Files.writeString(file, damaged);
            assertThrows(LastKnownFile.UnusableException.class, () -> LastKnownFile.load(file, scope));
            assertEquals(damaged, Files.readString(file));
        }
    }

    @Test
    void a_first_start_without_nodes_has_defaults() throws Exception {
        nodes.isDown = true;
        assertThrows(NotReadyException.class, () -> client.cache(options().startTimeout(SHORT)));
        Cache cache = client.cache(options().startTimeout(SHORT).defaultData("d", "a", new Numbered(7)));
        assertEquals("{\"n\":7} DEFAULT 0", shown(cache.get("d", "a")));
        assertEquals(CacheValue.AGE_UNKNOWN, cache.get("d", "a").age());
        assertEquals(new Numbered(7), cache.typed("d", Numbered.class).get("a"));
        assertThrows(NotCachedException.class, () -> cache.get("d", "b"));
        nodes.isDown = false;
        until(() -> cache.get("d", "a").isFresh());
        assertEquals(new Numbered(1), cache.typed("d", Numbered.class).get("a"));
    }

    @Test
    void data_that_do_not_fit_a_type_leave_its_last_instance() {
        nodes.configs.put("never-read", Cases.json("{\"n\":5}"));
        Cache cache = client.cache(options());
        TypedCache<Numbered> typed = cache.typed("d", Numbered.class);
        assertSame(typed, cache.typed("d", Numbered.class));
        Numbered first = typed.get("a");
        assertSame(first, typed.get("a"));
        nodes.put(12, "a", "{\"m\":2}");
        nodes.put(13, "never-read", "{\"m\":2}");
        assertTrue(cache.waitRevision(13, PATIENCE));
        assertSame(first, typed.get("a"));
        assertEquals(new Numbered(5), typed.get("never-read"));
        CacheValue kept = typed.explain("a");
        assertEquals("{\"n\":1} LIVE 9", shown(kept));
        assertEquals(List.of("/n"), kept.invalid().orElseThrow().paths());
        assertEquals("{\"m\":2}", Cases.text(cache.get("d", "a").data()));
        nodes.put(14, "a", "{\"n\":3}");
        assertTrue(cache.waitRevision(14, PATIENCE));
        assertEquals(new Numbered(3), typed.get("a"));
        assertTrue(typed.explain("a").invalid().isEmpty());
        // A config that is created again has no last instance.
        nodes.delete(15, "a");
        nodes.put(16, "a", "{\"m\":2}");
        assertTrue(cache.waitRevision(16, PATIENCE));
        assertThrows(ModelException.class, () -> typed.get("a"));
        assertEquals(new Numbered(0), typed.get("a", new Numbered(0)));
        assertEquals(Map.of("never-read", new Numbered(5)), typed.all());
    }

    @Test
    void a_config_that_can_not_be_read_leaves_the_others() throws Exception {
        nodes.more.put("b", Json.object().put("modified_at", "the first of May"));
        nodes.configs.put("b", Cases.json("{\"n\":2}"));
        Cache cache = client.cache(options());
        assertEquals("{\"n\":1} LIVE 9", shown(cache.get("d", "a")));
        assertThrows(ProtocolException.class, () -> cache.get("d", "b"));
        // The version before one that can't be read is not the newest one.
        nodes.add(11, PlayedNodes.record("a", Cases.json("{\"n\":7}")).put("type", "config_updated").put("modified_at", "May"));
        assertTrue(cache.waitRevision(11, PATIENCE));
        for (CacheValue old : List.of(cache.get("d", "a"), cache.snapshot().get(new ConfigName("d", "a")))) {
            assertEquals("{\"n\":1} CACHE 9", shown(old));
            assertEquals(CacheValue.AGE_UNKNOWN, old.age());
        }
        assertEquals(Source.LIVE, cache.status().source());
        nodes.put(12, "b", "{\"n\":3}");
        assertTrue(cache.waitRevision(12, PATIENCE));
        assertEquals("{\"n\":3} LIVE 12", shown(cache.get("d", "b")));
        nodes.put(13, "a", "{\"n\":8}");
        assertTrue(cache.waitRevision(13, PATIENCE));
        assertEquals("{\"n\":8} LIVE 13", shown(cache.get("d", "a")));
        assertEquals(Map.of(), cache.status().unreadable());
    }

    private Cache reporting(ConcordClient reader) {
        Cache cache = reader.cache(options());
        cache.reports().every = Clock.SECOND / 50;
        cache.reports().firstWithin = 0;
        return cache;
    }

    private JsonNode lastReport() {
        synchronized (nodes) {
            return nodes.reports.isEmpty() ? Json.object() : nodes.reports.get(nodes.reports.size() - 1);
        }
    }

    @Test
    void a_candidate_is_reported_healthy_until_it_does_not_fit() throws Exception {
        try (ConcordClient reader = nodes.client().reader("h").labels(Map.of("ring", "canary")).build()) {
            Cache cache = reporting(reader);
            TypedCache<Numbered> typed = cache.typed("d", Numbered.class);
            nodes.put(11, "a", "{\"n\":1}", "change-1");
            until(() -> !nodes.reports.isEmpty());
            JsonNode first = lastReport();
            assertEquals("/api/v1/change_request/change-1/report", first.get("path").asText());
            assertEquals("h canary healthy 16", first.get("reader").asText() + " " + first.at("/labels/ring").asText() + " "
                    + first.get("state").asText() + " " + first.get("instance").asText().length());
            assertEquals("change-1", cache.get("d", "a").variant().orElseThrow());
            nodes.put(12, "a", "{\"n\":\"s3cret\"}", "change-1");
            until(() -> lastReport().path("state").asText().equals("failed"));
            assertEquals("d/a does not fit Numbered at /n", lastReport().get("detail").asText());
            assertEquals(new Numbered(1), typed.get("a"));
            // The rollout is taken back.
            nodes.put(13, "a", "{\"n\":0}");
            until(() -> typed.get("a").equals(new Numbered(0)));
            Thread.sleep(50);
            int count = nodes.reports.size();
            Thread.sleep(100);
            assertEquals(count, nodes.reports.size());
        }
    }

    @Test
    void a_config_that_does_not_fit_is_reported_until_it_does() throws Exception {
        try (ConcordClient reader = nodes.client().reader("h").build()) {
            Cache cache = reporting(reader);
            TypedCache<Numbered> typed = cache.typed("d", Numbered.class);
            assertEquals(new Numbered(1), typed.get("a"));
            Thread.sleep(50);
            assertEquals(List.of(), nodes.reports);
            nodes.put(12, "a", "{\"n\":\"s3cret\"}");
            until(() -> nodes.reports.size() > 1);
            assertEquals("/api/v1/config_definition/d/config/a/report failed 12", lastReport().get("path").asText() + " "
                    + lastReport().get("state").asText() + " " + lastReport().get("revision"));
            assertFalse(nodes.reports.toString().contains("s3cret"));
            nodes.put(13, "a", "{\"n\":2}");
            until(() -> lastReport().path("state").asText().equals("healthy"));
            nodes.mayReport = false;
            nodes.put(14, "a", "{\"n\":true}");
            int count = nodes.reports.size();
            until(() -> nodes.reports.size() > count);
            Thread.sleep(100);
            assertEquals(count + 1, nodes.reports.size());
            assertEquals(new Numbered(2), typed.get("a"));
        }
    }

    @Test
    void whatever_a_type_throws_ends_nothing() throws Exception {
        record Fragile(int n) {
            Fragile {
                if (n == 4711) {
                    throw new AssertionError("s3cret");
                }
            }
        }
        try (ConcordClient reader = nodes.client().reader("h").build()) {
            Cache cache = reporting(reader);
            cache.onChange(item -> {
                throw new IllegalStateException("a listener");
            });
            TypedCache<Fragile> typed = cache.typed("d", Fragile.class);
            nodes.put(11, "a", "{\"n\":4711}", "change-1");
            until(() -> lastReport().path("state").asText().equals("failed"));
            assertFalse(nodes.reports.toString().contains("s3cret"));
            assertEquals(new Fragile(1), typed.get("a"));
            nodes.put(12, "a", "{\"n\":2}", "change-1");
            until(() -> typed.get("a").equals(new Fragile(2)));
            assertTrue(cache.status().error().isEmpty());
        }
    }

    @Test
    void a_state_has_nothing_of_a_response_that_broke_off() {
        // The first node sends a config that the second one, which is newer, does not have, and then what is no JSON.
        nodes.answer = sent -> {
            if (!sent.request().target().startsWith("/api/v1/watch")) {
                return PlayedNodes.response(304, null, "x-concord-next-from", "21");
            }
            boolean isFirst = nodes.sent.size() == 1;
            String config = isFirst ? Cases.text(PlayedNodes.record("gone", Cases.json("{}"))) : "";
            String part = "event: state\ndata: {\"revision\":" + (isFirst ? 10 : 20) + ",\"configs\":[" + config + "],\"complete\":"
                    + !isFirst + "}\n\n" + (isFirst ? "event: state\ndata: {\n\n" : "");
            byte[] text = part.getBytes(java.nio.charset.StandardCharsets.UTF_8);
            sent.request().sink().begin();
            try {
                sent.request().sink().feed(text, text.length);
            } catch (IllegalStateException error) {
                return PlayedNodes.lost();
            }
            return PlayedNodes.response(200, null);
        };
        Cache cache = client.cache(options());
        assertEquals(20, cache.status().revision());
        assertEquals(Map.of(), cache.snapshot());
    }

    @Test
    void a_type_that_does_not_end_holds_up_neither_a_close_nor_a_wait() throws Exception {
        Cache cache = client.cache(options());
        CountDownLatch isMaking = new CountDownLatch(1), mayEnd = new CountDownLatch(1);
        cache.typed("d", "slow", config -> {
            if (config.revision() == 12) {
                isMaking.countDown();
                try {
                    mayEnd.await();
                } catch (InterruptedException error) {
                    throw new IllegalStateException(error);
                }
            }
            return config;
        });
        nodes.put(12, "a", "{}");
        assertTrue(isMaking.await(30, TimeUnit.SECONDS));
        try {
            assertTimeoutPreemptively(Duration.ofSeconds(5), () -> assertFalse(cache.waitRevision(12, SHORT)));
            assertTimeoutPreemptively(Duration.ofSeconds(15), cache::close);
        } finally {
            mayEnd.countDown();
        }
        until(() -> Thread.getAllStackTraces().keySet().stream().noneMatch(each -> each.getName().equals("concord-cache")));
    }

    @Test
    void a_listener_may_close_the_cache_and_its_client() throws Exception {
        Cache cache = client.cache(options());
        cache.onChange(item -> client.close());
        nodes.put(12, "a", "{}");
        until(() -> Thread.getAllStackTraces().keySet().stream().noneMatch(each -> each.getName().startsWith("concord-")));
        assertEquals("{} ", Cases.text(cache.get("d", "a").data()) + " ");
    }
}
