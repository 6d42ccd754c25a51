package io.github.concordconfig.client;

import io.github.concordconfig.client.Requests.Parameter;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;

/**
 * An option of a read, as in {@code client.get("limits", "acme", atRevision(7))}.
 *
 * <p>An option that a read does not have is an {@link IllegalArgumentException}.
 */
public final class ReadOption {
    static final Set<String> PLAIN = Set.of("consistency", "max_staleness_ms", "min_revision", "timeout");
    static final Set<String> AT_REVISION = plus("revision");
    static final Set<String> SELECTING = plus("revision", "fields");

    private final String name;
    private final Object value;

    private ReadOption(String name, Object value) {
        this.name = name;
        this.value = value;
    }

    private static Set<String> plus(String... names) {
        Set<String> all = new HashSet<>(PLAIN);
        all.addAll(List.of(names));
        return all;
    }

    /** How fresh the response must be. */
    public enum Consistency {
        /** Every write that was acknowledged before the read. The default. */
        LINEARIZABLE,
        /** The same, as long as the clocks of the nodes run at nearly the same rate. */
        LEASE,
        /** The state of the receiving node. */
        LOCAL
    }

    /** How fresh the response must be. */
    public static ReadOption consistency(Consistency consistency) {
        return new ReadOption("consistency", consistency.name().toLowerCase(Locale.ROOT));
    }

    /** With {@link Consistency#LOCAL}: how old the state may be. */
    public static ReadOption maxStaleness(Duration staleness) {
        return new ReadOption("max_staleness_ms", staleness.toMillis());
    }

    /** The state must have this revision, such as that of one's own write. */
    public static ReadOption minRevision(long revision) {
        return new ReadOption("min_revision", revision);
    }

    /** The record as it was at this revision. */
    public static ReadOption atRevision(long revision) {
        return new ReadOption("revision", revision);
    }

    /** Only these parts of the data. */
    public static ReadOption fields(String... paths) {
        return new ReadOption("fields", String.join(",", paths));
    }

    /** The time for the call with all its attempts. */
    public static ReadOption timeout(Duration timeout) {
        return new ReadOption("timeout", timeout);
    }

    /** The options of one call. */
    static final class Settings {
        private final Map<String, Object> given = new LinkedHashMap<>();

        static Settings of(ReadOption[] options, Set<String> allowed) {
            Settings made = new Settings();
            for (ReadOption each : options) {
                if (!allowed.contains(each.name)) {
                    throw new IllegalArgumentException("this read has no option " + each.name);
                }
                if (made.given.put(each.name, each.value) != null) {
                    throw new IllegalArgumentException("the option " + each.name + " is given twice");
                }
            }
            return made;
        }

        Duration timeout() {
            return (Duration) given.get("timeout");
        }

        Long revision() {
            return (Long) given.get("revision");
        }

        /** The parameters of a read of one record. */
        List<Parameter> parameters() {
            return parameters("");
        }

        /** The parameters; those of lists have a mark, so that no filter takes them for its own. */
        List<Parameter> parameters(String mark) {
            List<Parameter> made = new ArrayList<>();
            given.forEach((name, value) -> {
                if (!name.equals("timeout")) {
                    boolean isMarked = name.equals("revision") || name.equals("fields");
                    made.add(new Parameter(isMarked ? mark + name : name, value.toString()));
                }
            });
            return made;
        }
    }
}
