package io.github.concordconfig.testing;

import static io.github.concordconfig.client.WriteOption.createOnly;
import static io.github.concordconfig.client.WriteOption.idempotencyKey;
import static io.github.concordconfig.client.WriteOption.ifMatch;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.concordconfig.client.Cache;
import io.github.concordconfig.client.CacheOptions;
import io.github.concordconfig.client.ConcordClient;
import io.github.concordconfig.client.Config;
import io.github.concordconfig.client.ConflictException;
import io.github.concordconfig.client.Event;
import io.github.concordconfig.client.NotFoundException;
import io.github.concordconfig.client.PreconditionFailedException;
import io.github.concordconfig.client.Query;
import io.github.concordconfig.client.ReadOption;
import io.github.concordconfig.client.Records;
import io.github.concordconfig.client.Source;
import io.github.concordconfig.client.TypedCache;
import io.github.concordconfig.client.UnavailableException;
import io.github.concordconfig.client.Watch;
import io.github.concordconfig.client.WatchOptions;
import io.github.concordconfig.client.Written;
import java.math.BigDecimal;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.api.Test;

class FakeNodeTest {
    private static final Duration PATIENCE = Duration.ofSeconds(20);

    record Limits(String plan, int seats) {}

    /** What a program does, with a fake node or a real one. */
    private static void everything(ConcordClient client) {
        client.createDefinition("limits", List.of("plan"));
        assertThrows(ConflictException.class, () -> client.createDefinition("limits", List.of()));
        Records<Limits> limits = client.records("limits", Limits.class);
        assertThrows(NotFoundException.class, () -> limits.get("acme"));
        Written made = limits.create("acme", new Limits("pro", 3), idempotencyKey("one"));
        assertEquals(made.revision(), limits.create("acme", new Limits("pro", 3), idempotencyKey("one")).revision());
        assertThrows(ConflictException.class, () -> limits.create("acme", new Limits("free", 1)));
        assertThrows(PreconditionFailedException.class, () -> limits.put("acme", new Limits("free", 1), ifMatch(1)));
        assertThrows(PreconditionFailedException.class, () -> limits.put("acme", new Limits("free", 1), createOnly()));
        limits.update("acme", found -> new Limits(found.plan(), found.seats() + 1));
        client.patch("limits", "acme", Map.of("price", new BigDecimal("1.50")));
        Config acme = client.get("limits", "acme");
        assertEquals("{\"plan\":\"pro\",\"seats\":4,\"price\":1.50}", acme.data().toString());
        assertEquals(acme, client.getIfChanged(acme));
        for (int n = 0; n < 5; n++) {
            limits.upsert("k" + n, new Limits(n % 2 == 0 ? "free" : "pro", n));
        }
        Query free = Query.where("plan", "free").pageSize(2);
        assertEquals(List.of("k4", "k2", "k0"), limits.list(free).map(Records.Found::key).toList());
        assertEquals(List.of("k0", "k2", "k4"), limits.list(free.sortBy("config_key").ascending()).map(Records.Found::key).toList());
        assertEquals(6, client.page("limits", Query.all(), 1, 2).total());
        try (Watch watch = client.watch(WatchOptions.of("limits").from(made.revision()));
                Cache cache = client.cache(CacheOptions.of("limits").pollSeconds(1))) {
            assertEquals("config_created", ((Event) watch.next()).changes().get(0).type());
            TypedCache<Limits> typed = cache.typed("limits", Limits.class);
            assertEquals(new Limits("pro", 4), typed.get("acme"));
            assertTrue(cache.waitRevision(limits.put("acme", new Limits("pro", 9)).revision(), PATIENCE));
            assertEquals(new Limits("pro", 9), typed.get("acme"));
            assertEquals(Source.LIVE, typed.explain("acme").source());
        }
        client.delete("limits", "acme");
        assertTrue(client.find("limits", "acme").isEmpty());
        assertEquals(List.of("limits"), client.listDefinitions(Query.all()).map(each -> each.key()).toList());
        client.deleteDefinition("limits");
        assertTrue(client.findDefinition("limits").isEmpty());
    }

    @Test
    void a_fake_node_is_like_a_node() {
        try (FakeNode node = FakeNode.start(); ConcordClient client = node.client().build()) {
            everything(client);
            node.put("limits", "acme", Map.of("plan", "pro", "seats", 1));
            assertEquals(1, client.get("limits", "acme").data().get("seats").asInt());
            node.setAvailable(false);
            assertThrows(UnavailableException.class, () -> client.get("limits", "acme", ReadOption.timeout(Duration.ofMillis(100))));
        }
    }

    @Test
    void a_real_node_is_like_it() {
        Assumptions.assumeTrue(ConcordDemo.isAvailable(), "CONCORD_BIN names no program");
        try (ConcordDemo demo = ConcordDemo.start(); ConcordClient client = demo.client().build()) {
            everything(client);
        }
    }
}
