//! The protocol of Spring Cloud Config, for the client of Spring Boot: configs as sources of properties.
//!
//! ```text
//! GET /spring/{application}/{profiles}[/{label}]      the sources, those of the highest precedence first
//! GET /spring/[{label}/]{application}-{profiles}.yml  all of them as one document; also .yaml, .properties, .json
//! ```
//!
//! | application | its base | a profile `prod` of it |
//! |---|---|---|
//! | `shop` | config `default` of the definition `shop` | config `prod` of `shop`; config `default` of `prod.shop`, which is `shop` in the environment `prod` |
//! | `services(_)shop` | config `shop` of the definition `services` | config `shop` of `prod.services` |
//!
//! All applications share the application `application`. What names a profile has precedence over what names none; then
//! the later profile, then the later application. A label is a revision.
//!
//! **Invariants:** all sources are of one revision. Who may not see all values of them is rejected: without one, its property
//! would come from a source of less precedence, or be empty.

use std::{collections::BTreeSet, sync::Arc};

use axum::response::{IntoResponse as _, Response};
use serde_json::{Map, Value};

use super::{
    extract::ReadRequest,
    json::Object,
    raw::{NotWritten, RawFormat, formatted_max, room_for, written},
    reader::reader_of,
    reply::{Problem, Reply},
};
use concord_formats::properties::flat;
use concord_model::{
    access_key::Verb,
    error::{Rejection, Violation},
    key::Key,
    limits::READ_PAST_CONFIGS_MAX,
    record::{Config, Revision},
};
use concord_service::{
    Refusal, Service,
    read::bulk::{BulkConfig, BulkRead, BulkRequest, ReadResult},
};

/// The application that all others share.
const SHARED: &str = "application";
/// The key of the base config of an application that is a definition; the profile of a program that names none.
const DEFAULT: &str = "default";
/// A slash in a name, as Spring writes it.
const SLASH: &str = "(_)";
/// Labels that name no revision: those that Git has for the newest state.
const NEWEST: [&str; 4] = ["", "latest", "main", "master"];

/// Bytes of configs up to which a response is made on the threads that serve requests.
const INLINE_BYTES_MAX: usize = 16 << 10;

/// A config that may be a source.
#[derive(Debug, Clone, PartialEq, Eq)]
struct WantedSource {
    /// What it is a source of: `shop`, or `shop-prod` for a profile. By this the client knows that it goes before its own
    /// files of the profile.
    of: String,
    config: BulkConfig,
}

/// The sources that a request asks for.
#[derive(Debug, PartialEq, Eq)]
struct Wanted {
    /// As the request names it.
    application: String,
    profiles: Vec<String>,
    label: Option<String>,
    /// The configs that may be sources, those of the highest precedence first.
    sources: Vec<WantedSource>,
    /// The definitions of the applications: who may not read them is told so.
    own: BTreeSet<String>,
}

/// An application: its name, the definition and the base config.
struct Application {
    name: String,
    definition: String,
    base: String,
    /// Whether its profiles are configs, too.
    is_definition: bool,
}

impl Application {
    fn of(name: &str) -> Self {
        let (definition, base) = name.split_once(SLASH).unwrap_or((name, DEFAULT));
        let is_definition = !name.contains(SLASH);
        Self {
            name: name.replace(SLASH, "/"),
            definition: definition.into(),
            base: base.into(),
            is_definition,
        }
    }

    /// Its sources for a profile.
    fn of_profile(&self, profile: &str) -> impl Iterator<Item = WantedSource> {
        let environment =
            BulkConfig { definition: format!("{profile}.{}", self.definition), key: self.base.clone() };
        let config = BulkConfig { definition: self.definition.clone(), key: profile.into() };
        let of = format!("{}-{profile}", self.name);
        let configs = [Some(environment), self.is_definition.then_some(config)].into_iter().flatten();
        configs.map(move |config| WantedSource { of: of.clone(), config })
    }

    fn of_base(&self) -> WantedSource {
        let config = BulkConfig { definition: self.definition.clone(), key: self.base.clone() };
        WantedSource { of: self.name.clone(), config }
    }
}

impl Wanted {
    fn new(application: &str, profiles: &str, label: Option<&str>) -> Self {
        let list = |text: &str| {
            text.split(',').map(|one| one.trim().to_owned()).filter(|one| !one.is_empty()).collect()
        };
        let (names, profiles): (Vec<String>, Vec<String>) = (list(application), list(profiles));
        let mut applications: Vec<Application> =
            names.iter().rev().map(|name| Application::of(name)).collect();
        let own = applications.iter().map(|one| one.definition.clone()).collect();
        if !names.iter().any(|name| name == SHARED) {
            applications.push(Application::of(SHARED));
        }
        let mut sources: Vec<WantedSource> = Vec::new();
        for profile in profiles.iter().rev().filter(|profile| *profile != DEFAULT) {
            sources.extend(applications.iter().flat_map(|one| one.of_profile(profile)));
        }
        sources.extend(applications.iter().map(Application::of_base));
        // What is no key names nothing. A name that is there twice counts once.
        let mut seen = BTreeSet::new();
        sources.retain(|WantedSource { config, .. }| {
            let is_name = Key::parse(&config.definition).is_ok() && Key::parse(&config.key).is_ok();
            is_name && seen.insert((config.definition.clone(), config.key.clone()))
        });
        let label = label.filter(|label| !NEWEST.contains(label)).map(str::to_owned);
        Self { application: application.into(), profiles, label, sources, own }
    }

