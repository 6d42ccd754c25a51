package io.github.concordconfig.client;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.FilterInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.InterruptedIOException;
import java.net.InetAddress;
import java.net.ProtocolException;
import java.net.Socket;
import java.net.SocketTimeoutException;
import java.net.URI;
import java.net.UnknownHostException;
import java.nio.ByteBuffer;
import java.nio.channels.SocketChannel;
import java.nio.charset.CodingErrorAction;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.zip.GZIPInputStream;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLHandshakeException;
import javax.net.ssl.SSLSocket;
import org.apache.hc.client5.http.ClientProtocolException;
import org.apache.hc.client5.http.SystemDefaultDnsResolver;
import org.apache.hc.client5.http.classic.methods.HttpUriRequestBase;
import org.apache.hc.client5.http.config.ConnectionConfig;
import org.apache.hc.client5.http.config.RequestConfig;
import org.apache.hc.client5.http.impl.DefaultSchemePortResolver;
import org.apache.hc.client5.http.impl.classic.CloseableHttpClient;
import org.apache.hc.client5.http.impl.classic.HttpClients;
import org.apache.hc.client5.http.impl.io.DefaultHttpClientConnectionOperator;
import org.apache.hc.client5.http.impl.io.PoolingHttpClientConnectionManager;
import org.apache.hc.client5.http.impl.routing.DefaultRoutePlanner;
import org.apache.hc.client5.http.io.ManagedHttpClientConnection;
import org.apache.hc.client5.http.protocol.HttpClientContext;
import org.apache.hc.client5.http.ssl.DefaultClientTlsStrategy;
import org.apache.hc.client5.http.ssl.HostnameVerificationPolicy;
import org.apache.hc.client5.http.ssl.TlsSocketStrategy;
import org.apache.hc.core5.http.ClassicHttpRequest;
import org.apache.hc.core5.http.ClassicHttpResponse;
import org.apache.hc.core5.http.Header;
import org.apache.hc.core5.http.HttpEntity;
import org.apache.hc.core5.http.HttpException;
import org.apache.hc.core5.http.HttpHost;
import org.apache.hc.core5.http.MalformedChunkCodingException;
import org.apache.hc.core5.http.config.Http1Config;
import org.apache.hc.core5.http.config.RegistryBuilder;
import org.apache.hc.core5.http.impl.io.DefaultBHttpClientConnection;
import org.apache.hc.core5.http.impl.io.HttpRequestExecutor;
import org.apache.hc.core5.http.impl.io.SocketHolder;
import org.apache.hc.core5.http.io.HttpClientConnection;
import org.apache.hc.core5.http.io.HttpResponseInformationCallback;
import org.apache.hc.core5.http.io.entity.ByteArrayEntity;
import org.apache.hc.core5.http.protocol.HttpContext;
import org.apache.hc.core5.io.CloseMode;
import org.apache.hc.core5.pool.PoolConcurrencyPolicy;
import org.apache.hc.core5.pool.PoolReusePolicy;
import org.apache.hc.core5.util.TimeValue;
import org.apache.hc.core5.util.Timeout;

/**
 * HTTP/1.1 by Apache HttpClient, without what that does by itself: it sends nothing again, follows no redirect, and uses no
 * cookies and no proxy of the process environment.
 *
 * <p>{@code java.net.http} can't hold the promises of this client: it sends a GET again by itself, it writes {@code ?} for
 * each byte of a header that is no ASCII, and it does not tell whether a request was sent.
 *
 * <p><b>Invariant:</b> a request is sent at most once by {@link #send}. A failure says that the node can't have got it only
 * if not a byte was written, or if the node rejected the TLS handshake.
 */
