package io.github.concordconfig.spring;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.concordconfig.client.Cache;
import io.github.concordconfig.client.ConcordClient;
import io.github.concordconfig.client.NotReadyException;
import io.github.concordconfig.testing.FakeNode;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;
import java.util.function.Supplier;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.ExtendWith;
import org.junit.jupiter.api.io.TempDir;
import org.springframework.boot.WebApplicationType;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.boot.builder.SpringApplicationBuilder;
import org.springframework.boot.context.properties.ConfigurationProperties;
import org.springframework.boot.context.properties.EnableConfigurationProperties;
import org.springframework.boot.test.system.CapturedOutput;
import org.springframework.boot.test.system.OutputCaptureExtension;
import org.springframework.context.ApplicationListener;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.context.event.EventListener;

class ConcordStarterTest {
    private final FakeNode node = FakeNode.start();

    @ConfigurationProperties("limits")
    static class Limits {
        private String plan = "free";
        private int seats;
        private List<String> tags = new ArrayList<>();

        public String getPlan() {
            return plan;
        }

        public void setPlan(String plan) {
            this.plan = plan;
        }

        public int getSeats() {
            return seats;
        }

        public void setSeats(int seats) {
            if (seats > 1000) {
                throw new IllegalArgumentException("too many");
            }
            this.seats = seats;
        }

        public List<String> getTags() {
            return tags;
        }

        public void setTags(List<String> tags) {
            this.tags = tags;
        }

        String shown() {
            return plan + " " + seats + " " + tags;
        }
    }

    record Frozen(String plan, int seats, Duration pause, Map<String, String> names) {}

    @Configuration
    @EnableAutoConfiguration
    @EnableConfigurationProperties(Limits.class)
    static class Program {
        private final List<String> refreshed = new ArrayList<>();

        @Bean
        Supplier<Frozen> frozen(ConcordRefresher refresher) {
            return refresher.live("limits", Frozen.class);
        }

        @EventListener
        void refreshed(ConcordRefreshedEvent event) {
            refreshed.add(event.prefix());
        }
    }

    @Configuration
    @EnableAutoConfiguration
    static class Plain {}

    private ConfigurableApplicationContext run(Class<?> program, String... more) {
        List<String> properties = new ArrayList<>(List.of("spring.main.banner-mode=off", "logging.level.root=error", "concord.key=" + node.key()));
        properties.addAll(List.of(more));
        return new SpringApplicationBuilder(program).web(WebApplicationType.NONE).properties(properties.toArray(new String[0])).run();
    }

    private static void until(BooleanSupplier condition) throws InterruptedException {
        for (int n = 0; n < 2000 && !condition.getAsBoolean(); n++) {
            Thread.sleep(10);
        }
        assertTrue(condition.getAsBoolean());
    }

    @AfterEach
    void end() {
        node.close();
    }

