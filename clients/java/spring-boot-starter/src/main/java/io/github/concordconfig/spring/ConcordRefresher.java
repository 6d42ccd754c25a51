package io.github.concordconfig.spring;

import io.github.concordconfig.client.Cache;
import io.github.concordconfig.client.ConcordException;
import io.github.concordconfig.client.Config;
import io.github.concordconfig.client.ModelException;
import io.github.concordconfig.client.TypedCache;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.function.Supplier;
import org.apache.commons.logging.Log;
import org.apache.commons.logging.LogFactory;
import org.springframework.beans.BeanUtils;
import org.springframework.beans.factory.SmartInitializingSingleton;
import org.springframework.boot.context.properties.ConfigurationPropertiesBean;
import org.springframework.boot.context.properties.ConfigurationPropertiesBindingPostProcessor;
import org.springframework.boot.context.properties.bind.BindException;
import org.springframework.boot.context.properties.bind.BindHandler;
import org.springframework.boot.context.properties.bind.Bindable;
import org.springframework.boot.context.properties.bind.Binder;
import org.springframework.boot.context.properties.bind.PropertySourcesPlaceholdersResolver;
import org.springframework.boot.context.properties.bind.validation.ValidationBindHandler;
import org.springframework.boot.context.properties.source.ConfigurationPropertyName;
import org.springframework.boot.context.properties.source.ConfigurationPropertySources;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.core.annotation.AnnotatedElementUtils;
import org.springframework.core.env.MapPropertySource;
import org.springframework.core.env.MutablePropertySources;
import org.springframework.core.env.PropertySource;
import org.springframework.validation.Validator;
import org.springframework.validation.annotation.Validated;

/**
 * Binds configuration properties again when their config changes.
 *
 * <p>New data are first bound to other instances of all types with this prefix. If one does not fit, everything stays as it
 * is, the log has one warning, and the cache reports the config as failed, as with any type of a {@link TypedCache}.
 *
 * <p>A class with setters is then bound again in place. For a record, which can't be changed, {@link #live} returns the
 * newest instance.
 */
public final class ConcordRefresher implements SmartInitializingSingleton {
    private static final Log LOG = LogFactory.getLog(ConcordRefresher.class);

    private final ConfigurableApplicationContext context;
    private final ConcordPropertySource source;
    private final List<Live<?>> live = new CopyOnWriteArrayList<>();
    private final Map<String, TypedCache<Map<String, Map<String, Object>>>> checked = new LinkedHashMap<>();
    /** They are found once: the thread of the cache must not wait for a bean that another thread makes. */
    private List<ConfigurationPropertiesBean> beans = List.of();
    private List<Validator> validators = List.of();
    private ConfigurationPropertiesBindingPostProcessor processor;

    ConcordRefresher(ConfigurableApplicationContext context, ConcordPropertySource source) {
        this.context = context;
        this.source = source;
    }

    /** A type that is bound again when its config changes. */
    private static final class Live<T> implements Supplier<T> {
        private final String prefix;
        private final Class<T> type;
        private final Bindable<T> target;
        private volatile T instance;

        private Live(String prefix, Class<T> type) {
            this.prefix = prefix;
            this.type = type;
            this.target = Bindable.of(type);
        }

        private void bind(Binder binder) {
            instance = binder.bindOrCreate(prefix, target);
        }

        @Override
        public T get() {
            return instance;
        }
    }

    /** Always the newest instance of a type whose data fitted. The same call returns the same object. */
    @SuppressWarnings("unchecked")
    public synchronized <T> Supplier<T> live(String prefix, Class<T> type) {
        for (Live<?> each : live) {
            if (each.prefix.equals(prefix) && each.type == type) {
                return (Live<T>) each;
            }
        }
        Live<T> made = new Live<>(prefix, type);
        made.bind(Binder.get(context.getEnvironment()));
        live.add(made);
        return made;
    }

    @Override
    public void afterSingletonsInstantiated() {
        Cache cache = source.getSource();
        beans = List.copyOf(ConfigurationPropertiesBean.getAll(context).values());
        validators = List.copyOf(context.getBeansOfType(Validator.class).values());
        processor = context.getBean(ConfigurationPropertiesBindingPostProcessor.class);
        for (BoundConfig each : source.bound()) {
            checked.computeIfAbsent(each.definition(), definition ->
                    cache.typed(definition, "the configuration properties", this::checked));
        }
        cache.onChange(any -> refresh());
        refresh();
    }

    /** The properties of a config, by prefix, if all types with these prefixes can be bound to them. */
    private Map<String, Map<String, Object>> checked(Config config) {
        Map<String, Map<String, Object>> made = new LinkedHashMap<>();
        for (BoundConfig each : source.bound()) {
            if (each.definition().equals(config.definition()) && each.key().equals(config.key())) {
                Map<String, Object> properties = each.properties(config.data());
                check(each, properties);
                made.put(each.prefix(), properties);
            }
        }
        return made;
    }

