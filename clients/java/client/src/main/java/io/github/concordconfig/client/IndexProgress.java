package io.github.concordconfig.client;

/**
 * How far the index of a path is built.
 *
 * @param path the indexed path
 * @param isReady whether filters can use it
 * @param done how many configs it has
 * @param of how many there are
 */
public record IndexProgress(String path, boolean isReady, long done, long of) {}