final class HttpWire implements Wire {
    /** How long an idle connection is kept: less than a node keeps it, so that no request meets its end. */
    private static final TimeValue IDLE_MAX = TimeValue.ofSeconds(20);
    private static final String OUTGOING = "concord.outgoing";
    private static final int RESOLVERS_MAX = 4, WAITING_MAX = 1024;
    private static final Http1Config LIMITS =
            Http1Config.custom().setMaxLineLength(1 << 16).setMaxHeaderCount(128).setBufferSize(1 << 14).build();
    /** It does not pass: a connection that is probed does not wait. */
    private static final Timeout INSTANT = Timeout.ofMilliseconds(1);

    private final Credential credential;
    private final long connectTimeout, bodyBytesMax;
    private final PoolingHttpClientConnectionManager kept, once;
    private final CloseableHttpClient keeping, ending;
    private final ScheduledThreadPoolExecutor watchdog = new ScheduledThreadPoolExecutor(1, named("concord-deadlines"));
    private final ThreadPoolExecutor resolver = new ThreadPoolExecutor(
            RESOLVERS_MAX, RESOLVERS_MAX, 1, TimeUnit.SECONDS, new LinkedBlockingQueue<>(WAITING_MAX), named("concord-names"));
    private final AtomicBoolean willSweep = new AtomicBoolean();

    HttpWire(Credential credential, SSLContext tls, long connectTimeout, long bodyBytesMax) {
        this.credential = credential;
        this.connectTimeout = connectTimeout;
        this.bodyBytesMax = bodyBytesMax;
        kept = connections(tls);
        once = connections(tls);
        keeping = client(kept, true);
        ending = client(once, false);
        watchdog.setRemoveOnCancelPolicy(true);
        // After the end, a limit is not needed: nothing is open.
        watchdog.setRejectedExecutionHandler(new ThreadPoolExecutor.DiscardPolicy());
        watchdog.setKeepAliveTime(IDLE_MAX.toSeconds(), TimeUnit.SECONDS);
        watchdog.allowCoreThreadTimeOut(true);
        resolver.allowCoreThreadTimeOut(true);
    }

    private static ThreadFactory named(String name) {
        return task -> {
            Thread thread = new Thread(task, name);
            thread.setDaemon(true);
            return thread;
        };
    }

    private PoolingHttpClientConnectionManager connections(SSLContext tls) {
        RegistryBuilder<TlsSocketStrategy> strategies = RegistryBuilder.create();
        if (tls != null) {
            strategies.register("https", new DefaultClientTlsStrategy(tls, HostnameVerificationPolicy.BUILTIN, null));
        }
        // A read of the socket of a channel ends by an interrupt; one of another socket does not.
        var operator = new DefaultHttpClientConnectionOperator(proxy -> SocketChannel.open().socket(),
                DefaultSchemePortResolver.INSTANCE, new Resolver(), strategies.build());
        var made = new PoolingHttpClientConnectionManager(
                operator, PoolConcurrencyPolicy.LAX, PoolReusePolicy.LIFO, null, socket -> new Connection());
        made.setMaxTotal(Integer.MAX_VALUE);
        made.setDefaultMaxPerRoute(Integer.MAX_VALUE);
        made.setDefaultConnectionConfig(ConnectionConfig.custom().setValidateAfterInactivity(TimeValue.ZERO_MILLISECONDS)
                .setConnectTimeout(Timeout.of(connectTimeout, TimeUnit.NANOSECONDS)).build());
        return made;
    }

    private static CloseableHttpClient client(PoolingHttpClientConnectionManager connections, boolean isKeeping) {
        // The library sends a copy of a request, by which a connection would not know it.
        HttpRequestExecutor executor = new HttpRequestExecutor() {
            @Override
            public ClassicHttpResponse execute(ClassicHttpRequest request, HttpClientConnection connection,
                    HttpResponseInformationCallback informed, HttpContext context) throws IOException, HttpException {
                ((Connection) connection).outgoing = (Outgoing) context.getAttribute(OUTGOING);
                return super.execute(request, connection, informed, context);
            }
        };
        var builder = HttpClients.custom().setConnectionManager(connections).setUserAgent("concord-client-java")
                .setRequestExecutor(executor)
                .setRoutePlanner(new DefaultRoutePlanner(DefaultSchemePortResolver.INSTANCE))
                .setKeepAliveStrategy((response, context) -> IDLE_MAX)
                .disableAutomaticRetries().disableRedirectHandling().disableCookieManagement().disableAuthCaching()
                .disableContentCompression().disableConnectionState();
        return isKeeping ? builder.build() : builder.setConnectionReuseStrategy((request, response, context) -> false).build();
    }

