package io.github.concordconfig.client;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;

/** The cases that all clients share: {@code clients/cases.json}. */
final class Cases {
    private Cases() {}

    static JsonNode of(String name) {
        for (Path at = Path.of("").toAbsolutePath(); at != null; at = at.getParent()) {
            for (Path file : new Path[] {at.resolve("cases.json"), at.resolve("clients/cases.json")}) {
                if (Files.isRegularFile(file)) {
                    try {
                        return Json.parse(Files.readAllBytes(file)).path(name);
                    } catch (IOException error) {
                        throw new UncheckedIOException(error);
                    }
                }
            }
        }
        throw new IllegalStateException("no folder above has clients/cases.json");
    }

    static JsonNode json(String text) {
        try {
            return Json.parse(text.getBytes(java.nio.charset.StandardCharsets.UTF_8));
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    static String text(JsonNode data) {
        return new String(Json.bytes(data), java.nio.charset.StandardCharsets.UTF_8);
    }

    /** A text of JSON by which documents with the same numbers, texts and members are equal. */
    static String plain(JsonNode data) {
        return text(data).replaceAll("(?<=[0-9.])[eE]\\+?(?=-?[0-9])", "e");
    }
}
