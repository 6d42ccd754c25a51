package io.github.concordconfig.client;

/** 409: the environment is frozen. The client does not retry it: a freeze may last for days. */
public class EnvironmentFrozenException extends ConflictException {
    EnvironmentFrozenException(Details details) {
        super(details);
    }
}