    /// What `{application}-{profiles}.yml` asks for, and in which format.
    fn of_file(file: &str, label: Option<&str>) -> Option<(Self, RawFormat)> {
        let (name, kind) = file.rsplit_once('.')?;
        let format = match kind {
            "yml" | "yaml" => RawFormat::Yaml,
            "properties" => RawFormat::Properties,
            "json" => RawFormat::Json,
            _ => return None,
        };
        let (application, profiles) = name.rsplit_once('-')?;
        Some((Self::new(application, profiles, label), format))
    }
}

/// A source: its name, and its data.
type Source = (String, Map<String, Value>);

/// Sources of one revision.
struct Sources {
    wanted: Wanted,
    found: Vec<(WantedSource, Arc<Config>)>,
    read: BulkRead,
}

/// Answers with the sources of an application; with a document where the path names a file.
pub(super) async fn environment(service: Service, request: ReadRequest) -> Result<Response, Problem> {
    let [application, profiles, label] = request.names();
    if label.is_empty()
        && let Some((wanted, format)) = Wanted::of_file(&profiles, Some(&application))
    {
        return document_of(&service, &request, wanted, format).await;
    }
    let label = Some(label.as_str()).filter(|label| !label.is_empty());
    let sources = sources(&service, &request, Wanted::new(&application, &profiles, label)).await?;
    answered(&service, &request, sources, RawFormat::Json, |sources| {
        let version = sources.read.revision.to_string();
        let list = sources.list()?;
        let (mut properties, mut left) = (Vec::with_capacity(list.len()), formatted_max(sources.bytes()));
        for (name, data) in list {
            let source: Map<String, Value> = flat(&data, left)?.into_iter().collect();
            let text = Object::new().value("name", &name).value("source", &source).finish();
            left = left.saturating_sub(text.len());
            properties.push(text);
        }
        let Wanted { application, profiles, label, .. } = &sources.wanted;
        let object =
            Object::new().value("name", application).value("profiles", profiles).value("label", label);
        let object = object.value("version", &version).value("state", &None::<&str>);
        Ok(object.raw("propertySources", &format!("[{}]", properties.join(","))).finish())
    })
    .await
}

/// Answers with all sources of an application as one document.
pub(super) async fn document(service: Service, request: ReadRequest) -> Result<Response, Problem> {
    let [file, ..] = request.names();
    match Wanted::of_file(&file, None) {
        Some((wanted, format)) => document_of(&service, &request, wanted, format).await,
        None => Err(Problem::UnknownPath),
    }
}

async fn document_of(
    service: &Service,
    request: &ReadRequest,
    wanted: Wanted,
    format: RawFormat,
) -> Result<Response, Problem> {
    let sources = sources(service, request, wanted).await?;
    answered(service, request, sources, format, move |sources| {
        let mut all = Map::new();
        for (_, data) in sources.list()?.into_iter().rev() {
            overlay(&mut all, data);
        }
        written(&Value::Object(all), format, sources.bytes())
    })
    .await
}

/// Puts data over others: objects member by member, everything else as a whole.
fn overlay(below: &mut Map<String, Value>, above: Map<String, Value>) {
    for (name, value) in above {
        match (below.get_mut(&name), value) {
            (Some(Value::Object(below)), Value::Object(above)) => overlay(below, above),
            (_, value) => drop(below.insert(name, value)),
        }
    }
}

/// Reads the configs that are sources.
async fn sources(service: &Service, request: &ReadRequest, wanted: Wanted) -> Result<Sources, Problem> {
    let violation =
        |name: &str, msg: String| Problem::violation(Violation::at(vec!["path".into(), name.into()], msg));
    let (consistency, ()) = request.params.with_consistency(Ok(()))?;
    if wanted.sources.len() > READ_PAST_CONFIGS_MAX {
        let msg = format!("these applications and profiles have more than {READ_PAST_CONFIGS_MAX} sources");
        return Err(violation("profiles", msg));
    }
    let at = match &wanted.label {
        None => None,
        Some(label) => {
            let revision: Option<Revision> = label.parse().ok().filter(|revision| *revision > 0);
            // Clients that name several labels go on to the next one.
            let text = "there is no such label: a label is a revision, or `latest`";
            Some(revision.ok_or_else(|| Refusal::NotThere(text.into()))?)
        }
    };
    if wanted.sources.is_empty() {
        return Err(violation("application", "neither the application nor a profile is a key".into()));
    }
    let configs = wanted.sources.iter().map(|one| one.config.clone()).collect();
    let bulk = BulkRequest { configs, at, reader: reader_of(request.headers())? };
    let mut read = service.reads.read_bulk(&request.principal, consistency, bulk).await?;
    let mut found = Vec::new();
    for (source, result) in wanted.sources.iter().zip(std::mem::take(&mut read.results)) {
        match result {
            ReadResult::Found(config) => found.push((source.clone(), config)),
            ReadResult::Refused(refusal @ Refusal::Forbidden { .. })
                if wanted.own.contains(&source.config.definition) =>
            {
                return Err(refusal.into());
            }
            ReadResult::Refused(_) => {}
        }
    }
    if found.is_empty() {
        return Err(Problem::rejected(Rejection::ConfigNotFound, read.state_revision));
    }
    if !read.redacted.is_empty() {
        return Err(Refusal::Forbidden { verb: Verb::Reveal }.into());
    }
    Ok(Sources { wanted, found, read })
}

