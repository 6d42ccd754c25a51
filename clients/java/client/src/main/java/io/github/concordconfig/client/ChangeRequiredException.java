package io.github.concordconfig.client;

/** 409: the environment accepts change requests only. The client does not retry it. */
public class ChangeRequiredException extends ConflictException {
    ChangeRequiredException(Details details) {
        super(details);
    }
}
