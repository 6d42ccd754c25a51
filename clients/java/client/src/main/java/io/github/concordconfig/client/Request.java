package io.github.concordconfig.client;

import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * What is sent to a node, all but the credential.
 *
 * @param target path and query, encoded
 * @param isWrite whether a copy may be applied
 * @param idempotencyKey without one, a write is not sent again once it may have been applied
 * @param sink takes a response of success as it comes, or null
 * @param isProven whether it reads what is proven, also if the reader of the client gets a candidate
 */
record Request(String method, String target, Map<String, String> headers, byte[] body, boolean isWrite,
        String idempotencyKey, Sink sink, boolean isProven) {

    /** Takes a response of success as it comes. */
    interface Sink {
        /** A response of success begins. What an earlier one brought is not a part of it. */
        default void begin() {}

        /** Whether that was all that is needed. */
        boolean feed(byte[] bytes, int length);
    }

    static Request read(String target) {
        return new Request("GET", target, Map.of(), null, false, null, null, false);
    }

    static Request post(String target, byte[] body) {
        return new Request("POST", target, Map.of("content-type", "application/json"), body, false, null, null, false);
    }

    Request with(String name, String value) {
        return with(Map.of(name, value));
    }

    Request with(Map<String, String> more) {
        Map<String, String> all = new LinkedHashMap<>(headers);
        all.putAll(more);
        return new Request(method, target, all, body, isWrite, idempotencyKey, sink, isProven);
    }

    Request with(String target, byte[] body) {
        return new Request(method, target, headers, body, isWrite, idempotencyKey, sink, isProven);
    }

    Request to(Sink sink) {
        return new Request(method, target, headers, body, isWrite, idempotencyKey, sink, isProven);
    }

    Request proven() {
        return new Request(method, target, headers, body, isWrite, idempotencyKey, sink, true);
    }

    @Override
    public String toString() {
        return method + " " + target + (body == null ? "" : " " + new String(body, StandardCharsets.UTF_8));
    }
}
