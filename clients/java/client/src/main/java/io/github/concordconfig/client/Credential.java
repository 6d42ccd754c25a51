package io.github.concordconfig.client;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.BasicFileAttributes;
import java.util.List;

/** The access key: given, or in a file that is read again when it changes, so that a key is rotated without a restart. */
final class Credential {
    private final Path file;
    private String key;
    private List<Object> seen;

    Credential(String key, Path file) {
        if ((key == null) == (file == null)) {
            throw new IllegalArgumentException("give either a key or a file that holds it");
        }
        this.file = file;
        this.key = key == null ? null : valid(key);
        key();
    }

    synchronized String key() {
        if (file == null) {
            return key;
        }
        try {
            BasicFileAttributes status = Files.readAttributes(file, BasicFileAttributes.class);
            List<Object> now = List.of(status.lastModifiedTime(), status.size(), String.valueOf(status.fileKey()));
            if (!now.equals(seen)) {
                // The file of a node may have two keys while the key is changed: the first one is the new one.
                String[] keys = Files.readString(file, StandardCharsets.US_ASCII).strip().split("\\s+");
                key = valid(keys[0]);
                seen = now;
            }
        } catch (IOException error) {
            // A file that is being replaced changes nothing.
            if (key == null) {
                throw new UncheckedIOException(error);
            }
        } catch (IllegalArgumentException error) {
            if (key == null) {
                throw error;
            }
        }
        return key;
    }

    private static String valid(String text) {
        String key = text.strip();
        if (key.isEmpty() || key.chars().anyMatch(c -> c < 33 || c > 126)) {
            // The text of the key is not shown.
            throw new IllegalArgumentException("the key is empty, or holds characters that no key has");
        }
        return key;
    }

    @Override
    public String toString() {
        return "<key of " + (file == null ? "the program" : file) + ">";
    }
}
