package io.github.concordconfig.client;

/** 500 of a read: an internal error of the node. */
public class ServerErrorException extends RejectedException {
    ServerErrorException(Details details) {
        super(details);
    }
}
