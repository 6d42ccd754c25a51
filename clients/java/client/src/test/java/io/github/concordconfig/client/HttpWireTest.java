package io.github.concordconfig.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.security.KeyStore;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.zip.GZIPOutputStream;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLServerSocket;
import javax.net.ssl.TrustManagerFactory;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** HTTP/1.1 with a node that plays bytes. */
@Timeout(30)
class HttpWireTest {
    private static final String OK = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";

    private final List<String> got = Collections.synchronizedList(new ArrayList<>());
    private final List<Socket> sockets = Collections.synchronizedList(new ArrayList<>());
    private final Scope scope = new Scope();
    private HttpWire wire;
    private ServerSocket server;
    /** What each request gets; the connection is closed after what is not a whole response. Null: silence. */
    private volatile byte[] play = bytes(OK);
    private volatile boolean closes;

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.ISO_8859_1);
    }

    @BeforeEach
    void start() throws IOException {
        wire = new HttpWire(new Credential("the-key", null), null, Clock.SECOND, 1 << 16);
        server = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
        Thread thread = new Thread(() -> {
            try {
                while (true) {
                    Socket socket = server.accept();
                    sockets.add(socket);
                    Thread each = new Thread(() -> serve(socket));
                    each.setDaemon(true);
                    each.start();
                }
            } catch (IOException error) {
                // The test is over.
            }
        });
        thread.setDaemon(true);
        thread.start();
    }

    private void serve(Socket socket) {
        try (socket) {
            InputStream in = socket.getInputStream();
            while (true) {
                ByteArrayOutputStream head = new ByteArrayOutputStream();
                while (!head.toString(StandardCharsets.UTF_8).endsWith("\r\n\r\n")) {
                    int next = in.read();
                    if (next < 0) {
                        return;
                    }
                    head.write(next);
                }
                String text = head.toString(StandardCharsets.UTF_8);
                int length = text.toLowerCase(java.util.Locale.ROOT).contains("content-length: ") ? Integer.parseInt(text.replaceAll("(?si).*content-length: (\\d+).*", "$1")) : 0;
                got.add(text + new String(in.readNBytes(length), StandardCharsets.UTF_8));
                byte[] now = play;
                boolean ends = closes;
                if (now == null) {
                    in.read();
                    return;
                }
                socket.getOutputStream().write(now);
                if (ends) {
                    return;
                }
            }
        } catch (IOException error) {
            // The client has left.
        }
    }

    @AfterEach
    void end() throws IOException {
        wire.close();
        server.close();
        for (Socket each : sockets) {
            each.close();
        }
    }

    private Wire.Reply send(Request request, double seconds) {
        long nanos = Clock.nanos(seconds);
        return wire.send("http://127.0.0.1:" + server.getLocalPort() + "/prefix", request, nanos, nanos * 4, scope);
    }

    private Wire.Reply get() {
        return send(Request.read("/x"), 5);
    }

    private String body() {
        return new String(assertInstanceOf(Wire.Received.class, get()).body(), StandardCharsets.UTF_8);
    }

    private Wire.Failed failed() {
        return assertInstanceOf(Wire.Failed.class, get());
    }

    @Test
    void a_request_has_its_headers_in_utf_8_and_a_connection_is_kept() {
        Request write = Request.post("/x?a=%20", bytes("{}")).with("x-change-reason", "grün € 😀");
        assertInstanceOf(Wire.Received.class, send(write, 5));
        assertEquals("{}", body());
        assertTrue(got.get(0).startsWith("POST /prefix/x?a=%20 HTTP/1.1\r\n"), got.get(0));
        assertTrue(got.get(0).contains("\r\nHost: 127.0.0.1:" + server.getLocalPort() + "\r\n"), got.get(0));
        assertTrue(got.get(0).contains("\r\nx-change-reason: grün € 😀\r\n") && got.get(0).contains("authorization: Bearer the-key\r\n"));
        assertTrue(got.get(0).endsWith("\r\n\r\n{}"));
        assertEquals(1, sockets.size());
    }

    @Test
    void bodies_come_in_chunks_zipped_after_an_interim_response_and_until_the_end() throws IOException {
        play = bytes("HTTP/1.1 103 Early\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x=1\r\n{\"\r\n4\r\na\":1\r\n1\r\n}\r\n0\r\nt: 1\r\n\r\n");
        assertEquals("{\"a\":1}", body());
        assertEquals("{\"a\":1}", body());
        ByteArrayOutputStream zipped = new ByteArrayOutputStream();
        try (GZIPOutputStream out = new GZIPOutputStream(zipped)) {
            out.write(bytes("{\"b\":2}"));
        }
        ByteArrayOutputStream all = new ByteArrayOutputStream();
        all.writeBytes(bytes("HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: " + zipped.size() + "\r\n\r\n"));
        all.writeBytes(zipped.toByteArray());
        play = all.toByteArray();
        assertEquals("{\"b\":2}", body());
        assertEquals(1, sockets.size());
        closes = true;
        play = bytes("HTTP/1.0 200 OK\r\n\r\n{\"c\":3}");
        assertEquals("{\"c\":3}", body());
    }

    @Test
    void what_is_no_whole_response_may_be_applied_and_is_not_sent_again() {
        closes = true;
        for (String text : List.of("", "\0\u00ffno http\r\n\r\n", "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{}", "HTTP/1.1 200 OK\r\ncont",
                "HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n", "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n9\r\n{}", "HTTP/1.1 200 OK\r\n : x\r\n\r\n",
                "HTTP/1.1 200 OK\r\ncontent-length: 70000\r\n\r\n" + "x".repeat(70_000), "HTTP/1.1 200 OK\r\nx: " + "x".repeat(70_000))) {
            play = bytes(text);
            got.clear();
            assertTrue(failed().mayBeApplied(), text.substring(0, Math.min(60, text.length())));
            assertEquals(1, got.size());
        }
    }

    @Test
    void an_idle_connection_that_the_node_has_ended_is_not_used() throws Exception {
        assertEquals("{}", body());
        sockets.get(0).close();
        Thread.sleep(50);
        assertEquals("{}", body());
        assertEquals(2, sockets.size());
    }

    @Test
    void a_node_that_is_not_there_got_nothing() throws IOException {
        server.close();
        assertFalse(failed().mayBeApplied());
        assertFalse(((Wire.Failed) wire.send("http://no.such.host.invalid", Request.read("/"), Clock.SECOND, Clock.SECOND, scope)).mayBeApplied());
    }

    @Test
    void silence_and_a_slow_response_end_in_time() {
        play = null;
        long began = System.nanoTime();
        Wire.Failed failed = assertInstanceOf(Wire.Failed.class, send(Request.read("/x"), 0.2));
        assertTrue(failed.mayBeApplied());
        assertTrue(Duration.ofNanos(System.nanoTime() - began).toMillis() < 2000);
        // A node that does not even take what it is sent.
        Request large = Request.post("/x", new byte[32 << 20]);
        assertInstanceOf(Wire.Failed.class, send(large, 0.3));
        assertTrue(Duration.ofNanos(System.nanoTime() - began).toMillis() < 5000);
    }

    @Test
    void an_interrupt_and_a_closed_scope_end_a_request_at_once() throws Exception {
        play = null;
        Thread caller = Thread.currentThread();
        for (Runnable end : List.<Runnable>of(caller::interrupt, scope::close)) {
            long began = System.nanoTime();
            Thread other = new Thread(() -> {
                scope.pause(Clock.SECOND / 5);
                end.run();
            });
            other.start();
            assertTrue(failed().mayBeApplied());
            other.join(1);
            assertTrue(Duration.ofNanos(System.nanoTime() - began).toMillis() < 3000);
            Thread.interrupted();
        }
    }

    @Test
    void a_client_works_over_it() {
        String data = "{\"data\":{\"config_key\":\"k\",\"data\":{\"v\":1e400,\"w\":1.50}}}";
        play = bytes("HTTP/1.1 200 OK\r\netag: \"7\"\r\ncontent-length: " + data.length() + "\r\n\r\n" + data);
        String url = "http://127.0.0.1:" + server.getLocalPort();
        try (ConcordClient client = ConcordClient.builder().nodes(url).key("k").reader("h").build()) {
            Config found = client.get("d", "k");
            assertEquals("{\"v\":1e400,\"w\":1.50} 7", Cases.plain(found.data()) + " " + found.revision());
            play = bytes("HTTP/1.1 307 Moved\r\nlocation: http://evil/\r\ncontent-length: 0\r\n\r\n");
            assertThrows(UnavailableException.class, () -> client.get("d", "k", ReadOption.timeout(Duration.ofMillis(100))));
        }
    }

    @Test
    void a_connection_with_bytes_that_nobody_asked_for_is_not_used() throws Exception {
        // Otherwise each response would be that to the request before.
        play = bytes(OK + "HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\n{\"a\":0}");
        assertEquals("{}", body());
        assertEquals("{}", body());
        play = bytes(OK);
        assertEquals("{}", body());
        sockets.get(2).getOutputStream().write(bytes("HTTP/1.1 408 Timeout\r\ncontent-length: 0\r\n\r\n"));
        Thread.sleep(50);
        assertEquals("{}", body());
        assertEquals(4, sockets.size());
    }

    @Test
    void a_write_that_may_be_sent_only_once_has_a_connection_of_its_own() {
        Request once = new Request("POST", "/x", java.util.Map.of(), null, true, null, null, false);
        assertEquals("{}", body());
        assertInstanceOf(Wire.Received.class, send(once, 5));
        assertInstanceOf(Wire.Received.class, send(once, 5));
        assertEquals(3, sockets.size());
        assertTrue(got.get(1).contains("\r\nContent-Length: 0\r\n"), got.get(1));
    }

    @Test
    void a_response_that_comes_in_drops_ends_in_time() throws Exception {
        play = bytes("HTTP/1.1 200 OK\r\n");
        Thread drops = new Thread(() -> {
            try {
                for (int n = 0; n < 100; n++) {
                    Thread.sleep(20);
                    for (Socket each : List.copyOf(sockets)) {
                        each.getOutputStream().write('x');
                    }
                }
            } catch (IOException | InterruptedException error) {
                // The client has left.
            }
        });
        drops.start();
        long began = System.nanoTime();
        assertTrue(assertInstanceOf(Wire.Failed.class, send(Request.read("/x"), 0.1)).mayBeApplied());
        assertTrue(Duration.ofNanos(System.nanoTime() - began).toMillis() < 1500);
        drops.join();
    }

    @Test
    void a_zipped_response_is_bounded_after_unzipping() throws IOException {
        ByteArrayOutputStream zipped = new ByteArrayOutputStream();
        try (GZIPOutputStream out = new GZIPOutputStream(zipped)) {
            out.write(new byte[1 << 20]);
        }
        ByteArrayOutputStream all = new ByteArrayOutputStream();
        all.writeBytes(bytes("HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: " + zipped.size() + "\r\n\r\n"));
        all.writeBytes(zipped.toByteArray());
        play = all.toByteArray();
        assertTrue(failed().mayBeApplied());
    }

    @Test
    void a_stream_ends_when_its_sink_has_all_and_tells_where_it_begins() throws Exception {
        play = bytes("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n");
        List<String> fed = new ArrayList<>();
        Request.Sink sink = new Request.Sink() {
            @Override
            public void begin() {
                fed.add("begin");
            }

            @Override
            public boolean feed(byte[] part, int length) {
                fed.add(new String(part, 0, length, StandardCharsets.UTF_8));
                return true;
            }
        };
        long began = System.nanoTime();
        assertInstanceOf(Wire.Received.class, send(Request.read("/x").to(sink), 5));
        assertEquals(List.of("begin", "abc"), fed);
        assertTrue(Duration.ofNanos(System.nanoTime() - began).toMillis() < 2000);
        // What a sink throws is no response; the connection is not used again.
        Request.Sink broken = (part, length) -> {
            throw new IllegalStateException("no JSON");
        };
        assertTrue(assertInstanceOf(Wire.Failed.class, send(Request.read("/x").to(broken), 5)).text().contains("no JSON"));
        play = bytes(OK);
        assertEquals("{}", body());
        assertEquals(3, sockets.size());
    }

    @Test
    void after_close_nothing_is_sent_and_no_thread_is_left() throws Exception {
        play = null;
        Thread ends = new Thread(() -> {
            scope.pause(Clock.SECOND / 5);
            wire.close();
        });
        ends.start();
        assertTrue(failed().mayBeApplied());
        assertFalse(failed().mayBeApplied());
        ends.join();
        for (int n = 0; n < 200 && isAlive("concord-"); n++) {
            Thread.sleep(10);
        }
        assertFalse(isAlive("concord-") || isAlive("idle-connection"));
    }

    private static boolean isAlive(String name) {
        return Thread.getAllStackTraces().keySet().stream().anyMatch(each -> each.getName().startsWith(name));
    }

    @Test
    void an_error_quotes_no_data() {
        closes = true;
        for (String text : List.of("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\ns3cret\r\n", "HTTP/1.1 200 OK\r\ns3cret\r\n\r\n",
                "HTTP/1.1 200 OK\r\ncontent-length: s3cret\r\n\r\n", "s3cret\r\n\r\n", "HTTP/1.1 s3cret\r\n\r\n")) {
            play = bytes(text);
            Wire.Failed failed = failed();
            assertFalse(failed.text().contains("s3cret") || failed.text().contains("the-key"), failed.text());
            assertTrue(failed.mayBeApplied());
        }
    }

    @Test
    void a_proxy_of_the_process_is_not_used() {
        System.setProperty("http.proxyHost", "127.0.0.1");
        System.setProperty("http.proxyPort", "1");
        System.setProperty("http.nonProxyHosts", "");
        try (HttpWire other = new HttpWire(new Credential("k", null), null, Clock.SECOND, 1 << 16)) {
            wire.close();
            wire = other;
            assertEquals("{}", body());
        } finally {
            List.of("http.proxyHost", "http.proxyPort", "http.nonProxyHosts").forEach(System::clearProperty);
        }
    }

    // --- TLS ----------------------------------------------------------------------------------------------------------

    private static SSLContext identity(Path folder, String name, String address) throws Exception {
        Path file = folder.resolve(name);
        int code = new ProcessBuilder(System.getProperty("java.home") + "/bin/keytool", "-J-XX:TieredStopAtLevel=1", "-genkeypair",
                "-alias", "a", "-keyalg", "EC", "-dname", "CN=" + name, "-ext", "san=ip:" + address, "-storetype", "PKCS12",
                "-keystore", file.toString(), "-storepass", "password").redirectErrorStream(true).start().waitFor();
        assertEquals(0, code);
        KeyStore store = KeyStore.getInstance(file.toFile(), "password".toCharArray());
        KeyManagerFactory keys = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
        keys.init(store, "password".toCharArray());
        TrustManagerFactory trusted = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        KeyStore known = KeyStore.getInstance("PKCS12");
        known.load(null, null);
        known.setCertificateEntry("a", store.getCertificate("a"));
        trusted.init(known);
        SSLContext made = SSLContext.getInstance("TLS");
        made.init(keys.getKeyManagers(), trusted.getTrustManagers(), null);
        return made;
    }

    private Wire.Reply sendTls(HttpWire over, SSLServerSocket node) {
        return over.send("https://127.0.0.1:" + node.getLocalPort(), Request.post("/x", bytes("{}")), 5 * Clock.SECOND, 5 * Clock.SECOND, scope);
    }

    private SSLServerSocket tlsNode(SSLContext context, boolean needsCertificate) throws IOException {
        SSLServerSocket node = (SSLServerSocket) context.getServerSocketFactory().createServerSocket(0, 50, InetAddress.getLoopbackAddress());
        node.setNeedClientAuth(needsCertificate);
        Thread thread = new Thread(() -> {
            try {
                while (true) {
                    Socket socket = node.accept();
                    sockets.add(socket);
                    Thread each = new Thread(() -> serve(socket));
                    each.setDaemon(true);
                    each.start();
                }
            } catch (IOException error) {
                // The test is over.
            }
        });
        thread.setDaemon(true);
        thread.start();
        return node;
    }

    @Test
    void tls_is_checked_and_a_rejected_handshake_applies_nothing(@TempDir Path folder) throws Exception {
        SSLContext known = identity(folder, "known", "127.0.0.1"), other = identity(folder, "other", "127.0.0.1");
        SSLContext elsewhere = identity(folder, "elsewhere", "127.9.9.9");
        Credential key = new Credential("the-key", null);
        try (SSLServerSocket node = tlsNode(known, false); SSLServerSocket strict = tlsNode(known, true);
                SSLServerSocket misnamed = tlsNode(elsewhere, false);
                HttpWire trusting = new HttpWire(key, known, 2 * Clock.SECOND, 1 << 16);
                HttpWire distrusting = new HttpWire(key, other, 2 * Clock.SECOND, 1 << 16);
                HttpWire misled = new HttpWire(key, elsewhere, 2 * Clock.SECOND, 1 << 16)) {
            assertInstanceOf(Wire.Received.class, sendTls(trusting, node));
            assertInstanceOf(Wire.Received.class, sendTls(trusting, node));
            assertEquals(1, sockets.size());
            // The node ends an idle connection.
            sockets.get(0).close();
            Thread.sleep(50);
            assertInstanceOf(Wire.Received.class, sendTls(trusting, node));
            assertEquals(2, sockets.size());
            assertInstanceOf(Wire.Received.class, sendTls(trusting, strict));
            got.clear();
            for (Wire.Reply reply : List.of(sendTls(distrusting, node), sendTls(misled, misnamed), sendTls(distrusting, strict))) {
                assertFalse(assertInstanceOf(Wire.Failed.class, reply).mayBeApplied());
            }
            // A certificate of this client that the node rejects: with TLS 1.3, after the request was sent.
            SSLContext stranger = SSLContext.getInstance("TLS");
            TrustManagerFactory trusted = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
            KeyStore store = KeyStore.getInstance(folder.resolve("known").toFile(), "password".toCharArray());
            trusted.init(store);
            KeyStore roots = KeyStore.getInstance("PKCS12");
            roots.load(null, null);
            roots.setCertificateEntry("a", store.getCertificate("a"));
            trusted.init(roots);
            stranger.init(null, trusted.getTrustManagers(), null);
            try (HttpWire nameless = new HttpWire(key, stranger, 2 * Clock.SECOND, 1 << 16)) {
                Wire.Failed failed = assertInstanceOf(Wire.Failed.class, sendTls(nameless, strict));
                // If the node has closed before the request is written, its reason is lost, and the outcome is unknown.
                assertTrue(!failed.mayBeApplied() || !failed.text().contains("alert"), failed.text());
            }
            assertEquals(List.of(), got);
            // A node that says nothing, and one that does not even shake hands.
            play = null;
            long began = System.nanoTime();
            Thread caller = Thread.currentThread();
            new Thread(() -> {
                scope.pause(Clock.SECOND / 5);
                caller.interrupt();
            }).start();
            assertTrue(assertInstanceOf(Wire.Failed.class, sendTls(trusting, node)).mayBeApplied());
            assertTrue(Thread.interrupted());
            try (ServerSocket silent = new ServerSocket(0, 50, InetAddress.getLoopbackAddress())) {
                Wire.Reply reply = trusting.send("https://127.0.0.1:" + silent.getLocalPort(), Request.read("/x"), Clock.SECOND / 5, Clock.SECOND, scope);
                assertFalse(assertInstanceOf(Wire.Failed.class, reply).mayBeApplied());
            }
            assertTrue(Duration.ofNanos(System.nanoTime() - began).toMillis() < 4000);
        }
    }
}
