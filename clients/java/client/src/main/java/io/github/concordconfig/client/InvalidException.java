package io.github.concordconfig.client;

/** 422: a parameter, a key, an index, a schema or data break a rule. {@link #violations()} lists all of them. */
public class InvalidException extends RejectedException {
    InvalidException(Details details) {
        super(details);
    }
}
