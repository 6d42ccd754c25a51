package io.github.concordconfig.spring;

import io.github.concordconfig.client.Cache;
import io.github.concordconfig.client.ConcordClient;
import org.springframework.boot.autoconfigure.AutoConfiguration;
import org.springframework.boot.autoconfigure.condition.ConditionalOnBean;
import org.springframework.boot.autoconfigure.condition.ConditionalOnMissingBean;
import org.springframework.boot.autoconfigure.condition.ConditionalOnProperty;
import org.springframework.boot.autoconfigure.condition.SpringBootCondition;
import org.springframework.boot.autoconfigure.condition.ConditionOutcome;
import org.springframework.boot.context.properties.EnableConfigurationProperties;
import org.springframework.boot.context.properties.bind.Binder;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.ConditionContext;
import org.springframework.context.annotation.Conditional;
import org.springframework.core.env.ConfigurableEnvironment;
import org.springframework.core.type.AnnotatedTypeMetadata;

/** A client and a cache by the properties {@code concord.*}; without {@code concord.nodes}, nothing. */
@AutoConfiguration
@ConditionalOnProperty(prefix = "concord", name = "enabled", matchIfMissing = true)
@Conditional(ConcordAutoConfiguration.OnNodes.class)
@EnableConfigurationProperties(ConcordProperties.class)
public class ConcordAutoConfiguration {
    private static ConcordPropertySource source(ConfigurableEnvironment environment) {
        return (ConcordPropertySource) environment.getPropertySources().get(ConcordPropertySource.NAME);
    }

    /** The client; that of {@code concord.bind} if there is one. */
    @Bean(destroyMethod = "close")
    @ConditionalOnMissingBean
    public ConcordClient concordClient(ConcordProperties properties, ConfigurableEnvironment environment) {
        ConcordPropertySource source = source(environment);
        return source == null ? properties.client().build() : source.client();
    }

    /** The cache; that of {@code concord.bind} if there is one. */
    @Bean(destroyMethod = "close")
    @ConditionalOnMissingBean
    @Conditional(OnCache.class)
    public Cache concordCache(ConcordClient client, ConcordProperties properties, ConfigurableEnvironment environment) {
        ConcordPropertySource source = source(environment);
        return source == null ? client.cache(properties.cacheOptions()) : source.getSource();
    }

    /** Binds properties again when their config changes. */
    @Bean
    @ConditionalOnBean(Cache.class)
    @Conditional(OnBind.class)
    public ConcordRefresher concordRefresher(ConfigurableApplicationContext context) {
        return new ConcordRefresher(context, source(context.getEnvironment()));
    }

    private static ConcordProperties bound(ConditionContext context) {
        return Binder.get(context.getEnvironment()).bindOrCreate("concord", ConcordProperties.class);
    }

    static final class OnNodes extends SpringBootCondition {
        @Override
        public ConditionOutcome getMatchOutcome(ConditionContext context, AnnotatedTypeMetadata metadata) {
            return new ConditionOutcome(!bound(context).nodes().isEmpty(), "concord.nodes");
        }
    }

    static final class OnCache extends SpringBootCondition {
        @Override
        public ConditionOutcome getMatchOutcome(ConditionContext context, AnnotatedTypeMetadata metadata) {
            return new ConditionOutcome(bound(context).hasCache(), "concord.cache.definitions or concord.bind");
        }
    }

    static final class OnBind extends SpringBootCondition {
        @Override
        public ConditionOutcome getMatchOutcome(ConditionContext context, AnnotatedTypeMetadata metadata) {
            boolean isBound = ((ConfigurableEnvironment) context.getEnvironment())
                    .getPropertySources().contains(ConcordPropertySource.NAME);
            return new ConditionOutcome(isBound, "concord.bind");
        }
    }
}
