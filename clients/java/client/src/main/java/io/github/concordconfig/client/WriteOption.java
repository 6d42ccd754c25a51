package io.github.concordconfig.client;

import io.github.concordconfig.client.Requests.Parameter;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;

/**
 * An option of a write, as in {@code client.put("limits", "acme", data, ifMatch(7), reason("contract signed"))}.
 *
 * <p>An option that a write does not have is an {@link IllegalArgumentException}.
 */
public final class WriteOption {
    static final Set<String> NAMED = Set.of("reason", "timeout");
    static final Set<String> PLAIN = Set.of("reason", "timeout", "idempotencyKey", "dryRun");
    static final Set<String> CONDITIONAL = plus("ifMatch");

    private final String name;
    private final Object value;

    private WriteOption(String name, Object value) {
        this.name = name;
        this.value = value;
    }

    static Set<String> plus(String... names) {
        Set<String> all = new HashSet<>(PLAIN);
        all.addAll(List.of(names));
        return all;
    }

    /** Write only if the record has this revision; otherwise {@link PreconditionFailedException}. */
    public static WriteOption ifMatch(long revision) {
        return new WriteOption("ifMatch", "\"" + revision + "\"");
    }

    /** Write only if there is no such record; otherwise {@link PreconditionFailedException}. */
    public static WriteOption createOnly() {
        return new WriteOption("createOnly", true);
    }

    /** Write whether there is such a record or not. */
    public static WriteOption upsert() {
        return new WriteOption("upsert", true);
    }

    /** Why the change is made; the history has it. */
    public static WriteOption reason(String reason) {
        return new WriteOption("reason", Requests.reason(reason));
    }

    /** The key of a call with an unknown outcome, to repeat it. Without one, each call makes its own. */
    public static WriteOption idempotencyKey(String key) {
        return new WriteOption("idempotencyKey", Requests.idempotencyKey(key));
    }

    /** Validate and respond, but store nothing. */
    public static WriteOption dryRun() {
        return new WriteOption("dryRun", true);
    }

    /** The time for the call with all its attempts. */
    public static WriteOption timeout(Duration timeout) {
        return new WriteOption("timeout", timeout);
    }

    /** Delete a definition only if it has no configs. */
    public static WriteOption restrict() {
        return new WriteOption("restrict", true);
    }

    /** Delete a definition for good: the deletion can't be undone. */
    public static WriteOption purge() {
        return new WriteOption("purge", true);
    }

    /** Change a schema although existing configs break it. */
    public static WriteOption force() {
        return new WriteOption("force", true);
    }

    /** Whether data with an invalid {@code format} are rejected. */
    public static WriteOption formatAssertion(boolean isOn) {
        return new WriteOption("formatAssertion", isOn);
    }

    /** The options of one call. */
    static final class Settings {
        private final Map<String, Object> given = new LinkedHashMap<>();

        static Settings of(WriteOption[] options, Set<String> allowed) {
            Settings made = new Settings();
            for (WriteOption each : options) {
                if (!allowed.contains(each.name)) {
                    throw new IllegalArgumentException("this write has no option " + each.name);
                }
                if (made.given.put(each.name, each.value) != null) {
                    throw new IllegalArgumentException("the option " + each.name + " is given twice");
                }
            }
            return made;
        }

        Settings with(WriteOption option) {
            given.put(option.name, option.value);
            return this;
        }

        Object get(String name) {
            return given.get(name);
        }

        boolean isDryRun() {
            return given.containsKey("dryRun");
        }

        Duration timeout() {
            return (Duration) given.get("timeout");
        }

        String idempotencyKey() {
            return (String) given.computeIfAbsent("idempotencyKey", name -> UUID.randomUUID().toString().replace("-", ""));
        }

        Map<String, String> headers() {
            Map<String, String> headers = new LinkedHashMap<>();
            given.forEach((name, value) -> {
                switch (name) {
                    case "ifMatch" -> headers.put("if-match", (String) value);
                    case "createOnly" -> headers.put("if-none-match", "*");
                    case "reason" -> {
                        if (!value.equals("")) {
                            headers.put("x-change-reason", (String) value);
                        }
                    }
                    default -> { }
                }
            });
            return headers;
        }

        List<Parameter> parameters() {
            List<Parameter> parameters = new ArrayList<>();
            given.keySet().forEach(name -> {
                switch (name) {
                    case "upsert" -> parameters.add(new Parameter("upsert", "true"));
                    case "restrict" -> parameters.add(new Parameter("mode", "restrict"));
                    case "purge" -> parameters.add(new Parameter("purge", "true"));
                    case "force" -> parameters.add(new Parameter("policy", "force"));
                    case "dryRun" -> parameters.add(new Parameter("dry_run", "true"));
                    default -> { }
                }
            });
            return parameters;
        }
    }
}
