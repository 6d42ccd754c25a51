package io.github.concordconfig.client;

import java.util.OptionalLong;

/** 412: the condition of the write does not hold. */
public class PreconditionFailedException extends RejectedException {
    PreconditionFailedException(Details details) {
        super(details);
    }

    /** The revision that the record has, if it exists. */
    public OptionalLong currentRevision() {
        return Answer.number(details().headers().get("etag"));
    }
}
