package io.github.concordconfig.client;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.OptionalLong;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * A response of success, or 304.
 *
 * @param data the member {@code data} of the body, or the body
 * @param node the URL of the node
 * @param sentAt when this copy was sent, by the clock of the client
 */
record Answer(int status, Map<String, String> headers, JsonNode data, String node, long sentAt) {
    /** A warning: {@code 299 - "a text"}. There may be several, comma-separated. */
    private static final Pattern WARNING = Pattern.compile("\\d{3} \\S+ \"((?:[^\"\\\\]|\\\\.)*)\"");

    String header(String name) {
        return headers.get(name);
    }

    OptionalLong number(HeaderName name) {
        return number(headers.get(name.text));
    }

    /** The headers with numbers. */
    enum HeaderName {
        ETAG("etag"), REVISION("x-concord-revision"), NEXT_FROM("x-concord-next-from");

        private final String text;

        HeaderName(String text) {
            this.text = text;
        }
    }

    /** The number in a header, with or without quotes. */
    static OptionalLong number(String header) {
        String text = header == null ? "" : header.replaceAll("^\"|\"$", "");
        boolean isNumber = !text.isEmpty() && text.length() < 19 && text.chars().allMatch(c -> c >= '0' && c <= '9');
        return isNumber ? OptionalLong.of(Long.parseLong(text)) : OptionalLong.empty();
    }

    long etag() {
        return number(HeaderName.ETAG).orElse(0);
    }

    long revision() {
        return number(HeaderName.REVISION).orElse(0);
    }

    boolean isDryRun() {
        return "true".equals(header("x-concord-dry-run"));
    }

    /** The parts of the request that had no effect, or that are missing from the response. */
    List<String> warnings() {
        String header = header("warning");
        if (header == null || header.isEmpty()) {
            return List.of();
        }
        List<String> found = new ArrayList<>();
        for (Matcher each = WARNING.matcher(header); each.find(); ) {
            found.add(each.group(1).replaceAll("\\\\(.)", "$1"));
        }
        return found.isEmpty() ? List.of(header) : List.copyOf(found);
    }

    /** The data of a read, which are an object. */
    JsonNode object() {
        if (data == null || !data.isObject()) {
            throw new ProtocolException(node + " responded with " + status + " and without the data of the request", null);
        }
        return data;
    }

    /** The data of a read of one record. */
    JsonNode record(String name, String expected) {
        String found = object().path(name).asText();
        if (!found.equals(expected)) {
            throw new ProtocolException(
                    node + " responded with '" + found + "' to a request for '" + expected + "'", null);
        }
        return data;
    }
}
