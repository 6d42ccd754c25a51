package io.github.concordconfig.testing;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import io.github.concordconfig.client.ConcordClient;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;

/**
 * A real cluster for tests: {@code concord demo} of the program that the variable {@code CONCORD_BIN} names. It ends with
 * {@link #close}, and with this process.
 */
public final class ConcordDemo implements AutoCloseable {
    private static final int STARTS_MAX = 5;
    private static final long END_SECONDS = 20;

    private final Process process;
    private final List<String> urls;
    private final String key;
    private final Path caFile;

    private ConcordDemo(Process process, JsonNode told) {
        this.process = process;
        List<String> found = new ArrayList<>();
        told.path("urls").forEach(each -> found.add(each.asText()));
        urls = List.copyOf(found);
        key = told.path("key").asText();
        caFile = told.path("ca_file").isTextual() ? Path.of(told.get("ca_file").asText()) : null;
    }

    /** Whether {@code CONCORD_BIN} names a program. */
    public static boolean isAvailable() {
        return System.getenv("CONCORD_BIN") != null;
    }

    /** Starts one node without data. */
    public static ConcordDemo start() {
        return start(1);
    }

    /** Starts nodes without data; options are those of {@code concord demo}, such as {@code --tls}. */
    public static ConcordDemo start(int nodes, String... options) {
        if (!isAvailable()) {
            throw new IllegalStateException("CONCORD_BIN names no program");
        }
        try {
            for (int attempt = 1; ; attempt++) {
                // Other tests look for ports at the same time.
                int port = ThreadLocalRandom.current().nextInt(20_000, 60_000);
                List<String> command = new ArrayList<>(List.of(System.getenv("CONCORD_BIN"), "demo", "--no-sample", "--nodes",
                        String.valueOf(nodes), "--output", "json", "--port", String.valueOf(port)));
                command.addAll(List.of(options));
                Process process = new ProcessBuilder(command).redirectError(ProcessBuilder.Redirect.INHERIT).start();
                BufferedReader out = process.inputReader(StandardCharsets.UTF_8);
                String line = out.readLine();
                if (line != null) {
                    return new ConcordDemo(process, new ObjectMapper().readTree(line));
                }
                process.destroy();
                if (attempt == STARTS_MAX) {
                    throw new IllegalStateException("`concord demo` does not start: it said why to stderr");
                }
            }
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    /** The URLs of the nodes. */
    public List<String> urls() {
        return urls;
    }

    /** The root key. */
    public String key() {
        return key;
    }

    /** A builder of clients of this cluster. */
    public ConcordClient.Builder client() {
        ConcordClient.Builder builder = ConcordClient.builder().nodes(urls).key(key);
        return caFile == null ? builder : builder.caFile(caFile);
    }

    @Override
    public void close() {
        boolean isInterrupted = false;
        try {
            // The demo ends with its stdin.
            process.getOutputStream().close();
            if (!process.waitFor(END_SECONDS, TimeUnit.SECONDS)) {
                process.destroyForcibly();
            }
        } catch (IOException error) {
            process.destroyForcibly();
        } catch (InterruptedException error) {
            isInterrupted = true;
            process.destroyForcibly();
        }
        if (isInterrupted) {
            Thread.currentThread().interrupt();
        }
    }
}
