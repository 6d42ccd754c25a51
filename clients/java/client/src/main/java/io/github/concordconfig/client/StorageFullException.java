package io.github.concordconfig.client;

/** 507: the node rejects writes and serves reads. */
public class StorageFullException extends RejectedException {
    StorageFullException(Details details) {
        super(details);
    }
}
