package io.github.concordconfig.client;

import com.fasterxml.jackson.databind.JsonNode;
import io.github.concordconfig.client.Requests.Parameter;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * Follows changes: the state to begin with, then long polls, each from where the last one ended.
 *
 * <p>A poll requests the changes from a revision on, at whichever node responds. So a lost connection or a killed node costs
 * nothing but time.
 *
 * <p>The nodes may belong to another cluster from one moment to the next, such as one that was restored from a backup. Its id
 * is another one, which each response has, or its revision is lower than the position. Then there is nothing to resume from,
 * and that is {@link ExpiredException}.
 *
 * <p><b>Invariants:</b> every change is handed out once and in order. {@code position} is a revision up to which everything
 * was handed out. Nothing of another cluster is handed out after it.
 */
final class Following {
    /** How long the next part of a state may take. */
    private static final long STATE_SILENCE = 10 * Clock.SECOND;
    /** How much longer than it waits a poll may take. */
    private static final long GRACE = 3 * Clock.SECOND;
    private static final long EARLY = Clock.SECOND / 5;
    private static final long PAUSE = Clock.SECOND / 10;
    private static final String CLUSTER = "x-concord-cluster";

    final Calls calls;
    private final List<Parameter> parameters;
    private final boolean hasPrevious;
    private long position;
    private String cluster;

    Following(Calls calls, List<Parameter> parameters, boolean hasPrevious) {
        this.calls = calls;
        this.parameters = parameters;
        this.hasPrevious = hasPrevious;
    }

    long position() {
        return position;
    }

    void startAt(long revision) {
        position = revision - 1;
    }

    /** Something that a node said, and when the request for it was sent. */
    record Told<T>(T value, long sentAt) {}

    /** Everything that there is. */
    Told<State> state() {
        while (true) {
            StateSink sink = new StateSink();
            Request request = Request.read(target("/watch", "initial", "true")).with("accept", "text/event-stream").to(sink);
            Answer answer = calls.call(request, Math.max(calls.timeout, STATE_SILENCE), STATE_SILENCE);
            if (sink.error != null) {
                rejectUnlessMomentary(sink.error, answer);
            }
            if (sink.isComplete) {
                position = sink.revision;
                cluster = answer.header(CLUSTER);
                return new Told<>(sink.state(answer, calls.environment), answer.sentAt());
            }
            // It broke off half-way: another node, from the beginning.
            calls.preferNext();
            calls.clock.pause(PAUSE, calls.scope);
            if (calls.scope.isStopped()) {
                throw new UnavailableException("the watch was closed, or the thread interrupted", List.of());
            }
        }
    }

    private static void rejectUnlessMomentary(JsonNode error, Answer answer) {
        int status = switch (error.path("errors").path(0).path("type").asText()) {
            case "expired_error", "unavailable_error", "rate_limited" -> 0;
            case "unauthorized_error" -> 401;
            case "forbidden_error" -> 403;
            default -> 422;
        };
        if (status != 0) {
            throw RejectedException.of(status, error, answer.node(), answer.headers());
        }
    }

    /** The changes after the position; none if none came in time. */
    List<Event> poll(int waitSeconds) {
        List<String> more = new ArrayList<>(List.of("from", String.valueOf(position + 1), "wait", String.valueOf(waitSeconds)));
        if (hasPrevious) {
            more.addAll(0, List.of("prev", "true"));
        }
        long wait = waitSeconds * Clock.SECOND;
        Request request = Request.read(target("/changes", more.toArray(new String[0])));
        Answer answer = calls.call(request, wait + calls.timeout, wait + GRACE);
        long next = nextFrom(answer);
        List<Event> events = new ArrayList<>();
        if (answer.status() != 304) {
            answer.object().path("events").forEach(each -> {
                if (each.path("revision").asLong() > position) {
                    events.add(event(each, answer.node()));
                }
            });
        }
        if (events.isEmpty() && next <= position + 1 && calls.clock.nanos() - answer.sentAt() < Math.min(wait, EARLY)) {
            // A proxy has not waited. To poll again at once would be a storm.
            calls.clock.pause(EARLY, calls.scope);
        }
        position = Math.max(position, next - 1);
        return events;
    }

    private static Event event(JsonNode record, String node) {
        try {
            return Event.of(record, node);
        } catch (RuntimeException error) {
            throw new ProtocolException(node + " responded with an event that can't be read: " + error.getMessage(), error);
        }
    }

