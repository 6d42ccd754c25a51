package io.github.concordconfig.client;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.MissingNode;
import java.io.IOException;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.List;
import java.util.Set;
import java.util.concurrent.atomic.AtomicLong;

/**
 * Sends a request to one node after another until one decides it or the time is up.
 *
 * <p><b>Invariants:</b> a write is sent again only if no copy can have been applied, or if it has an idempotency key, by
 * which the cluster decides all its copies as one. Once a copy may have been applied, the result is success, a rejection
 * that the cluster has decided and stored, or {@link UnknownOutcomeException}.
 */
final class Calls {
    /**
     * How long after the first copy of unknown outcome was sent the request is sent again. A cluster stores what it decided for at least 45
     * seconds, and a node works on a request for at most 30.
     */
    static final long RESEND_WINDOW = 15 * Clock.SECOND;

    private static final long PAUSE_FIRST = Clock.SECOND / 20, PAUSE_MAX = 2 * Clock.SECOND;
    /** A later attempt with less time would end before a response, and the outcome would be unknown. */
    private static final long ATTEMPT_MIN = Clock.SECOND / 50;
    private static final int ATTEMPTS_SHOWN = 8;
    /** No call waits so long; a longer time is not a number of nanoseconds. */
    private static final double WAIT_MAX_SECONDS = 1e6;
    /** Rejections that the cluster stores for all copies of a request. */
    private static final Set<String> DECISIONS = Set.of("config_exists", "config_not_found", "definition_exists",
            "definition_not_empty", "definition_protected", "precondition_failed", "unique_taken");
    /** What a proxy can't say in place of a node, as nothing is applied by it. */
    private static final Set<Integer> CERTAIN = Set.of(401, 403, 404, 405, 413);

    final List<String> nodes;
    final Clock clock;
    final Environment environment;
    final Reader reader;
    final Scope scope;
    final long timeout;
    private final long attemptTimeout;
    private final Wire wire;
    /** The highest revision that a response had; shared by all calls of a client. */
    private final AtomicLong revision;
    /** The place of the node that is asked first. */
    private volatile int preferred;

    Calls(List<String> nodes, Wire wire, Clock clock, Environment environment, Reader reader, Scope scope,
            Duration timeout, Duration attemptTimeout) {
        this(nodes, wire, clock, environment, reader, scope, timeout, attemptTimeout, new AtomicLong());
    }

    private Calls(List<String> nodes, Wire wire, Clock clock, Environment environment, Reader reader, Scope scope,
            Duration timeout, Duration attemptTimeout, AtomicLong revision) {
        this.nodes = nodes;
        this.wire = wire;
        this.clock = clock;
        this.environment = environment;
        this.reader = reader;
        this.scope = scope;
        this.timeout = timeout.toNanos();
        this.attemptTimeout = attemptTimeout.toNanos();
        this.revision = revision;
        // Clients that start together do not all ask the same node.
        this.preferred = (int) (clock.dice() * nodes.size()) % nodes.size();
    }

    /** The same nodes, with times and a scope of its own. */
    Calls child(Duration timeout, Duration attemptTimeout) {
        return new Calls(nodes, wire, clock, environment, reader, scope.child(), timeout, attemptTimeout, revision);
    }

    Calls child() {
        return child(Duration.ofNanos(timeout), Duration.ofNanos(attemptTimeout));
    }

    long revision() {
        return revision.get();
    }

    void prefer(int place) {
        preferred = Math.floorMod(place, nodes.size());
    }

    void preferNext() {
        prefer(preferred + 1);
    }

    Answer call(Request request, Duration timeout) {
        return call(request, timeout == null ? this.timeout : timeout.toNanos(), attemptTimeout);
    }

    Answer call(Request request, long timeout, long attemptTimeout) {
        return new Attempts(request, timeout, attemptTimeout).run();
    }

    /** The attempts of one call. */
    private final class Attempts {
        private final Request asked, request;
        private final long attemptTimeout;
        private final int first = preferred;
        private final Deque<String> told = new ArrayDeque<>();
        private long deadline, sentAt;
        /** How long another copy may be sent, once {@link #isUnknown}. */
        private long resendUntil;
        private int made;
        private long pause = PAUSE_FIRST, asksToWait;
        private boolean isUnknown;
        private RejectedException limited;

        Attempts(Request asked, long timeout, long attemptTimeout) {
            Request entered = environment == null ? asked : environment.enter(asked);
            this.asked = asked;
            this.request = reader == null ? entered : reader.on(entered);
            this.attemptTimeout = attemptTimeout;
            this.deadline = clock.nanos() + timeout;
        }

        Answer run() {
            while (true) {
                if (made > 0 && made % nodes.size() == 0) {
                    pauseBetweenRounds();
                }
                if (scope.isStopped()) {
                    told.add(scope.isClosed() ? "the client was closed" : "the thread was interrupted");
                    throw givenUp(null);
                }
                long left = deadline - clock.nanos();
                long resendLeft = isUnknown ? resendUntil - clock.nanos() : Long.MAX_VALUE;
                if (left <= 0 || (made > 0 && left < ATTEMPT_MIN) || resendLeft <= 0) {
                    throw givenUp(null);
                }
                String node = nodes.get((first + made) % nodes.size());
                made++;
                // A node that hangs must not take the time that the others need.
                boolean mayGoOn = !request.isWrite() || request.idempotencyKey() != null;
                // The last copy of a write that may be sent has the time that is left.
                mayGoOn &= attemptTimeout < resendLeft;
                sentAt = clock.nanos();
                Wire.Reply reply = wire.send(node, request, mayGoOn ? Math.min(left, attemptTimeout) : left, left, scope);
                if (reply instanceof Wire.Failed failed) {
                    failed(node, failed.text(), request.isWrite() && failed.mayBeApplied());
                    continue;
                }
                Answer answer = judged(node, (Wire.Received) reply);
                if (answer != null) {
                    return answer;
                }
            }
        }

