package io.github.concordconfig.testing;

import io.github.concordconfig.client.Cache;
import io.github.concordconfig.client.CacheOptions;
import io.github.concordconfig.client.CacheValue;
import io.github.concordconfig.client.ConcordClient;
import io.github.concordconfig.client.ConcordException;
import io.github.concordconfig.client.Config;
import io.github.concordconfig.client.ConfigName;
import io.github.concordconfig.client.Event;
import io.github.concordconfig.client.ManyConfigs;
import io.github.concordconfig.client.NotCachedException;
import io.github.concordconfig.client.NotFoundException;
import io.github.concordconfig.client.NotReadyException;
import io.github.concordconfig.client.Operation;
import io.github.concordconfig.client.Past;
import io.github.concordconfig.client.Query;
import io.github.concordconfig.client.RejectedException;
import io.github.concordconfig.client.Source;
import io.github.concordconfig.client.UnavailableException;
import io.github.concordconfig.client.UnknownOutcomeException;
import io.github.concordconfig.client.Watch;
import io.github.concordconfig.client.WatchItem;
import io.github.concordconfig.client.WatchOptions;
import io.github.concordconfig.client.WriteOption;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.LongSupplier;

/**
 * The client beside a model while nodes are killed and paused: {@code Soak SECONDS SEED}, with {@code CONCORD_BIN}.
 *
 * <p>Writers change configs on condition of their revisions, a watch and a cache follow, another cache is started again and
 * again from the file. At the end, the service's own history judges:
 *
 * <ul>
 *   <li>no lost update: each write builds on the one before. An acknowledged one is there once, one with an unknown outcome at
 *       most once, a rejected one never
 *   <li>no missed change: the watch has what the history has, each once and in order
 *   <li>no stale value that is called fresh: a value has every write that was acknowledged longer before it was read than its
 *       age; no cache goes back, and a batch is never seen in part
 * </ul>
 */
public final class Soak {
    private static final String DEFINITION = "soak";
    private static final List<String> KEYS = List.of("k0", "k1", "k2", "k3", "k4", "k5"), PAIR = List.of("pair-one", "pair-two");
    private static final List<String> DISTURBANCES =
            List.of("kill 1", "kill leader", "pause 1", "pause leader", "kill 2", "pause 2", "kill 3");
    private static final Duration FRESH = Duration.ofSeconds(15);
    /** Between the wall clock, by which the age of a file is counted, and the clock of this program. */
    private static final long FILE_DRIFT = 50_000_000;

    private final List<String> breaches = Collections.synchronizedList(new ArrayList<>());
    private final Map<String, Integer> counts = new ConcurrentHashMap<>();
    private final Map<String, Long> acknowledged = new ConcurrentHashMap<>();
    private final Set<String> unknown = ConcurrentHashMap.newKeySet(), rejected = ConcurrentHashMap.newKeySet();
    /** Of each config: by the time of acknowledgement, the highest revision until then. */
    private final Map<String, TreeMap<Long, Long>> visible = new HashMap<>();
    private final Set<String> shown = ConcurrentHashMap.newKeySet();
    private final List<Event> watched = Collections.synchronizedList(new ArrayList<>());
    private final Random random;
    private volatile boolean isOver, isSettled;

    private Soak(long seed) {
        random = new Random(seed);
        KEYS.forEach(key -> visible.put(key, new TreeMap<>()));
        PAIR.forEach(key -> visible.put(key, new TreeMap<>()));
    }

    public static void main(String[] arguments) throws Exception {
        long seed = Long.parseLong(arguments[1]);
        System.exit(new Soak(seed).run(Double.parseDouble(arguments[0])));
    }

    private void count(String what) {
        counts.merge(what, 1, Integer::sum);
    }

    private void breach(String text) {
        breaches.add(text);
        isOver = true;
    }

    /** Notes what became of a write. */
    private void write(String token, List<String> keys, LongSupplier write) {
        try {
            long revision = write.getAsLong();
            long at = System.nanoTime();
            synchronized (visible) {
                acknowledged.put(token, revision);
                for (String key : keys) {
                    TreeMap<Long, Long> all = visible.get(key);
                    all.put(at, Math.max(revision, all.isEmpty() ? 0 : all.lastEntry().getValue()));
                }
            }
            count("acknowledged");
        } catch (UnknownOutcomeException error) {
            unknown.add(token);
            count("unknown");
        } catch (RejectedException | UnavailableException error) {
            rejected.add(token);
            count("rejected: " + error.getClass().getSimpleName());
        }
    }

    private long acknowledgedBefore(String key, long at) {
        synchronized (visible) {
            Map.Entry<Long, Long> found = visible.get(key).lowerEntry(at);
            return found == null ? 0 : found.getValue();
        }
    }

    private static Map<String, Object> data(int n, String token) {
        return Map.of("n", n, "token", token);
    }

