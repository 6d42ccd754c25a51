package io.github.concordconfig.client;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.nio.file.attribute.FileAttribute;
import java.nio.file.attribute.PosixFileAttributes;
import java.nio.file.attribute.PosixFilePermission;
import java.nio.file.attribute.PosixFilePermissions;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.List;
import java.util.Set;

/**
 * The last-known-good file: what a cache had, for a start without nodes.
 *
 * <pre>
 * {"concord_java_cache": 1, "scope": …, "revision": …, "confirmed_at": …, "configs": […], …}
 * SHA-256 of the line before
 * </pre>
 *
 * <p><b>Invariants:</b> the file is replaced as a whole or not at all. Only its owner may read it. A file that is damaged,
 * written by somebody else or of another scope is not used, and not deleted.
 */
final class LastKnownFile {
    private static final String FORMAT = "concord_java_cache";
    private static final long BYTES_MAX = 1L << 30;

    private LastKnownFile() {}

    /** Why a file is not used. */
    static final class UnusableException extends IOException {
        UnusableException(String message) {
            super(message);
        }
    }

    static void save(Path path, ObjectNode content) throws IOException {
        ObjectNode all = Json.object().put(FORMAT, 1);
        all.setAll(content);
        byte[] line = Json.bytes(all);
        ByteArrayOutputStream text = new ByteArrayOutputStream(line.length + 80);
        text.writeBytes(line);
        text.writeBytes(("\n" + checksum(line) + "\n").getBytes(StandardCharsets.US_ASCII));
        Path folder = path.toAbsolutePath().getParent();
        Path temporary = Files.createTempFile(folder, "." + path.getFileName() + ".", "", ownersOnly(folder));
        try {
            try (FileChannel file = FileChannel.open(temporary, StandardOpenOption.WRITE)) {
                for (ByteBuffer left = ByteBuffer.wrap(text.toByteArray()); left.hasRemaining(); ) {
                    file.write(left);
                }
                file.force(true);
            }
            Files.move(temporary, path, StandardCopyOption.ATOMIC_MOVE, StandardCopyOption.REPLACE_EXISTING);
        } finally {
            Files.deleteIfExists(temporary);
        }
        if (isPosix(folder)) {
            try (FileChannel opened = FileChannel.open(folder, StandardOpenOption.READ)) {
                opened.force(true);
            }
        }
    }

    private static FileAttribute<?>[] ownersOnly(Path folder) {
        return isPosix(folder)
                ? new FileAttribute<?>[] {PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rw-------"))}
                : new FileAttribute<?>[0];
    }

    private static boolean isPosix(Path path) {
        return path.getFileSystem().supportedFileAttributeViews().contains("posix");
    }

    /** The content of a file, or null if there is no file. */
    static JsonNode load(Path path, JsonNode scope) throws IOException {
        byte[] text;
        try {
            checkOwner(path);
            if (Files.size(path) > BYTES_MAX) {
                throw new UnusableException("it is longer than " + BYTES_MAX + " bytes");
            }
            text = Files.readAllBytes(path);
        } catch (NoSuchFileException error) {
            return null;
        }
        int end = 0;
        while (end < text.length && text[end] != '\n') {
            end++;
        }
        byte[] line = Arrays.copyOf(text, end);
        String rest = new String(text, end, text.length - end, StandardCharsets.US_ASCII).strip();
        if (!checksum(line).equals(rest)) {
            throw new UnusableException("its checksum is wrong");
        }
        JsonNode content = Json.parse(line);
        if (content.path(FORMAT).asInt() != 1) {
            throw new UnusableException("it has another format");
        }
        if (!scope.equals(content.path("scope"))) {
            throw new UnusableException("it is of a cache of other definitions or filters, or of another environment");
        }
        return content;
    }

    private static void checkOwner(Path path) throws IOException {
        if (!isPosix(path)) {
            return;
        }
        PosixFileAttributes status = Files.readAttributes(path, PosixFileAttributes.class);
        if (!status.isRegularFile()) {
            throw new UnusableException("it is no regular file");
        }
        if (!List.of(ownUser(), 0).contains(Files.getAttribute(path, "unix:uid"))) {
            throw new UnusableException("it belongs to another user");
        }
        Set<PosixFilePermission> permissions = status.permissions();
        if (permissions.contains(PosixFilePermission.GROUP_WRITE) || permissions.contains(PosixFilePermission.OTHERS_WRITE)) {
            throw new UnusableException("others may write it");
        }
    }

    /** The user of this process. Java does not tell it; a file that the process makes does. */
    private static Object ownUser() throws IOException {
        Path own = Path.of("/proc/self");
        if (Files.exists(own)) {
            return Files.getAttribute(own, "unix:uid");
        }
        Path made = Files.createTempFile(null, null);
        try {
            return Files.getAttribute(made, "unix:uid");
        } finally {
            Files.delete(made);
        }
    }

    private static String checksum(byte[] line) {
        try {
            return HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(line));
        } catch (NoSuchAlgorithmException error) {
            throw new IllegalStateException("every platform of Java has SHA-256", error);
        }
    }
}