    @Test
    void properties_follow_a_config_and_keep_the_last_valid_instance(@TempDir Path folder) throws Exception {
        node.put("limits", "acme", Map.of("plan", "pro", "seats", 3, "tags", List.of("a", "b"), "pause", "5s", "names", Map.of("x/y", "z")));
        String[] properties = {"concord.nodes=" + node.url(), "concord.bind.limits=limits/acme", "concord.cache.poll=1s",
            "concord.cache.file=" + folder.resolve("known.json"), "concord.cache.start-timeout=2s"};
        try (ConfigurableApplicationContext context = run(Program.class, properties)) {
            Limits limits = context.getBean(Limits.class);
            @SuppressWarnings("unchecked")
            Supplier<Frozen> frozen = context.getBean(Supplier.class);
            assertEquals("pro 3 [a, b]", limits.shown());
            assertEquals(new Frozen("pro", 3, Duration.ofSeconds(5), Map.of("x/y", "z")), frozen.get());
            assertEquals("3", context.getEnvironment().getProperty("limits.seats"));
            node.put("limits", "acme", Map.of("plan", "pro", "seats", 4, "tags", List.of("c")));
            until(() -> limits.shown().equals("pro 4 [c]"));
            // Records follow after the classes in place.
            until(() -> frozen.get().seats() == 4);
            until(() -> context.getBean(Program.class).refreshed.equals(List.of("limits")));
            // Neither a text for a number nor what a setter rejects.
            for (Object seats : List.of("many", 4711)) {
                long revision = node.put("limits", "acme", Map.of("plan", "other", "seats", seats));
                assertTrue(context.getBean(Cache.class).waitRevision(revision, Duration.ofSeconds(20)));
                Thread.sleep(100);
                assertEquals("pro 4 [c]", limits.shown());
                assertEquals("pro", frozen.get().plan());
                assertEquals("4", context.getEnvironment().getProperty("limits.seats"));
            }
            node.put("limits", "acme", Map.of("plan", "free", "seats", 5));
            until(() -> frozen.get().seats() == 5 && limits.shown().equals("free 5 []"));
            assertEquals("live", context.getBean(Cache.class).status().source().name().toLowerCase(java.util.Locale.ROOT));
        }
        assertFalse(Thread.getAllStackTraces().keySet().stream().anyMatch(each -> each.getName().equals("concord-cache")));
        node.setAvailable(false);
        try (ConfigurableApplicationContext context = run(Program.class, properties)) {
            assertEquals("free 5 []", context.getBean(Limits.class).shown());
        }
    }

    @Test
    void a_client_and_a_cache_are_made_by_properties() {
        node.put("limits", "acme", Map.of("seats", 3));
        try (ConfigurableApplicationContext context = run(Plain.class, "concord.nodes=" + node.url(), "concord.cache.definitions=limits", "concord.labels.ring=canary")) {
            assertEquals(3, context.getBean(ConcordClient.class).get("limits", "acme").data().get("seats").asInt());
            assertEquals(3, context.getBean(Cache.class).get("limits", "acme").data().get("seats").asInt());
        }
        try (ConfigurableApplicationContext context = run(Plain.class)) {
            assertTrue(context.getBeansOfType(ConcordClient.class).isEmpty());
        }
        try (ConfigurableApplicationContext context = run(Plain.class, "concord.nodes=" + node.url(), "concord.enabled=false")) {
            assertTrue(context.getBeansOfType(ConcordClient.class).isEmpty());
        }
        assertThrows(RuntimeException.class, () -> run(Plain.class, "concord.nodes=" + node.url(), "concord.bind.limits=acme"));
    }

    private static boolean hasThreads() {
        return Thread.getAllStackTraces().keySet().stream().anyMatch(each -> each.getName().equals("concord-cache"));
    }

    @Configuration
    @EnableAutoConfiguration
    static class Failing {
        @Bean
        Object fails() {
            throw new IllegalStateException("a bean");
        }
    }

    @Configuration
    @EnableAutoConfiguration
    static class OwnClient {
        @Bean
        ConcordClient own() {
            return ConcordClient.builder().nodes("http://127.0.0.1:1").key("k").build();
        }
    }

    @Test
    void a_context_leaves_no_threads_whatever_becomes_of_it() {
        node.put("limits", "acme", Map.of("seats", 3));
        String[] properties = {"concord.nodes=" + node.url(), "concord.bind.limits=limits/acme"};
        assertThrows(RuntimeException.class, () -> run(Failing.class, properties));
        assertFalse(hasThreads());
        run(OwnClient.class, properties).close();
        assertFalse(hasThreads());
        node.setAvailable(false);
        assertThrows(NotReadyException.class, () -> run(Plain.class, properties[0], properties[1], "concord.cache.start-timeout=1s"));
        assertFalse(hasThreads());
    }