    @Override
    public Reply send(String node, Request request, long silence, long timeout, Scope scope) {
        Outgoing outgoing = null;
        try {
            outgoing = new Outgoing(node, request, silence, timeout);
            if (!scope.attach(outgoing)) {
                throw new IOException("the client was closed");
            }
            // What may be sent only once is not sent on a connection that may have ended.
            CloseableHttpClient client = request.isWrite() && request.idempotencyKey() == null ? ending : keeping;
            HttpClientContext context = HttpClientContext.create();
            context.setAttribute(OUTGOING, outgoing);
            ClassicHttpResponse response = client.executeOpen(outgoing.host, outgoing, context);
            try {
                return received(request, response, outgoing);
            } finally {
                // To close what was not read to its end would read the rest.
                outgoing.cancel();
                Scope.end(response);
            }
        } catch (IOException | RuntimeException error) {
            return outgoing == null ? new Failed(text(error), false) : outgoing.failed(error);
        } finally {
            if (outgoing != null) {
                scope.detach(outgoing);
                outgoing.unlimit();
            }
            sweepLater();
        }
    }

    private static String text(Exception error) {
        String name = error.getClass().getSimpleName();
        // They quote what they can't read, which may be data.
        boolean mayQuote = error instanceof ClientProtocolException || error instanceof MalformedChunkCodingException;
        return mayQuote ? name + ": the response is no HTTP/1.1"
                : error.getMessage() == null ? name : name + ": " + error.getMessage();
    }

    private Received received(Request request, ClassicHttpResponse response, Outgoing outgoing) throws IOException {
        Map<String, String> headers = new HashMap<>();
        for (Header each : response.getHeaders()) {
            String value = each.getValue() == null ? "" : each.getValue();
            headers.merge(each.getName().toLowerCase(Locale.ROOT), value, (one, other) -> one + ", " + other);
        }
        boolean isStream = request.sink() != null && response.getCode() < 300;
        HttpEntity entity = response.getEntity();
        byte[] body = new byte[0];
        if (isStream && entity != null) {
            outgoing.unlimit();
            request.sink().begin();
            feed(entity, request.sink());
        } else if (entity != null) {
            body = bounded(entity.getContent());
        }
        if (body.length > 0 && "gzip".equalsIgnoreCase(headers.get("content-encoding"))) {
            body = bounded(new GZIPInputStream(new ByteArrayInputStream(body), 1 << 14));
        }
        return new Received(response.getCode(), Map.copyOf(headers), body);
    }

    private static void feed(HttpEntity entity, Request.Sink sink) throws IOException {
        byte[] part = new byte[1 << 14];
        InputStream in = entity.getContent();
        while (true) {
            int count;
            try {
                count = in.read(part);
            } catch (IOException error) {
                // A sink knows whether it has all.
                return;
            }
            if (count < 0 || sink.feed(part, count)) {
                return;
            }
        }
    }

    private byte[] bounded(InputStream in) throws IOException {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        byte[] part = new byte[1 << 14];
        for (int count = in.read(part); count >= 0; count = in.read(part)) {
            if (bytes.size() + (long) count > bodyBytesMax) {
                throw new ProtocolException("the response is longer than " + bodyBytesMax + " bytes");
            }
            bytes.write(part, 0, count);
        }
        return bytes.toByteArray();
    }

