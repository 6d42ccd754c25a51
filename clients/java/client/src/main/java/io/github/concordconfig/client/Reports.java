package io.github.concordconfig.client;

import com.fasterxml.jackson.databind.node.ObjectNode;
import java.lang.System.Logger.Level;
import java.nio.charset.StandardCharsets;
import java.security.SecureRandom;
import java.util.HashMap;
import java.util.HashSet;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;

/**
 * What a cache reports of what it follows: that the program runs well with it, or not.
 *
 * <p>A rollout goes on by the reports of its readers. While a config of the cache is a candidate, the cache reports it every
 * 20 seconds: {@code failed} if a type does not fit, at once; otherwise {@code healthy}. One report is about all configs of a
 * change request: it has failed if one of them has.
 *
 * <p>Outside rollouts, the cache reports configs that do not fit: {@code failed} every 20 seconds, and {@code healthy} once
 * when they fit again. A program that runs well sends nothing.
 *
 * <p><b>Invariants:</b> one report at a time is on its way. None delays what follows: a thread of its own sends them. Nothing
 * is reported of data that no node has sent since the start. A report has no values of the data.
 */
final class Reports {
    /** The pause between two reports. A report counts for a minute. */
    private static final long EVERY = 20 * Clock.SECOND;
    /** The same of failures in rollouts: a new leader knows none, and must not wait long for them. */
    private static final long EVERY_FAILED = 5 * Clock.SECOND;
    /** The first report comes within this time, so that not all readers report in one moment. */
    private static final long FIRST_WITHIN = 5 * Clock.SECOND;
    private static final long TIMEOUT = 5 * Clock.SECOND, ATTEMPT_TIMEOUT = 2 * Clock.SECOND;
    /** How often there is a look at what to report if nothing comes from the cluster. */
    private static final long LOOK = 5 * Clock.SECOND;
    private static final int DETAIL_BYTES_MAX = 1024;
    /** The most configs outside rollouts that a cache reports as failed at one time. */
    private static final int CONFIGS_MAX = 50;
    /** For how long nothing is reported of a definition after a node has rejected a report of its configs. */
    private static final long SILENCE = 600 * Clock.SECOND;

    /** What a report is about: the rollout of a change request, or a config. */
    private record Target(String change, String definition, String key) {
        /** What a rejection is about: it is the same for all configs of a definition. */
        Target group() {
            return change != null ? this : new Target(null, definition, null);
        }

        String path() {
            return change != null
                    ? Requests.ROOT + "/change_request/" + Requests.segment(change, "change_id") + "/report"
                    : Requests.config(definition, key, "report");
        }

        @Override
        public String toString() {
            return change != null ? "the change request " + change : "the configs of " + definition;
        }
    }

    /**
     * What there is to report.
     *
     * @param reason why something is wrong; null for healthy
     * @param revision that of a config; 0 of a candidate
     */
    private record Said(String reason, long revision) {}

    /**
     * When something is reported again.
     *
     * @param said what was reported last, or null
     * @param seen what there was to report at the last look, or null
     */
    private record Turn(Said said, Said seen, long at) {}

    private final Calls calls;
    private final Cache cache;
    private final String instance;
    private final Map<Target, Turn> turns = new HashMap<>();
    /** Of what nothing is reported, and until when; the greatest number: as long as there is something to report of it. */
    private final Map<Target, Long> silent = new HashMap<>();
    private final Set<Target> warned = new HashSet<>();
    long every = EVERY, firstWithin = FIRST_WITHIN;
    private boolean hasNews, hasFailed;

    Reports(Calls calls, Cache cache) {
        this.calls = calls;
        this.cache = cache;
        byte[] random = new byte[8];
        new SecureRandom().nextBytes(random);
        this.instance = HexFormat.of().formatHex(random);
    }

    /** There may be something to report. */
    synchronized void look() {
        hasNews = true;
        notifyAll();
    }

    void run(Scope scope) {
        while (!scope.isClosed()) {
            Thread.interrupted();
            try {
                sendDue();
            } catch (Throwable error) {
                // Whatever it is, it ends no reports.
                if (!hasFailed && !scope.isClosed()) {
                    hasFailed = true;
                    Cache.LOG.log(Level.ERROR, "a report met an error that it does not know", error);
                }
                scope.pause(LOOK);
            }
            await(untilNext(), scope);
        }
    }

    private synchronized void await(long nanos, Scope scope) {
        long end = System.nanoTime() + nanos;
        try {
            for (long left = nanos; left > 0 && !hasNews && !scope.isClosed(); left = end - System.nanoTime()) {
                TimeUnit.NANOSECONDS.timedWait(this, left);
            }
        } catch (InterruptedException error) {
            // Nobody ends this thread by an interrupt.
            hasNews = true;
        }
        hasNews = false;
    }

    private long untilNext() {
        long now = calls.clock.nanos();
        return turns.entrySet().stream().filter(each -> !silent.containsKey(each.getKey().group()))
                .mapToLong(each -> Math.max(0, each.getValue().at - now)).reduce(LOOK, Math::min);
    }

    private void sendDue() {
        long now = calls.clock.nanos();
        Cache.Replica replica = cache.replica();
        Map<Target, Said> all = all(replica);
        turns.keySet().retainAll(all.keySet());
        silent.entrySet().removeIf(each ->
                each.getValue() == Long.MAX_VALUE ? !all.containsKey(each.getKey()) : each.getValue() <= now);
        warned.removeIf(group -> group.change != null && !all.containsKey(group));
        for (Map.Entry<Target, Said> each : all.entrySet()) {
            if (!silent.containsKey(each.getKey().group()) && isDue(each.getKey(), each.getValue(), now)) {
                send(each.getKey(), each.getValue());
                return;
            }
        }
    }