    private void writer(ConcordClient client, String name, Random dice) {
        for (int number = 1; !isOver; number++) {
            String token = name + "-" + number;
            long began = System.nanoTime();
            try {
                if (dice.nextInt(5) == 0) {
                    ManyConfigs pair = client.readMany(PAIR.stream().map(key -> new ConfigName(DEFINITION, key)).toList());
                    int n = pair.found().get(new ConfigName(DEFINITION, PAIR.get(0))).data().get("n").asInt() + 1;
                    List<Operation> puts = PAIR.stream().map(key -> Operation.put(DEFINITION, key, data(n, token))
                            .ifMatch(pair.found().get(new ConfigName(DEFINITION, key)).revision())).toList();
                    write(token, PAIR, () -> client.batch(puts).revision());
                } else {
                    String key = KEYS.get(dice.nextInt(KEYS.size()));
                    Config config = client.get(DEFINITION, key);
                    if (config.revision() < acknowledgedBefore(key, began)) {
                        breach("a read of " + key + " has revision " + config.revision());
                    }
                    Map<String, Object> data = data(config.data().get("n").asInt() + 1, token);
                    write(token, List.of(key), () -> client.put(DEFINITION, key, data, WriteOption.ifMatch(config.revision())).revision());
                }
            } catch (ConcordException error) {
                count("no response: " + error.getClass().getSimpleName());
            }
            Nodes.sleep(dice.nextDouble() * 0.05);
        }
    }

    private void judge(String what, String key, long readAt, CacheValue value, long drift) {
        long age = value.age().compareTo(Duration.ofDays(1)) > 0 ? Duration.ofDays(1).toNanos() : value.age().toNanos();
        long needed = acknowledgedBefore(key, readAt - age - drift);
        if (value.revision() < needed) {
            breach(what + ": " + value + " lacks the revision " + needed);
        }
        if (value.isFresh() && value.age().compareTo(FRESH) > 0) {
            breach(what + ": " + key + " is called fresh and is " + value.age() + " old");
        }
        shown.add(key + " " + value.revision() + " " + value.data().get("n"));
        count(what + ": " + value.source());
    }

    private void reader(Cache cache, Random dice) {
        Map<String, Long> last = new HashMap<>();
        while (!isOver) {
            for (int n = 0; n < 20; n++) {
                String key = KEYS.get(dice.nextInt(KEYS.size()));
                long readAt = System.nanoTime();
                CacheValue value = cache.get(DEFINITION, key);
                judge("cache", key, readAt, value, 0);
                if (value.revision() < last.getOrDefault(key, 0L)) {
                    breach(key + " went back from " + last.get(key) + " to " + value.revision());
                }
                last.put(key, value.revision());
            }
            Map<ConfigName, CacheValue> all = cache.snapshot();
            List<Integer> pair = PAIR.stream().map(key -> all.get(new ConfigName(DEFINITION, key)).data().get("n").asInt()).toList();
            if (!pair.get(0).equals(pair.get(1))) {
                breach("a batch is seen in part: " + pair);
            }
            Nodes.sleep(0.005);
        }
    }

    private void follow(ConcordClient client, long begin) {
        try (Watch watch = client.watch(WatchOptions.of(DEFINITION).from(begin).idleEvents(3))) {
            while (!isSettled) {
                WatchItem item = watch.next();
                if (item instanceof Event event && !event.changes().isEmpty()) {
                    watched.add(event);
                }
            }
        }
    }

    /** A program that starts, reads and ends, whether there are nodes or not. */
    private void restart(ConcordClient client, Path file) {
        try (Cache cache = client.cache(CacheOptions.of(DEFINITION).file(file).fresh(FRESH).startTimeout(Duration.ofMillis(300)))) {
            for (int n = 0; n < 50; n++) {
                String key = KEYS.get(random.nextInt(KEYS.size()));
                long readAt = System.nanoTime();
                judge("restarted", key, readAt, cache.get(DEFINITION, key), FILE_DRIFT);
                Nodes.sleep(0.002);
            }
        } catch (NotReadyException | NotCachedException error) {
            count("restarted: " + error.getClass().getSimpleName());
        }
    }

    /** Kills and pauses nodes until the time is over, and heals them after each disturbance. */
    private void disturb(Nodes nodes, double seconds, Runnable restart) throws Exception {
        long end = System.nanoTime() + (long) (seconds * 1e9);
        while (System.nanoTime() < end && !isOver) {
            String kind = DISTURBANCES.get(random.nextInt(DISTURBANCES.size()));
            count(kind);
            List<Integer> chosen = new ArrayList<>(List.of(1, 2, 3));
            Collections.shuffle(chosen, random);
            chosen = kind.endsWith("leader") ? List.of(nodes.leader()) : chosen.subList(0, kind.charAt(kind.length() - 1) - '0');
            boolean isPause = kind.startsWith("pause");
            for (int n : chosen) {
                if (isPause) {
                    nodes.pause(n);
                } else {
                    nodes.kill(n);
                }
            }
            long until = Math.min(end, System.nanoTime() + (long) (new double[] {0.3, 2, 5, 8}[random.nextInt(4)] * 1e9));
            while (System.nanoTime() < until && !isOver) {
                restart.run();
                Nodes.sleep(0.2);
            }
            for (int n : chosen) {
                if (isPause) {
                    nodes.resume(n);
                } else {
                    nodes.start(n);
                }
            }
            restart.run();
            Nodes.sleep(random.nextInt(3));
        }
    }

