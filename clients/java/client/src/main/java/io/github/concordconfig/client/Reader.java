package io.github.concordconfig.client;

import java.io.IOException;
import java.net.InetAddress;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.regex.Pattern;
import java.util.stream.Collectors;

/**
 * Who reads: the name and the labels by which a rollout chooses who gets its candidates.
 *
 * <p>They are sent with the requests that follow configs. A node rejects a filtered watch of a reader, so that one is sent
 * without them. {@code clients/cases.json} has the requests.
 *
 * <p><b>Invariant:</b> what is sent fits a header and the limits of a node. Anything else is rejected when the client is
 * made.
 */
final class Reader {
    private static final int NAME_MAX = 255, LABELS_MAX = 16, LABELS_TEXT_MAX = 1024, LABEL_MAX = 255;
    /** Visible ASCII, blanks only inside. */
    private static final Pattern SENT_AS_IS = Pattern.compile("[!-~](?:[ -~]*[!-~])?");
    private static final Pattern CONFIG = Pattern.compile("/api/v1/config_definition/[^/]+/config/[^/]+");
    /** The parameters of a watch or a poll that are no filters. */
    private static final Set<String> UNFILTERED = Set.of("definition", "config_key", "from", "initial", "prev", "wait",
            "consistency", "max_staleness_ms", "min_revision");

    final String name;
    final Map<String, String> labels;
    private final Map<String, String> headers = new LinkedHashMap<>();

    private Reader(String name, Map<String, String> labels) {
        if (!isSentAsIs(name, NAME_MAX)) {
            throw new IllegalArgumentException("'" + name + "' is not the name of a reader: expected 1 to " + NAME_MAX
                    + " visible ASCII characters");
        }
        this.name = name;
        this.labels = Map.copyOf(labels);
        headers.put("x-concord-reader", name);
        String text = textOf(labels);
        if (!text.isEmpty()) {
            headers.put("x-concord-labels", text);
        }
    }

    /** Null without a name. */
    static Reader of(String name, Map<String, String> labels) {
        if (name != null) {
            return new Reader(name, labels);
        }
        if (!labels.isEmpty()) {
            throw new IllegalArgumentException("labels are those of a reader: give its name too");
        }
        return null;
    }

    /** The request with the headers, if its response depends on the reader. */
    Request on(Request request) {
        return request.isProven() || !isReadAsReader(request.method(), request.target()) ? request : request.with(headers);
    }

    private static boolean isSentAsIs(String text, int most) {
        return text.length() <= most && SENT_AS_IS.matcher(text).matches();
    }

    private static String textOf(Map<String, String> labels) {
        labels.forEach((name, value) -> {
            boolean isLabel = isSentAsIs(name, LABEL_MAX) && isSentAsIs(value, LABEL_MAX)
                    && !(name + value).contains(",") && !name.contains("=");
            if (!isLabel) {
                throw new IllegalArgumentException("'" + name + "=" + value + "' is not a label: expected 1 to " + LABEL_MAX
                        + " visible ASCII characters on each side, without a comma, and no = in the name");
            }
        });
        String text = new TreeMap<>(labels).entrySet().stream()
                .map(each -> each.getKey() + "=" + each.getValue()).collect(Collectors.joining(","));
        if (labels.size() > LABELS_MAX || text.length() > LABELS_TEXT_MAX) {
            throw new IllegalArgumentException("the labels of a reader are too many: expected at most " + LABELS_MAX
                    + " labels, of " + LABELS_TEXT_MAX + " bytes in all");
        }
        return text;
    }

    /** The labels of a variable: {@code ring=canary,region=eu}. */
    static Map<String, String> labelsOf(String text) {
        Map<String, String> labels = new LinkedHashMap<>();
        for (String part : text.split(",")) {
            String[] sides = part.split("=", 2);
            if (!part.isBlank() && (sides.length < 2 || labels.put(sides[0].strip(), sides[1].strip()) != null)) {
                throw new IllegalArgumentException(
                        "'" + part.strip() + "' is not a label, or is one twice: expected NAME=VALUE, each name once");
            }
        }
        return labels;
    }

    /** The name of this machine, without a question to a name server; null if it can't be sent. */
    static String hostName() {
        String name;
        try {
            name = Files.readString(Path.of("/proc/sys/kernel/hostname")).strip();
        } catch (IOException | RuntimeException error) {
            name = System.getenv("COMPUTERNAME");
        }
        try {
            name = name == null ? InetAddress.getLocalHost().getHostName() : name;
        } catch (IOException error) {
            return null;
        }
        return isSentAsIs(name, NAME_MAX) ? name : null;
    }

    static boolean isReadAsReader(String method, String target) {
        String path = Environment.plain(target);
        if (method.equals("POST")) {
            return path.equals("/api/v1/read");
        }
        Set<String> names = Environment.pairs(target).stream().map(pair -> pair.split("=", 2)[0]).collect(Collectors.toSet());
        if (!method.equals("GET")) {
            return false;
        }
        if (path.equals("/api/v1/watch") || path.equals("/api/v1/changes")) {
            return UNFILTERED.containsAll(names);
        }
        return CONFIG.matcher(path).matches() && !names.contains("revision");
    }

    /** The id of the change request whose candidate a response shows, by its header; null for what is proven. */
    static String variantOf(String header) {
        String[] parts = header == null ? new String[0] : header.split(";");
        if (parts.length == 0 || !parts[0].strip().equals("candidate")) {
            return null;
        }
        for (String part : parts) {
            if (part.strip().startsWith("change=")) {
                return part.strip().substring("change=".length());
            }
        }
        return null;
    }
}
