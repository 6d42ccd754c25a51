package io.github.concordconfig.spring;

import io.github.concordconfig.client.CacheOptions;
import io.github.concordconfig.client.ConcordClient;
import java.nio.file.Path;
import java.time.Duration;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.springframework.boot.context.properties.ConfigurationProperties;
import org.springframework.boot.context.properties.bind.DefaultValue;

/**
 * The properties {@code concord.*}.
 *
 * @param nodes the URLs of any nodes
 * @param key the access key
 * @param keyFile a file with the access key; it is read again when it changes
 * @param caFile the certificates of the CA of the nodes (PEM)
 * @param certificateFile the certificate of this client (PEM)
 * @param certificateKeyFile its private key in PKCS #8 (PEM)
 * @param environment the environment: its name stands with a dot before each definition key
 * @param reader the name by which a rollout knows this program; the host name by default
 * @param labels the labels by which a rollout chooses this program
 * @param timeout the time for a call with all its attempts
 * @param attemptTimeout how long one attempt waits for a node that says nothing
 * @param connectTimeout how long to wait for a connection
 * @param cache the cache
 * @param bind configs as properties: the prefix of the properties, and the config as {@code definition/key}
 */
@ConfigurationProperties("concord")
public record ConcordProperties(@DefaultValue List<String> nodes, String key, Path keyFile, Path caFile, Path certificateFile,
        Path certificateKeyFile, String environment, String reader, @DefaultValue Map<String, String> labels,
        @DefaultValue("30s") Duration timeout, @DefaultValue("5s") Duration attemptTimeout,
        @DefaultValue("2s") Duration connectTimeout, @DefaultValue CacheProperties cache,
        @DefaultValue Map<String, String> bind) {

    /**
     * The properties {@code concord.cache.*}.
     *
     * @param definitions the definitions that the cache follows, besides those of {@code concord.bind}
     * @param file the last-known-good file, for a start without nodes
     * @param poll how often the cluster confirms the cache
     * @param fresh up to which age values are live
     * @param startTimeout how long the start waits for a node
     */
    public record CacheProperties(@DefaultValue List<String> definitions, Path file, @DefaultValue("5s") Duration poll,
            @DefaultValue("15s") Duration fresh, @DefaultValue("10s") Duration startTimeout) {}

    /** A client with these properties. */
    ConcordClient.Builder client() {
        ConcordClient.Builder builder = ConcordClient.builder().nodes(nodes).environment(environment).labels(labels)
                .timeout(timeout).attemptTimeout(attemptTimeout).connectTimeout(connectTimeout);
        if (key == null) {
            builder.keyFile(keyFile);
        } else {
            builder.key(key);
        }
        if (caFile != null) {
            builder.caFile(caFile);
        }
        if (certificateFile != null) {
            builder.certificate(certificateFile, certificateKeyFile);
        }
        return reader == null ? builder : builder.reader(reader);
    }

    /** Whether there is something to cache. */
    boolean hasCache() {
        return !cache.definitions.isEmpty() || !bind.isEmpty();
    }

    CacheOptions cacheOptions() {
        Set<String> definitions = new LinkedHashSet<>(cache.definitions);
        bind.forEach((prefix, name) -> definitions.add(BoundConfig.of(prefix, name).definition()));
        CacheOptions options = CacheOptions.of(definitions.toArray(new String[0]))
                .pollSeconds((int) Math.max(1, cache.poll.toSeconds())).fresh(cache.fresh).startTimeout(cache.startTimeout);
        return cache.file == null ? options : options.file(cache.file);
    }
}
