package io.github.concordconfig.client;

import java.nio.CharBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.CharsetEncoder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.regex.Pattern;
import java.util.stream.Collectors;

/** How requests are written: paths, queries, headers. */
final class Requests {
    static final String ROOT = "/api/v1";
    private static final Pattern KEY = Pattern.compile("[A-Za-z0-9][A-Za-z0-9_.~-]{0,254}");

    private Requests() {}

    /**
     * A key as a part of a path. What is no key is rejected here: {@code ..} or nothing at the end of a path would name
     * another resource.
     */
    static String segment(String key, String of) {
        if (key == null || !KEY.matcher(key).matches()) {
            throw RejectedException.invalid("key_invalid",
                    "'" + key + "' is no key: expected 1 to 255 characters of A-Z a-z 0-9 _ . ~ -", of);
        }
        return key;
    }

    static String definition(String definition, String... rest) {
        String path = ROOT + "/config_definition/" + segment(definition, "config_definition_key");
        return rest.length == 0 ? path : path + "/" + String.join("/", rest);
    }

    static String config(String definition, String key, String... rest) {
        String path = definition(definition, "config", segment(key, "config_key"));
        return rest.length == 0 ? path : path + "/" + String.join("/", rest);
    }

    /** A parameter of a query. */
    record Parameter(String name, String value) {
        @Override
        public String toString() {
            return encoded(name, "$[]") + "=" + encoded(value, "");
        }
    }

    static String target(String path, List<Parameter> parameters) {
        if (parameters.isEmpty()) {
            return path;
        }
        return path + "?" + parameters.stream().map(Parameter::toString).collect(Collectors.joining("&"));
    }

    private static String encoded(String text, String plain) {
        StringBuilder made = new StringBuilder();
        for (byte each : text.getBytes(StandardCharsets.UTF_8)) {
            char c = (char) (each & 0xff);
            boolean isPlain = c < 128 && (Character.isLetterOrDigit(c) || "_.-~".indexOf(c) >= 0 || plain.indexOf(c) >= 0);
            made.append(isPlain ? String.valueOf(c) : String.format("%%%02X", (int) c));
        }
        return made.toString();
    }

    /** A write. Unless it is a dry run, it has an idempotency key. */
    static Request write(String method, String path, byte[] body, WriteOption.Settings options) {
        return write(method, path, body, "application/json", options);
    }

    static Request write(String method, String path, byte[] body, String contentType, WriteOption.Settings options) {
        Map<String, String> headers = options.headers();
        if (body != null) {
            headers.put("content-type", contentType);
        }
        String key = options.isDryRun() ? null : options.idempotencyKey();
        if (key != null) {
            headers.put("idempotency-key", idempotencyKey(key));
        }
        String target = target(path, options.parameters());
        return new Request(method, target, headers, body, !options.isDryRun(), key, null, false);
    }

    /** A text as the value of a header. Blanks at its ends are no part of such a value, so they are not sent. */
    static String reason(String text) {
        String reason = text.replaceAll("^[ \t]+|[ \t]+$", "");
        if (reason.chars().anyMatch(c -> (c < 32 && c != '\t') || c == 127)) {
            throw RejectedException.invalid(
                    "header_invalid", "a reason has no line ends or other control characters", "header");
        }
        CharsetEncoder encoder = StandardCharsets.UTF_8.newEncoder();
        try {
            encoder.encode(CharBuffer.wrap(reason));
        } catch (CharacterCodingException error) {
            throw RejectedException.invalid("header_invalid", "a reason is a text of Unicode", "header");
        }
        return reason;
    }

    static String idempotencyKey(String key) {
        if (key.isEmpty() || key.length() > 255 || key.chars().anyMatch(c -> c < 33 || c > 126)) {
            throw RejectedException.invalid(
                    "header_invalid", "an idempotency key is 1 to 255 visible ASCII characters", "header");
        }
        return key;
    }

    /** The names that a call selects. An empty list would select everything in place of nothing. */
    static List<Parameter> names(String parameter, List<String> names, String what) {
        if (names == null) {
            return List.of();
        }
        if (names.isEmpty()) {
            throw new IllegalArgumentException("an empty list of " + what + " selects nothing: leave it out to select all");
        }
        List<Parameter> made = new ArrayList<>();
        names.forEach(name -> made.add(new Parameter(parameter, name)));
        return made;
    }
}