    private void judgeHistory(ConcordClient client, long begin) {
        Map<String, Set<Long>> applied = new HashMap<>();
        Map<String, String> changes = new HashMap<>(), numbers = new HashMap<>();
        for (Map.Entry<String, TreeMap<Long, Long>> each : visible.entrySet()) {
            String key = each.getKey();
            List<Past> all = new ArrayList<>(client.history(DEFINITION, key).toList());
            Collections.reverse(all);
            Past before = null;
            for (Past past : all) {
                if (past.revision() >= begin) {
                    changes.put(past.revision() + " " + key, past.data().toString());
                    numbers.put(past.revision() + " " + key, past.data().get("n").toString());
                    applied.computeIfAbsent(past.data().get("token").asText(), none -> new HashSet<>()).add(past.revision());
                    if (past.data().get("n").asInt() != before.data().get("n").asInt() + 1) {
                        breach("a lost update: " + key + " at " + past.revision());
                    }
                }
                before = past;
            }
        }
        acknowledged.forEach((token, revision) -> {
            if (!Set.of(revision).equals(applied.get(token))) {
                breach("the acknowledged write " + token + " of " + revision + " is at " + applied.get(token));
            }
        });
        unknown.stream().filter(token -> applied.getOrDefault(token, Set.of()).size() > 1)
                .forEach(token -> breach("the write " + token + " of unknown outcome was applied twice"));
        rejected.stream().filter(applied::containsKey).forEach(token -> breach("the rejected write " + token + " was applied"));
        Map<String, String> told = new HashMap<>();
        long last = 0;
        for (Event event : watched) {
            if (event.revision() <= last) {
                breach("the watch has revisions twice or out of order");
            }
            last = event.revision();
            event.changes().forEach(change -> told.put(event.revision() + " " + change.key(), change.data().toString()));
        }
        if (!told.equals(changes)) {
            breach("the watch has " + told.size() + " changes, the history " + changes.size());
        }
        for (String each : shown) {
            String[] parts = each.split(" ");
            String n = numbers.get(parts[1] + " " + parts[0]);
            if (Long.parseLong(parts[1]) >= begin && !parts[2].equals(n)) {
                breach("a cache showed " + each + ", the history has " + n);
            }
        }
        counts.put("changes in the history", changes.size());
        counts.put("applied of unknown outcome", (int) unknown.stream().filter(applied::containsKey).count());
    }

    private boolean isSettled(ConcordClient client, Cache cache) {
        try {
            long last = visible.keySet().stream().mapToLong(key -> client.get(DEFINITION, key).revision()).max().orElse(0);
            boolean hasAll = !watched.isEmpty() && watched.get(watched.size() - 1).revision() >= last;
            return hasAll && cache.status().revision() >= last && cache.status().source() == Source.LIVE;
        } catch (ConcordException error) {
            return false;
        }
    }

    private int run(double seconds) throws Exception {
        try (Nodes nodes = new Nodes(false); ConcordClient client = nodes.client().build()) {
            client.createDefinition(DEFINITION, List.of());
            List<Operation> first = visible.keySet().stream().map(key -> Operation.create(DEFINITION, key, data(0, "first-" + key))).toList();
            long begin = client.batch(first).revision() + 1;
            Path file = nodes.home().resolve("known.json");
            Cache cache = client.cache(CacheOptions.of(DEFINITION).file(file).fresh(FRESH).startTimeout(Nodes.PATIENCE));
            List<Thread> threads = new ArrayList<>();
            threads.add(new Thread(() -> follow(client, begin)));
            threads.add(new Thread(() -> reader(cache, new Random(1))));
            for (int n = 0; n < 3; n++) {
                String name = "writer" + n;
                Random dice = new Random(random.nextLong());
                threads.add(new Thread(() -> writer(client, name, dice)));
            }
            threads.forEach(Thread::start);
            disturb(nodes, seconds, () -> restart(client, file));
            isOver = true;
            nodes.waitReady();
            if (breaches.isEmpty()) {
                Nodes.await("the watch and the cache to have everything", () -> isSettled(client, cache));
            }
            isSettled = true;
            for (Thread each : threads) {
                each.join();
            }
            if (breaches.isEmpty()) {
                judgeHistory(client, begin);
                Map<String, String> last = new HashMap<>(), cached = new HashMap<>();
                client.list(DEFINITION, Query.all()).forEach(each -> last.put(each.key(), each.data().toString()));
                cache.snapshot().forEach((name, value) -> cached.put(name.key(), value.data().toString()));
                if (!last.equals(cached)) {
                    breach("the cache differs from the list at the end");
                }
                long began = System.nanoTime();
                for (int n = 0; n < 2_000_000; n++) {
                    cache.get(DEFINITION, "k0");
                }
                counts.put("reads of the cache per second", (int) (2_000_000 * 1e9 / (System.nanoTime() - began)));
            }
        }
        System.out.println(new TreeMap<>(counts));
        breaches.stream().limit(20).forEach(each -> System.err.println("soak: BREACH: " + each));
        return breaches.isEmpty() ? 0 : 1;
    }
}