impl Sources {
    /// The bytes of their data.
    fn bytes(&self) -> usize {
        self.found.iter().map(|(_, config)| config.data.len()).sum()
    }

    /// The sources, those of the highest precedence first.
    fn list(&self) -> Result<Vec<Source>, NotWritten> {
        let source = |(WantedSource { of, config: name }, config): &(WantedSource, Arc<Config>)| {
            let data = serde_json::from_str(&config.data)
                .map_err(|error| NotWritten::Malformed(error.to_string()))?;
            Ok((format!("concord:{of} ({}/{})", name.definition, name.key), data))
        };
        self.found.iter().map(source).collect()
    }
}

/// The response that is made of sources.
async fn answered(
    service: &Service,
    request: &ReadRequest,
    mut sources: Sources,
    format: RawFormat,
    make: impl FnOnce(&Sources) -> Result<String, NotWritten> + Send + 'static,
) -> Result<Response, Problem> {
    let (revision, may_compress) = (sources.read.state_revision, sources.read.may_compress);
    let bytes = sources.bytes();
    sources.read.reservation.grow(room_for(bytes))?;
    let text = if bytes <= INLINE_BYTES_MAX {
        make(&sources)
    } else {
        service.cx.run_long(move || make(&sources)).await?
    };
    let reply = Reply::text(format.media_type(), text?).state_revision(revision);
    Ok(reply.compressed_for(request.headers(), || may_compress).into_response())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn names(wanted: &Wanted) -> Vec<String> {
        wanted.sources.iter().map(|one| format!("{}/{}", one.config.definition, one.config.key)).collect()
    }

    #[test]
    fn profiles_are_configs_or_environments_and_the_last_one_counts_most() {
        let wanted = Wanted::new("shop", "eu,prod", None);
        let expected = [
            "prod.shop/default",
            "shop/prod",
            "prod.application/default",
            "application/prod",
            "eu.shop/default",
            "shop/eu",
            "eu.application/default",
            "application/eu",
            "shop/default",
            "application/default",
        ];
        assert_eq!(names(&wanted), expected);
        assert_eq!(wanted.own, BTreeSet::from(["shop".to_owned()]));
        let of: Vec<&str> = wanted.sources.iter().map(|one| one.of.as_str()).collect();
        assert_eq!((of[1], of[3], of[8], of[9]), ("shop-prod", "application-prod", "shop", "application"));
    }

    #[test]
    fn an_application_can_be_a_config() {
        let wanted = Wanted::new("services(_)shop", "default", Some("main"));
        assert_eq!(names(&wanted), ["services/shop", "application/default"]);
        assert_eq!(wanted.label, None);
        let wanted = Wanted::new("services(_)shop", "prod", Some("7"));
        let expected = [
            "prod.services/shop",
            "prod.application/default",
            "application/prod",
            "services/shop",
            "application/default",
        ];
        assert_eq!(names(&wanted), expected);
        assert_eq!(wanted.label.as_deref(), Some("7"));
    }

    #[test]
    fn a_later_application_counts_more_and_what_is_no_key_names_nothing() {
        assert_eq!(
            names(&Wanted::new("a,b,application", "x y", None)),
            ["application/default", "b/default", "a/default"]
        );
    }

    #[test]
    fn a_file_names_application_profile_and_format() {
        let (wanted, format) = Wanted::of_file("my-shop-prod.yml", None).unwrap();
        assert_eq!((wanted.application.as_str(), format), ("my-shop", RawFormat::Yaml));
        assert_eq!(wanted.profiles, ["prod"]);
        for none in ["shop.yml", "shop-prod", "shop-prod.xml", ".yml"] {
            assert_eq!(Wanted::of_file(none, None), None, "{none}");
        }
    }

    #[test]
    fn objects_are_put_over_each_other_and_lists_replaced() {
        let members = |value: Value| value.as_object().cloned().unwrap();
        let mut all = members(json!({"a": {"x": 1, "y": [1, 2]}, "b": 1}));
        overlay(&mut all, members(json!({"a": {"y": [3]}, "b": {"c": 2}, "d": null})));
        assert_eq!(Value::Object(all), json!({"a": {"x": 1, "y": [3]}, "b": {"c": 2}, "d": null}));
    }
}
