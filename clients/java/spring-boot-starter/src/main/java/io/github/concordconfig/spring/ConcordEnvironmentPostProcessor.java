package io.github.concordconfig.spring;

import io.github.concordconfig.client.ConcordClient;
import org.springframework.beans.factory.support.DefaultSingletonBeanRegistry;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.context.config.ConfigDataEnvironmentPostProcessor;
import org.springframework.boot.context.properties.bind.BindResult;
import org.springframework.boot.context.properties.bind.Binder;
import org.springframework.boot.env.EnvironmentPostProcessor;
import org.springframework.core.Ordered;
import org.springframework.core.env.ConfigurableEnvironment;
import org.springframework.core.env.MutablePropertySources;
import org.springframework.core.env.StandardEnvironment;

/**
 * Adds the data of configs to the properties of a program, before its beans are made: {@code concord.bind.*}.
 *
 * <p>They take precedence over files of the program. System properties, environment variables and arguments take precedence
 * over them.
 */
public final class ConcordEnvironmentPostProcessor implements EnvironmentPostProcessor, Ordered {
    @Override
    public int getOrder() {
        return ConfigDataEnvironmentPostProcessor.ORDER + 10;
    }

    @Override
    public void postProcessEnvironment(ConfigurableEnvironment environment, SpringApplication application) {
        BindResult<ConcordProperties> given = Binder.get(environment).bind("concord", ConcordProperties.class);
        MutablePropertySources sources = environment.getPropertySources();
        boolean isOn = environment.getProperty("concord.enabled", Boolean.class, true);
        if (!isOn || !given.isBound() || given.get().bind().isEmpty() || sources.contains(ConcordPropertySource.NAME)) {
            return;
        }
        ConcordProperties properties = given.get();
        ConcordClient client = properties.client().build();
        // Also if the context does not start, or if the program has a client of its own. After all beans: they may need it.
        application.addInitializers(context -> {
            if (context.getBeanFactory() instanceof DefaultSingletonBeanRegistry beans) {
                beans.registerDisposableBean("concordSource", client::close);
            }
        });
        try {
            ConcordPropertySource source =
                    new ConcordPropertySource(client, client.cache(properties.cacheOptions()), properties.bind());
            if (sources.contains(StandardEnvironment.SYSTEM_ENVIRONMENT_PROPERTY_SOURCE_NAME)) {
                sources.addAfter(StandardEnvironment.SYSTEM_ENVIRONMENT_PROPERTY_SOURCE_NAME, source);
            } else {
                sources.addFirst(source);
            }
        } catch (RuntimeException error) {
            client.close();
            throw error;
        }
    }
}