    private boolean isDue(Target target, Said said, long now) {
        long soon = now + (long) (firstWithin * calls.clock.dice());
        Turn turn = turns.computeIfAbsent(target, none -> new Turn(null, null, soon));
        if (target.change == null && !said.equals(turn.seen)) {
            // Many readers reject one config in one moment: nobody waits for a report of it.
            turn = new Turn(turn.said, said, Math.min(turn.at, soon));
            turns.put(target, turn);
        }
        // That something is wrong in a rollout is reported at once: the rollout ends by it.
        boolean isNews = target.change != null && said.reason != null && !said.equals(turn.said);
        return turn.at <= now || isNews;
    }

    /** What there is to report, of candidates first. */
    private Map<Target, Said> all(Cache.Replica replica) {
        Map<Target, Said> all = new LinkedHashMap<>();
        if (!replica.isConfirmed()) {
            return all;
        }
        for (Config config : replica.configs().values()) {
            if (config.change() != null) {
                Target target = new Target(config.change(), null, null);
                all.merge(target, new Said(reason(replica, config), 0), (one, other) -> one.reason != null ? one : other);
            }
        }
        int count = 0;
        for (TypedCache<?> view : cache.typed()) {
            for (TypedCache.Made<?> made : view.invalid(replica)) {
                Config config = made.seen();
                Target target = new Target(null, config.definition(), config.key());
                if (config.change() == null && made.look().hasRead() && !all.containsKey(target) && count < CONFIGS_MAX) {
                    count++;
                    all.put(target, new Said(reason(replica, config), config.revision()));
                }
            }
        }
        turns.forEach((target, turn) -> {
            Config config = replica.configs().get(new ConfigName(target.definition, target.key));
            if (target.change == null && turn.said != null && config != null && config.change() == null) {
                // It fits again.
                all.putIfAbsent(target, new Said(null, config.revision()));
            }
        });
        return all;
    }

    private void send(Target target, Said said) {
        long now = calls.clock.nanos();
        boolean isFailed = said.reason != null;
        boolean isOfConfig = target.change == null;
        long pause = isFailed && !isOfConfig ? Math.min(every, EVERY_FAILED) : every;
        if (isFailed || !isOfConfig) {
            turns.put(target, new Turn(said, said, now + (long) (pause * (0.9 + calls.clock.dice() / 10))));
        } else {
            turns.remove(target);
        }
        ObjectNode body = Json.object().put("reader", calls.reader.name);
        ObjectNode labels = body.putObject("labels");
        calls.reader.labels.forEach(labels::put);
        body.put("instance", instance).put("state", isFailed ? "failed" : "healthy");
        if (isFailed) {
            body.put("detail", said.reason);
        }
        if (isOfConfig) {
            body.put("revision", said.revision);
        }
        try {
            // A copy of a report is the same report: it is sent again as a read is.
            calls.call(Request.post(target.path(), Json.bytes(body)), TIMEOUT, ATTEMPT_TIMEOUT);
        } catch (ConcordException error) {
            // A key that may not even know of a change request is told that there is none.
            boolean isTold = error instanceof ForbiddenException || error instanceof NotFoundException;
            boolean isEarly = isOfConfig && error instanceof RejectedException rejected && rejected.status() == 409;
            if (!isTold && !isEarly) {
                Cache.LOG.log(Level.DEBUG, "a report of " + target + " failed: " + error.getMessage());
                return;
            }
            silent.put(target.group(), isOfConfig ? calls.clock.nanos() + SILENCE : Long.MAX_VALUE);
            turns.remove(target);
            if (warned.add(target.group())) {
                Cache.LOG.log(Level.WARNING, "nothing is reported of " + target + ": " + error.getMessage());
            }
        }
    }

    /** Why a config does not fit a type: the places and no values, as others read it. */
    private String reason(Cache.Replica replica, Config config) {
        for (TypedCache<?> view : cache.typed()) {
            TypedCache.Made<?> made = view.definition().equals(config.definition()) ? view.made(replica, config.key()) : null;
            if (made != null && made.invalid() != null) {
                List<String> paths = made.invalid().paths().stream().map(path -> path.isEmpty() ? "/" : path).toList();
                return shortened(config.name() + " does not fit " + view.typeName() + " at "
                        + (paths.isEmpty() ? "some place" : String.join(", ", paths)));
            }
        }
        return null;
    }

    /** A node rejects characters that nobody sees, and long texts. */
    private static String shortened(String text) {
        StringBuilder seen = new StringBuilder();
        int bytes = 0;
        for (int c : text.codePoints().toArray()) {
            int type = Character.getType(c);
            boolean isSeen = !Set.of((int) Character.CONTROL, (int) Character.FORMAT, (int) Character.SURROGATE,
                    (int) Character.UNASSIGNED, (int) Character.PRIVATE_USE, (int) Character.LINE_SEPARATOR,
                    (int) Character.PARAGRAPH_SEPARATOR).contains(type);
            String shown = isSeen ? Character.toString(c) : " ";
            bytes += shown.getBytes(StandardCharsets.UTF_8).length;
            if (bytes > DETAIL_BYTES_MAX) {
                break;
            }
            seen.append(shown);
        }
        return seen.toString();
    }
}