        private void pauseBetweenRounds() {
            long nanos = Math.max((long) (pause * (0.5 + clock.dice() / 2)), asksToWait);
            pause = Math.min(pause * 2, PAUSE_MAX);
            asksToWait = 0;
            long until = isUnknown ? Math.min(deadline, resendUntil) : deadline;
            if (until - clock.nanos() <= nanos + ATTEMPT_MIN) {
                throw givenUp(null);
            }
            clock.pause(nanos, scope);
        }

        /** Notes an attempt without a decision. Throws if there must be no other. */
        private void failed(String node, String text, boolean mayBeApplied) {
            told.add(node + ": " + text);
            if (told.size() > ATTEMPTS_SHOWN) {
                told.removeFirst();
            }
            if (!mayBeApplied) {
                return;
            }
            if (!isUnknown) {
                isUnknown = true;
                // From the sending on: by the time that a loss is noticed, the cluster may have forgotten.
                resendUntil = sentAt + RESEND_WINDOW;
            }
            if (request.idempotencyKey() == null) {
                throw givenUp(null);
            }
        }

        /** The answer, or null if the request is to be sent again. */
        private Answer judged(String node, Wire.Received reply) {
            int status = reply.status();
            if ((status == 304 && !request.isWrite()) || (status >= 200 && status < 300)) {
                return succeeded(node, reply);
            }
            JsonNode body;
            try {
                body = Json.parse(reply.body());
            } catch (IOException error) {
                body = MissingNode.getInstance();
            }
            RejectedException error = RejectedException.of(status, body, node, reply.headers());
            // A proxy may have lost a response; only the words of a node itself say that nothing was applied.
            boolean isOwn = !error.violations().isEmpty();
            if ((status == 429 || status == 503) && (isOwn || !request.isWrite())) {
                limited = status == 429 ? error : null;
                asksToWait = Math.max(asksToWait, seconds(reply.headers().get("retry-after")));
                failed(node, error.getMessage(), false);
                return null;
            }
            if (status == 500 && isOwn && !request.isWrite()) {
                throw error;
            }
            boolean isFailure = status >= 500 && status != 507;
            if (isFailure || (!isOwn && !CERTAIN.contains(status))) {
                limited = isFailure ? null : limited;
                failed(node, error.getMessage(), request.isWrite());
                return null;
            }
            seen(error.revision().orElse(0));
            answered();
            throw isUnknown && !isDecision(error) ? givenUp(error) : error;
        }

        private Answer succeeded(String node, Wire.Received reply) {
            JsonNode data = null;
            // A node responds to each write with JSON: what has no body is a proxy's, or was cut off.
            boolean hasBody = reply.body().length > 0 || request.isWrite();
            if (request.sink() == null && hasBody) {
                try {
                    JsonNode body = Json.parse(reply.body());
                    data = body.has("data") ? body.get("data") : body;
                } catch (IOException error) {
                    // It was cut off, or is not Concord's.
                    failed(node, reply.status() + " with a body that is no JSON", request.isWrite());
                    return null;
                }
            }
            if (environment != null) {
                environment.leave(asked.method(), asked.target(), data);
            }
            Answer answer = new Answer(reply.status(), reply.headers(), data, node, sentAt);
            seen(answer.revision());
            answered();
            return answer;
        }

        private void seen(long found) {
            revision.accumulateAndGet(found, Math::max);
        }

        /** The node that responds is asked first from now on. */
        private void answered() {
            prefer(first + made - 1);
        }

        /**
         * Whether the cluster has decided this rejection for all copies of the request, and stores it. A rejection of the
         * request itself, of its sender or by a freeze says nothing of an earlier copy. Nor does any of a change request:
         * it may be about the state that the earlier copy left.
         */
        private boolean isDecision(RejectedException error) {
            String target = request.target();
            if (target.startsWith(Requests.ROOT + "/change_request/")) {
                return false;
            }
            if (error.code().equals("definition_not_found")) {
                return request.method().equals("PATCH") || target.startsWith(Requests.ROOT + "/batch");
            }
            return DECISIONS.contains(error.code());
        }

        private ConcordException givenUp(RejectedException last) {
            // The node that was asked last did not decide: the next call begins with another one.
            prefer(first + made);
            String latest = told.isEmpty() ? "the time was up before anything was sent" : told.getLast();
            if (isUnknown) {
                String text = "the outcome is unknown, the write may have been applied: " + latest
                        + (last == null ? "" : "; then " + last.getMessage());
                return new UnknownOutcomeException(text, request.idempotencyKey(), List.copyOf(told), last);
            }
            if (limited != null) {
                return limited;
            }
            return new UnavailableException("no node served the request in time: " + latest, List.copyOf(told));
        }
    }

    private static long seconds(String text) {
        try {
            return text == null ? 0 : Math.max(0, Clock.nanos(Math.min(WAIT_MAX_SECONDS, Double.parseDouble(text))));
        } catch (NumberFormatException error) {
            return 0;
        }
    }
}
