package io.github.concordconfig.client;

import java.util.List;

/** No node served the request in time, or the thread was interrupted. A write was certainly not applied. */
public class UnavailableException extends ConcordException {
    private final transient List<String> attempts;

    UnavailableException(String message, List<String> attempts) {
        super(message, null);
        this.attempts = List.copyOf(attempts);
    }

    /** The results of the last attempts, the latest one last. */
    public List<String> attempts() {
        return attempts;
    }
}