    private void check(BoundConfig config, Map<String, Object> properties) {
        MutablePropertySources sources = new MutablePropertySources();
        for (PropertySource<?> each : context.getEnvironment().getPropertySources()) {
            if (each == source) {
                sources.addLast(new MapPropertySource(source.getName(), source.with(config, properties)));
            } else if (!ConfigurationPropertySources.isAttachedConfigurationPropertySource(each)) {
                sources.addLast(each);
            }
        }
        Binder binder = new Binder(ConfigurationPropertySources.from(sources), new PropertySourcesPlaceholdersResolver(sources),
                context.getBeanFactory().getConversionService(), null);
        try {
            for (ConfigurationPropertiesBean bean : beans(config)) {
                fresh(binder, bean);
            }
            for (Live<?> each : live) {
                if (isUnder(each.prefix, config.prefix())) {
                    binder.bindOrCreate(each.prefix, each.target, validation(each.target.getType().resolve()));
                }
            }
        } catch (BindException error) {
            String place = "/" + error.getName().toString().replace('.', '/');
            throw new ModelException("the property " + error.getName() + " does not fit", List.of(place), error);
        }
    }

    /** Another instance of the type of a bean, which may be in use. */
    private Object fresh(Binder binder, ConfigurationPropertiesBean bean) {
        Bindable<?> target = Bindable.of(bean.asBindTarget().getType()).withAnnotations(bean.getAnnotation());
        return binder.bindOrCreate(bean.getAnnotation().prefix(), target, validation(bean.getInstance().getClass()));
    }

    /** As Spring Boot does it: a type asks for it by {@code @Validated}. */
    private BindHandler validation(Class<?> type) {
        boolean isValidated = type != null && AnnotatedElementUtils.hasAnnotation(type, Validated.class);
        boolean isChecked = isValidated && !validators.isEmpty();
        return isChecked ? new ValidationBindHandler(validators.toArray(new Validator[0])) : BindHandler.DEFAULT;
    }

    private List<ConfigurationPropertiesBean> beans(BoundConfig config) {
        return beans.stream().filter(bean -> isUnder(bean.getAnnotation().prefix(), config.prefix())).toList();
    }

    /** Whether properties with one prefix can have those of the other. */
    static boolean isUnder(String one, String other) {
        ConfigurationPropertyName first = ConfigurationPropertyName.adapt(one, '.');
        ConfigurationPropertyName second = ConfigurationPropertyName.adapt(other, '.');
        return first.equals(second) || first.isAncestorOf(second) || second.isAncestorOf(first);
    }

    private void refresh() {
        // A listener may wait for a thread that calls this object.
        if (!context.isClosed()) {
            bindChanged().forEach(prefix -> context.publishEvent(new ConcordRefreshedEvent(this, prefix)));
        }
    }

    /** The prefixes whose properties have changed and are bound again. */
    private synchronized List<String> bindChanged() {
        List<String> changed = new ArrayList<>();
        for (BoundConfig each : source.bound()) {
            Map<String, Object> now = newest(each);
            Map<String, Object> before = source.properties();
            Map<String, Object> made = source.with(each, now);
            if (made.equals(before)) {
                continue;
            }
            source.replace(made);
            try {
                bindAgain(each);
            } catch (RuntimeException | LinkageError | AssertionError error) {
                // A setter of the program can throw what the check did not see. The text of the error may quote data.
                LOG.warn("the properties " + each.prefix() + ".* could not be bound again, by "
                        + error.getClass().getName() + "; those before stay");
                source.replace(before);
                bindAgain(each);
                continue;
            }
            changed.add(each.prefix());
        }
        return changed;
    }

    private Map<String, Object> newest(BoundConfig config) {
        try {
            return checked.get(config.definition()).get(config.key()).getOrDefault(config.prefix(), Map.of());
        } catch (ModelException error) {
            // No version has fitted since the start: the properties are those of the start.
            Map<String, Object> now = new LinkedHashMap<>(source.properties());
            now.keySet().removeAll(source.with(config, Map.of()).keySet());
            return now;
        } catch (ConcordException error) {
            return Map.of();
        }
    }

    private void bindAgain(BoundConfig config) {
        Binder binder = Binder.get(context.getEnvironment());
        for (ConfigurationPropertiesBean bean : beans(config)) {
            if (bean.asBindTarget().getValue() != null) {
                processor.postProcessBeforeInitialization(bean.getInstance(), bean.getName());
                // A member that is no longer in the data gets its default.
                BeanUtils.copyProperties(fresh(binder, bean), bean.getInstance());
            }
        }
        for (Live<?> each : live) {
            if (isUnder(each.prefix, config.prefix())) {
                each.bind(binder);
            }
        }
    }
}