    /** Closes idle connections once their time is over, without a thread that lasts. */
    private void sweepLater() {
        if (willSweep.compareAndSet(false, true)) {
            schedule(() -> {
                willSweep.set(false);
                kept.closeExpired();
                if (kept.getTotalStats().getAvailable() > 0) {
                    sweepLater();
                }
            }, IDLE_MAX.toNanoseconds());
        }
    }

    private ScheduledFuture<?> schedule(Runnable task, long nanos) {
        return watchdog.schedule(task, nanos, TimeUnit.NANOSECONDS);
    }

    @Override
    public void close() {
        keeping.close(CloseMode.IMMEDIATE);
        ending.close(CloseMode.IMMEDIATE);
        watchdog.shutdownNow();
        resolver.shutdownNow();
    }

    /** One copy of a request, with its limits. */
    private final class Outgoing extends HttpUriRequestBase implements AutoCloseable {
        private static final long serialVersionUID = 1;

        private final transient HttpHost host;
        private final long deadline;
        private transient ScheduledFuture<?> limit;
        private boolean isFirst = true;
        private volatile boolean isSent, isLate;

        Outgoing(String node, Request request, long silence, long timeout) throws IOException {
            super(request.method(), URI.create(node));
            URI uri = URI.create(node);
            if (request.target().chars().anyMatch(c -> c < 33 || c > 126)) {
                throw new ProtocolException("the path has characters that no request has");
            }
            this.host = new HttpHost(uri.getScheme(), uri.getHost().replaceAll("^\\[|\\]$", ""), uri.getPort());
            this.deadline = System.nanoTime() + timeout;
            setPath((uri.getRawPath() == null ? "" : uri.getRawPath()) + request.target());
            setConfig(RequestConfig.custom().setResponseTimeout(milliseconds(silence)).setAuthenticationEnabled(false)
                    .setProtocolUpgradeEnabled(false).setExpectContinueEnabled(false).build());
            request.headers().forEach(this::setHeader);
            setHeader("authorization", "Bearer " + credential.key());
            if (request.sink() == null) {
                setHeader("accept-encoding", "gzip");
            }
            if (request.body() != null) {
                setEntity(new ByteArrayEntity(request.body(), null));
            } else if (request.method().equals("POST") || request.method().equals("PUT")) {
                setEntity(new ByteArrayEntity(new byte[0], null));
            }
            // To connect, and to take the request: a write to a socket has no timeout by itself.
            limit(Math.min(silence, timeout));
        }

        private void limit(long nanos) {
            unlimit();
            limit = schedule(() -> {
                isLate = true;
                cancel();
            }, nanos);
        }

        void unlimit() {
            if (limit != null) {
                limit.cancel(false);
            }
        }

        /** The connection is about to write it. */
        void sending(boolean isFirst) {
            this.isFirst = isFirst;
            isSent = true;
        }

        /** The connection has written it. */
        void sent() {
            limit(deadline - System.nanoTime());
        }

        /**
         * Why there is no response. With TLS 1.3, a node rejects the certificate of a client after that has sent its first
         * request, which the node then does not read.
         */
        Failed failed(Exception error) {
            boolean isAlert = String.valueOf(error.getMessage()).startsWith("Received fatal alert");
            boolean isTurnedAway = isFirst && isAlert && error instanceof SSLHandshakeException;
            String late = isSent ? "no whole response in time" : "no connection in time";
            return new Failed(isLate ? late : text(error), isSent && !isTurnedAway);
        }

        @Override
        public void close() {
            cancel();
        }
    }

    /** A connection that logs nothing: that of the library writes keys and data to the log at the level DEBUG. */
    private static final class Connection extends DefaultBHttpClientConnection implements ManagedHttpClientConnection {
        private Outgoing outgoing;
        private volatile Socket base;
        private volatile boolean isEnded;
        private boolean isProbing;

        private Connection() {
            // A response with broken bytes in a header is still a response.
            super(LIMITS,
                    StandardCharsets.UTF_8.newDecoder().onMalformedInput(CodingErrorAction.REPLACE),
                    StandardCharsets.UTF_8.newEncoder());
        }

