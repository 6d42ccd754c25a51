package io.github.concordconfig.client;

import java.util.List;
import java.util.Optional;

/**
 * A write may or may not have been applied.
 *
 * <p>Repeat the same call with {@link WriteOption#idempotencyKey} and {@link #idempotencyKey()}: the cluster applies both
 * as one. Or read the record.
 */
public class UnknownOutcomeException extends ConcordException {
    private final transient String idempotencyKey;
    private final transient List<String> attempts;

    UnknownOutcomeException(String message, String idempotencyKey, List<String> attempts, RejectedException last) {
        super(message, last);
        this.idempotencyKey = idempotencyKey;
        this.attempts = List.copyOf(attempts);
    }

    /** The idempotency key of the write; empty if it had none. */
    public Optional<String> idempotencyKey() {
        return Optional.ofNullable(idempotencyKey);
    }

    /** The results of the last attempts, the latest one last. */
    public List<String> attempts() {
        return attempts;
    }

    /** The rejection of a later copy of the request, if it does not decide the first one. */
    public Optional<RejectedException> rejection() {
        return Optional.ofNullable((RejectedException) getCause());
    }
}
