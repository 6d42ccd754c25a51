package io.github.concordconfig.testing;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.concordconfig.client.Cache;
import io.github.concordconfig.client.CacheOptions;
import io.github.concordconfig.client.ConcordClient;
import io.github.concordconfig.client.Config;
import io.github.concordconfig.client.Event;
import io.github.concordconfig.client.Query;
import io.github.concordconfig.client.Source;
import io.github.concordconfig.client.UnavailableException;
import io.github.concordconfig.client.Watch;
import io.github.concordconfig.client.WatchOptions;
import io.github.concordconfig.client.WriteOption;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.condition.EnabledIfEnvironmentVariable;

/** Three nodes over TLS that are killed and paused. */
@EnabledIfEnvironmentVariable(named = "CONCORD_BIN", matches = ".+")
class ClusterTest {
    @Test
    void a_program_goes_on_while_nodes_are_killed_and_paused() throws Exception {
        try (Nodes nodes = new Nodes(true); ConcordClient client = nodes.client().timeout(Duration.ofSeconds(60)).build()) {
            client.createDefinition("limits", List.of("n"));
            for (int n = 0; n < 30; n++) {
                client.create("limits", "k" + n, Map.of("n", n));
            }
            Iterator<Config> list = client.list("limits", Query.all().sortBy("config_key").ascending().pageSize(7)).iterator();
            assertEquals("k0", list.next().key());
            try (Watch watch = client.watch(WatchOptions.of("limits").from(client.revision() + 1));
                    Cache cache = client.cache(CacheOptions.of("limits").pollSeconds(1))) {
                int leader = nodes.leader();
                nodes.kill(leader);
                List<Long> written = new ArrayList<>();
                for (int n = 0; n < 20; n++) {
                    written.add(client.update("limits", "k0", data -> data.put("n", data.get("n").asInt() + 1)).revision());
                }
                nodes.start(leader);
                nodes.waitReady();
                int paused = nodes.leader();
                nodes.pause(paused);
                for (int n = 0; n < 5; n++) {
                    written.add(client.update("limits", "k0", data -> data.put("n", data.get("n").asInt() + 1)).revision());
                }
                nodes.resume(paused);
                List<Long> seen = new ArrayList<>();
                while (seen.size() < written.size()) {
                    seen.add(((Event) watch.next()).revision());
                }
                assertEquals(written, seen);
                assertTrue(cache.waitRevision(written.get(written.size() - 1), Nodes.PATIENCE));
                assertEquals(25, cache.get("limits", "k0").data().get("n").asInt());
                int count = 1;
                for (; list.hasNext(); count++) {
                    Config each = list.next();
                    assertEquals(Integer.parseInt(each.key().substring(1)), each.data().get("n").asInt());
                }
                assertEquals(30, count);
                for (int n = 1; n <= 3; n++) {
                    nodes.kill(n);
                }
                Nodes.await("a cache without nodes", () -> cache.status().source() == Source.CACHE);
                assertThrows(UnavailableException.class, () -> client.put("limits", "k0", Map.of(), WriteOption.timeout(Duration.ofSeconds(1))));
            }
            // A client needs its certificate.
            nodes.start(1);
            try (ConcordClient stranger = nodes.client().nodes(nodes.url(1)).certificate(null, null).timeout(Duration.ofSeconds(2)).build()) {
                Nodes.sleep(1);
                assertThrows(UnavailableException.class, () -> stranger.get("limits", "k0"));
            }
        }
    }
}
