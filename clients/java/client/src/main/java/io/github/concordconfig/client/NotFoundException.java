package io.github.concordconfig.client;

/** 404: the record or the path does not exist. */
public class NotFoundException extends RejectedException {
    NotFoundException(Details details) {
        super(details);
    }
}