    @Test
    void a_prefix_below_another_one_is_rejected() {
        node.put("limits", "acme", Map.of("seats", 3));
        for (String other : List.of("limits.more", "LIMITS", "limits[0]")) {
            RuntimeException error = assertThrows(RuntimeException.class, () -> run(Plain.class, "concord.nodes=" + node.url(),
                    "concord.bind.limits=limits/acme", "concord.bind[" + other + "]=limits/other"));
            assertTrue(String.valueOf(error.getMessage()).contains("the same properties"), String.valueOf(error));
        }
        assertFalse(hasThreads());
    }

    @Configuration
    @EnableAutoConfiguration
    @EnableConfigurationProperties(Limits.class)
    static class Waiting {
        private final List<Integer> seats = new java.util.concurrent.CopyOnWriteArrayList<>();

        /** Waits for a thread that calls the refresher. */
        @Bean
        ApplicationListener<ConcordRefreshedEvent> waits(ConcordRefresher refresher) {
            return event -> {
                try {
                    seats.add(CompletableFuture.supplyAsync(() -> refresher.live("limits", Frozen.class).get().seats()).get(5, TimeUnit.SECONDS));
                } catch (Exception error) {
                    seats.add(-1);
                }
            };
        }
    }

    @Test
    void a_listener_may_wait_for_a_thread_that_calls_the_refresher() throws Exception {
        node.put("limits", "acme", Map.of("seats", 3));
        try (ConfigurableApplicationContext context = run(Waiting.class, "concord.nodes=" + node.url(), "concord.bind.limits=limits/acme", "concord.cache.poll=1s")) {
            node.put("limits", "acme", Map.of("seats", 4));
            until(() -> !context.getBean(Waiting.class).seats.isEmpty());
            assertEquals(List.of(4), context.getBean(Waiting.class).seats);
            ConcordRefresher refresher = context.getBean(ConcordRefresher.class);
            assertSame(refresher.live("limits", Frozen.class), refresher.live("limits", Frozen.class));
        }
    }

    @ConfigurationProperties("limits")
    static class Fickle {
        private static volatile int calls;
        private String plan;

        public String getPlan() {
            return plan;
        }

        public void setPlan(String plan) {
            calls++;
            if (plan.startsWith("bad") && calls % 2 == 0) {
                throw new IllegalArgumentException("the plan " + plan + " is bad");
            }
            this.plan = plan;
        }
    }

    @Configuration
    @EnableAutoConfiguration
    @EnableConfigurationProperties(Fickle.class)
    static class FickleProgram {}

    @Test
    @ExtendWith(OutputCaptureExtension.class)
    void the_log_has_no_data(CapturedOutput output) throws Exception {
        node.put("limits", "acme", Map.of("plan", "pro"));
        try (ConfigurableApplicationContext context = run(FickleProgram.class, "concord.nodes=" + node.url(), "concord.bind.limits=limits/acme", "concord.cache.poll=1s", "logging.level.io.github.concordconfig=debug")) {
            Fickle.calls = 0;
            node.put("limits", "acme", Map.of("plan", "bad-s3cret"));
            until(() -> output.getAll().contains("could not be bound again"));
            assertFalse(output.getAll().contains("s3cret"));
            assertFalse(output.getAll().contains(node.key()));
            assertEquals("pro", context.getBean(Fickle.class).getPlan());
        }
    }

    @Test
    void names_and_numbers_come_as_they_are() {
        node.put("limits", "acme", Map.of("seats", 3, "names", Map.of("a_b", "1", "Cd", "2", "e-f", "3", "g.h", "4", "i", "1e2")));
        try (ConfigurableApplicationContext context = run(Program.class, "concord.nodes=" + node.url(), "concord.bind.limits=limits/acme")) {
            Frozen frozen = (Frozen) context.getBean(Supplier.class).get();
            assertEquals(Map.of("a_b", "1", "Cd", "2", "e-f", "3", "g.h", "4", "i", "1e2"), frozen.names());
        }
    }
}
