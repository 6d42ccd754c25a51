package io.github.concordconfig.client;

import static io.github.concordconfig.client.PlayedNodes.lost;
import static io.github.concordconfig.client.PlayedNodes.ok;
import static io.github.concordconfig.client.PlayedNodes.rejected;
import static io.github.concordconfig.client.PlayedNodes.response;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;

/** One call with all its attempts: what is sent where, and what follows. */
class CallsTest {
    private static final String A = "http://a", B = "http://b", C = "http://c";
    private static final Request READ = Request.read("/x");
    private static final Request KEYED = write("PUT", "/x", "k");
    private static final Request PLAIN = write("POST", "/x", null);
    private static final Wire.Reply OK = ok(1);
    private static final Wire.Reply REFUSED = new Wire.Failed("refused", false);
    private static final Wire.Reply UNAVAILABLE = rejected(503, "unavailable");

    private static Request write(String method, String target, String key) {
        return new Request(method, target, Map.of(), null, true, key, null, false);
    }

    /** Plays the nodes: each reply is for the next attempt, the last one for all others. */
    private static class Script extends Clock implements Wire {
        private final Deque<Reply> replies;
        private final List<String> sent = new ArrayList<>();
        private final List<Double> pauses = new ArrayList<>(), times = new ArrayList<>();
        private final Scope scope = new Scope();
        private long now = 100 * SECOND, takes;
        private final Calls calls;

        Script(Reply... replies) {
            this.replies = new ArrayDeque<>(List.of(replies));
            calls = new Calls(List.of(A, B, C), this, this, null, null, scope, Duration.ofSeconds(30), Duration.ofSeconds(5));
            calls.prefer(0);
        }

        Answer run(Request request) {
            return calls.call(request, null);
        }

        double seconds() {
            return (double) now / SECOND - 100;
        }

        @Override
        long nanos() {
            return now;
        }

        @Override
        double dice() {
            return 1;
        }

        @Override
        void pause(long nanos, Scope of) {
            pauses.add((double) nanos / SECOND);
            now += nanos;
        }

        @Override
        public Reply send(String node, Request request, long silence, long timeout, Scope of) {
            sent.add(node);
            times.add((double) silence / SECOND);
            now += Math.min(takes, silence);
            return replies.size() > 1 ? replies.remove() : replies.peek();
        }

        @Override
        public void close() {}
    }

    @Test
    void a_read_goes_to_the_next_node_at_once_and_stays_there() {
        Script script = new Script(REFUSED, lost(), OK);
        assertEquals(1, script.run(READ).data().asInt());
        assertEquals(List.of(A, B, C), script.sent);
        assertEquals(List.of(), script.pauses);
        script.run(READ);
        assertEquals(C, script.sent.get(3));
    }

    @Test
    void between_two_rounds_there_is_a_pause_that_grows() {
        Script script = new Script(REFUSED, REFUSED, REFUSED, REFUSED, REFUSED, REFUSED, REFUSED, REFUSED, REFUSED, OK);
        script.run(READ);
        assertEquals(List.of(0.05, 0.1, 0.2), script.pauses);
    }

    @Test
    void a_node_says_how_long_to_wait() {
        Script script = new Script(rejected(503, "unavailable", "retry-after", "3"), UNAVAILABLE, UNAVAILABLE, OK);
        script.run(KEYED);
        assertEquals(List.of(3.0), script.pauses);
    }

    @Test
    void a_write_that_no_node_took_is_unavailable() {
        for (Wire.Reply reply : List.of(REFUSED, UNAVAILABLE)) {
            for (Request request : List.of(KEYED, PLAIN)) {
                Script script = new Script(reply);
                UnavailableException error = assertThrows(UnavailableException.class, () -> script.run(request));
                assertFalse(error.attempts().isEmpty());
                assertTrue(script.seconds() <= 30);
            }
        }
        assertThrows(RateLimitedException.class, () -> new Script(rejected(429, "overloaded")).run(KEYED));
    }