        @Override
        protected void bind(SocketHolder holder) throws IOException {
            base = holder.getBaseSocket() == null ? holder.getSocket() : holder.getBaseSocket();
            if (isEnded) {
                base.close();
                throw new InterruptedIOException("the request was given up");
            }
            super.bind(holder);
        }

        @Override
        public void bind(Socket socket) throws IOException {
            bind(new Holder(socket));
        }

        @Override
        public void bind(SSLSocket secured, Socket socket) throws IOException {
            bind(new Holder(secured, socket));
        }

        @Override
        public void sendRequestHeader(ClassicHttpRequest request) throws HttpException, IOException {
            outgoing.sending(getEndpointDetails() == null || getEndpointDetails().getRequestCount() == 0);
            super.sendRequestHeader(request);
        }

        @Override
        public ClassicHttpResponse receiveResponseHeader() throws HttpException, IOException {
            outgoing.sent();
            return super.receiveResponseHeader();
        }

        /**
         * Whether the node has ended it, or has sent what would be taken for the next response. That of the library waits for
         * a millisecond, and takes such bytes for a sign of life.
         */
        @Override
        public boolean isStale() throws IOException {
            SocketChannel channel = base == null ? null : base.getChannel();
            if (channel == null || !isOpen()) {
                return true;
            }
            isProbing = true;
            try {
                if (isDataAvailable(INSTANT)) {
                    return true;
                }
            } finally {
                isProbing = false;
            }
            channel.configureBlocking(false);
            int count = channel.read(ByteBuffer.allocate(1));
            channel.configureBlocking(true);
            return count != 0;
        }

        /** A socket that is not waited for while the connection is probed. */
        private final class Holder extends SocketHolder {
            private Holder(Socket socket) {
                super(socket);
            }

            private Holder(SSLSocket secured, Socket socket) {
                super(secured, socket);
            }

            @Override
            protected InputStream getInputStream(Socket socket) throws IOException {
                return new FilterInputStream(socket.getInputStream()) {
                    @Override
                    public int read(byte[] bytes, int offset, int length) throws IOException {
                        if (isProbing && available() == 0) {
                            throw new SocketTimeoutException();
                        }
                        return super.read(bytes, offset, length);
                    }
                };
            }
        }

        /** Closes the channel first: to close a TLS socket, a thread would wait for one that writes. */
        @Override
        public void close(CloseMode mode) {
            isEnded = true;
            if (mode == CloseMode.IMMEDIATE && base != null) {
                Scope.end(base);
            }
            super.close(mode);
        }

        @Override
        public void close() throws IOException {
            isEnded = true;
            super.close();
        }

        @Override
        public Socket getSocket() {
            SocketHolder holder = getSocketHolder();
            return holder == null ? null : holder.getSocket();
        }

        @Override
        public void activate() {}

        @Override
        public void passivate() {}
    }

    /** Finds addresses. A name server that says nothing takes no more than the time for a connection. */
    private final class Resolver extends SystemDefaultDnsResolver {
        @Override
        public InetAddress[] resolve(String host) throws UnknownHostException {
            Future<InetAddress[]> found = resolver.submit(() -> InetAddress.getAllByName(host));
            try {
                return found.get(connectTimeout, TimeUnit.NANOSECONDS);
            } catch (ExecutionException error) {
                throw new UnknownHostException(host);
            } catch (TimeoutException error) {
                throw new UnknownHostException("no address of " + host + " in time");
            } catch (InterruptedException error) {
                Thread.currentThread().interrupt();
                throw new UnknownHostException("the thread was interrupted");
            } finally {
                found.cancel(true);
            }
        }
    }

    private static Timeout milliseconds(long nanos) {
        return Timeout.ofMilliseconds(Math.max(1, Math.min(Integer.MAX_VALUE, TimeUnit.NANOSECONDS.toMillis(nanos))));
    }
}