    /** A revision, and a time by which everything acknowledged has at most that revision. */
    Told<Long> confirm() {
        // Without `from`, a poll tells the revision that a linearizable read sees. It returns no earlier changes.
        Answer answer = calls.call(Request.read(target("/changes", "wait", "0")), null);
        long revision = nextFrom(answer) - 1;
        // A cluster does not go back: what was known before the request is in a linearizable response.
        if (revision < position) {
            throw RejectedException.otherCluster(answer.node());
        }
        return new Told<>(revision, answer.sentAt());
    }

    /** Begins with the changes after now. */
    void startNow() {
        position = confirm().value();
    }

    /** From where a poll goes on, if the response is of the cluster of the position. */
    private long nextFrom(Answer answer) {
        long next = answer.number(Answer.HeaderName.NEXT_FROM).orElseThrow(() -> new ProtocolException(
                answer.node() + " responded to a poll without X-Concord-Next-From", null));
        String found = answer.header(CLUSTER);
        if (found != null) {
            if (cluster != null && !cluster.equals(found)) {
                throw RejectedException.otherCluster(answer.node());
            }
            cluster = found;
        }
        return next;
    }

    private String target(String path, String... more) {
        List<Parameter> all = new ArrayList<>(parameters);
        for (int n = 0; n < more.length; n += 2) {
            all.add(new Parameter(more[n], more[n + 1]));
        }
        return Requests.target(Requests.ROOT + path, all);
    }

    /** Puts a state together from the parts of an event stream. */
    static final class StateSink implements Request.Sink {
        /** A part of a state has about 1 MiB, but at least one config. */
        private static final int EVENT_BYTES_MAX = 1 << 26;

        private final ByteArrayOutputStream line = new ByteArrayOutputStream();
        private final ByteArrayOutputStream data = new ByteArrayOutputStream();
        private final List<JsonNode> parts = new ArrayList<>();
        private String name = "";
        private long revision;
        private boolean isComplete;
        private JsonNode error;

        @Override
        public void begin() {
            line.reset();
            data.reset();
            parts.clear();
            name = "";
            isComplete = false;
            error = null;
        }

        @Override
        public boolean feed(byte[] bytes, int length) {
            int begin = 0;
            for (int n = 0; n < length; n++) {
                if (bytes[n] == '\n') {
                    line.write(bytes, begin, n - begin);
                    begin = n + 1;
                    if (takeLine()) {
                        return true;
                    }
                    line.reset();
                }
            }
            line.write(bytes, begin, length - begin);
            if (line.size() + data.size() > EVENT_BYTES_MAX) {
                throw new IllegalStateException("an event is longer than " + EVENT_BYTES_MAX + " bytes");
            }
            return false;
        }

        private boolean takeLine() {
            String text = line.size() < 80 ? line.toString(StandardCharsets.UTF_8).stripTrailing() : "";
            byte[] all = line.toByteArray();
            if (text.startsWith("event:")) {
                name = text.substring(6).strip();
            } else if (all.length > 5 && new String(all, 0, 5, StandardCharsets.US_ASCII).equals("data:")) {
                data.write(all, 5, all.length - 5);
            } else if (text.isEmpty() && all.length < 2) {
                String ended = name;
                byte[] content = data.toByteArray();
                name = "";
                data.reset();
                return take(ended, content);
            }
            return false;
        }

        private boolean take(String event, byte[] content) {
            if (!event.equals("error") && !event.equals("state")) {
                return false;
            }
            JsonNode found;
            try {
                found = Json.parse(content);
            } catch (IOException broken) {
                throw new IllegalStateException("an event is no JSON", broken);
            }
            if (event.equals("error")) {
                error = found;
                return true;
            }
            parts.add(found);
            revision = found.path("revision").asLong();
            isComplete = found.path("complete").asBoolean();
            return isComplete;
        }

        State state(Answer answer, Environment environment) {
            List<Definition> definitions = new ArrayList<>();
            List<Config> configs = new ArrayList<>();
            Map<ConfigName, String> unreadable = new LinkedHashMap<>();
            for (JsonNode part : parts) {
                if (environment != null) {
                    environment.leaveEvent(part);
                }
                part.path("definitions").forEach(each -> definitions.add(Definition.of(each, 0, List.of())));
                part.path("configs").forEach(each -> {
                    try {
                        configs.add(Config.of("", each, answer, revision, null, List.of()));
                    } catch (RuntimeException problem) {
                        // One config that can't be read says nothing of the others.
                        unreadable.put(new ConfigName(each.path("config_definition_key").asText(),
                                each.path("config_key").asText()), String.valueOf(problem.getMessage()));
                    }
                });
            }
            return new State(revision, List.copyOf(definitions), List.copyOf(configs), answer.node(), Map.copyOf(unreadable));
        }
    }
}