    @Test
    void a_write_with_a_key_is_sent_again_and_its_success_is_success() {
        for (Wire.Reply first : List.of(lost(), rejected(504, "outcome_unknown"), rejected(500, "internal_error"), response(502, null))) {
            Script script = new Script(first, OK);
            assertEquals(1, script.run(KEYED).data().asInt());
            assertEquals(2, script.sent.size());
        }
    }

    @Test
    void a_write_without_a_key_is_not_sent_again_once_it_may_be_applied() {
        Script script = new Script(lost(), OK);
        UnknownOutcomeException error = assertThrows(UnknownOutcomeException.class, () -> script.run(PLAIN));
        assertEquals(List.of(A), script.sent);
        assertTrue(error.idempotencyKey().isEmpty());
        assertEquals(1, new Script(REFUSED, OK).run(PLAIN).data().asInt());
    }

    @Test
    void after_a_copy_of_unknown_outcome_nothing_else_makes_it_a_failure() {
        for (Wire.Reply last : List.of(REFUSED, UNAVAILABLE, rejected(429, "overloaded"), lost())) {
            Script script = new Script(lost(), last);
            UnknownOutcomeException error = assertThrows(UnknownOutcomeException.class, () -> script.run(KEYED));
            assertEquals("k", error.idempotencyKey().orElseThrow());
        }
    }

    @Test
    void a_rejection_that_the_cluster_stores_decides_earlier_copies() {
        assertThrows(ConflictException.class, () -> new Script(lost(), rejected(409, "config_exists")).run(KEYED));
        assertThrows(NotFoundException.class, () -> new Script(lost(), rejected(404, "config_not_found")).run(KEYED));
        assertThrows(PreconditionFailedException.class, () -> new Script(lost(), rejected(412, "precondition_failed")).run(KEYED));
        Request batch = write("POST", "/api/v1/batch", "k");
        assertThrows(NotFoundException.class, () -> new Script(lost(), rejected(404, "definition_not_found")).run(batch));
    }

    @Test
    void a_rejection_of_a_change_request_decides_no_earlier_copy() {
        Request apply = write("POST", "/api/v1/change_request/7/apply", "k");
        for (Wire.Reply reply : List.of(rejected(409, "config_exists"), rejected(412, "precondition_failed"), rejected(404, "config_not_found"))) {
            assertThrows(UnknownOutcomeException.class, () -> new Script(lost(), reply).run(apply));
        }
    }

    @Test
    void a_rejection_of_the_request_says_nothing_of_earlier_copies() {
        for (Wire.Received reply : List.of(rejected(401, "unauthorized"), rejected(403, "forbidden"), rejected(422, "data_invalid"),
                rejected(404, "definition_not_found"), rejected(409, "patch_test_failed"), rejected(507, "storage_full"),
                rejected(409, "environment_frozen"))) {
            UnknownOutcomeException error =
                    assertThrows(UnknownOutcomeException.class, () -> new Script(lost(), reply).run(KEYED));
            assertEquals(reply.status(), error.rejection().orElseThrow().status());
        }
    }

    @Test
    void rejections_are_thrown_at_once() {
        Script script = new Script(rejected(422, "data_invalid"));
        assertThrows(InvalidException.class, () -> script.run(KEYED));
        assertThrows(ForbiddenException.class, () -> new Script(rejected(403, "forbidden")).run(KEYED));
        assertEquals(1, script.sent.size());
    }

    @Test
    void a_proxy_does_not_say_that_nothing_was_applied() {
        for (int status : new int[] {400, 408, 429, 502, 503, 504, 302}) {
            assertThrows(UnknownOutcomeException.class, () -> new Script(response(status, Map.of("from", "a proxy"))).run(PLAIN));
            assertEquals(1, new Script(response(status, null), OK).run(READ).data().asInt());
        }
    }

