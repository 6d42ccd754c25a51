package io.github.concordconfig.client;

/** 409: the record exists, a unique value is taken, an index is being built. */
public class ConflictException extends RejectedException {
    ConflictException(Details details) {
        super(details);
    }
}