    @Test
    void a_response_that_was_cut_off_is_no_success() {
        Wire.Reply cut = new Wire.Received(200, Map.of(), "{\"data\": ".getBytes(java.nio.charset.StandardCharsets.UTF_8));
        assertThrows(UnknownOutcomeException.class, () -> new Script(cut).run(PLAIN));
        assertEquals(1, new Script(cut, OK).run(KEYED).data().asInt());
        assertEquals(1, new Script(cut, OK).run(READ).data().asInt());
    }

    @Test
    void a_node_that_hangs_does_not_take_the_time_of_the_others() {
        Script script = new Script(lost(), OK);
        script.takes = 60 * Clock.SECOND;
        script.run(KEYED);
        assertEquals(List.of(5.0, 5.0), script.times);
        Script plain = new Script(OK);
        plain.run(PLAIN);
        assertEquals(List.of(30.0), plain.times);
    }

    @Test
    void copies_are_sent_only_while_the_cluster_certainly_stores_the_first_decision() {
        Script script = new Script(lost(), UNAVAILABLE);
        script.takes = Clock.SECOND / 2;
        assertThrows(UnknownOutcomeException.class, () -> script.calls.call(KEYED, Duration.ofSeconds(300)));
        assertTrue(script.seconds() <= 15.5, "" + script.seconds());
        Script other = new Script(UNAVAILABLE);
        assertThrows(UnavailableException.class, () -> other.calls.call(KEYED, Duration.ofSeconds(300)));
        assertTrue(other.seconds() > 250);
    }

    @Test
    void the_highest_revision_is_noted() {
        Script script = new Script(ok(1, "x-concord-revision", "9"), response(304, null, "x-concord-revision", "7"));
        script.run(READ);
        assertEquals(304, script.run(READ).status());
        assertEquals(9, script.calls.revision());
    }

    @Test
    void an_interrupt_ends_a_call_and_stays_set() {
        for (Request request : List.of(READ, KEYED)) {
            Script script = new Script(OK);
            Thread.currentThread().interrupt();
            assertThrows(UnavailableException.class, () -> script.run(request));
            assertTrue(Thread.interrupted());
            assertEquals(List.of(), script.sent);
        }
        Script script = new Script(lost()) {
            @Override
            public Reply send(String node, Request request, long silence, long timeout, Scope of) {
                Thread.currentThread().interrupt();
                return super.send(node, request, silence, timeout, of);
            }
        };
        UnknownOutcomeException error = assertThrows(UnknownOutcomeException.class, () -> script.run(KEYED));
        assertTrue(Thread.interrupted());
        assertEquals("k", error.idempotencyKey().orElseThrow());
        assertEquals(1, script.sent.size());
    }

    @Test
    void a_closed_client_ends_a_call() {
        Script script = new Script(OK);
        script.scope.close();
        assertThrows(UnavailableException.class, () -> script.run(READ));
    }

    @Test
    void what_no_node_says_of_a_write_is_no_success() {
        // Without a body, a response was cut off or is a proxy's. So is 304 to a write.
        for (Wire.Reply reply : List.of(response(200, null), response(204, null), response(304, null))) {
            assertThrows(UnknownOutcomeException.class, () -> new Script(reply).run(PLAIN));
            assertEquals(1, new Script(reply, OK).run(KEYED).data().asInt());
        }
        assertEquals(304, new Script(response(304, null)).run(READ).status());
    }

    @Test
    void a_wait_that_nobody_can_wait_for_ends_the_call() {
        for (String time : List.of("1e30", "9223372036", "Infinity", "NaN", "-1")) {
            Script script = new Script(rejected(503, "unavailable", "retry-after", time));
            assertThrows(UnavailableException.class, () -> script.run(KEYED));
            assertTrue(script.seconds() >= 0 && script.seconds() <= 30, time + " " + script.seconds());
        }
    }

    @Test
    void a_call_without_an_end_is_made() {
        Script script = new Script(REFUSED, REFUSED, REFUSED, OK);
        assertEquals(1, script.calls.call(READ, Duration.ofNanos(Long.MAX_VALUE)).data().asInt());
    }
}
