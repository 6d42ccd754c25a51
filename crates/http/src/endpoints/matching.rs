//! Which row is that of a request.
//!
//! The paths of the rows are a tree of segments. A path is split once on its way down: at each node a segment is one of
//! a few literals, or a parameter. Segments are compared as they are sent; what is encoded in a name is decoded later,
//! by whoever needs it.
//!
//! **Invariants:** nothing is allocated for a path, and one that is longer than any template is not read to its end. A
//! parameter may be empty, which is no key and no name.

use std::{borrow::Cow, sync::LazyLock};

use http::{HeaderValue, Method, Uri};
use percent_encoding::percent_decode_str;

use super::{Endpoint, EndpointMethod, RequiredRight, rows};

/// Most paths are below it, so it is compared as a whole.
const BASE: &str = "/api/v1/";
/// Below these, GET and HEAD of a path that there is not need no key either.
const OPEN_FOLDERS: [&str; 2] = ["/docs/", "/ui/"];
/// The most parameters of a path.
const PARAMETERS_MAX: usize = 3;

/// The rows by path.
pub(crate) static TABLE: LazyLock<RouteTable> = LazyLock::new(RouteTable::new);

/// A path with its rows.
#[derive(Debug)]
pub(crate) struct Route {
    /// As metrics and the audit log name it.
    pub(crate) template: &'static str,
    /// Its place among all routes.
    pub(crate) number: usize,
    /// The names of its parameters.
    names: Vec<&'static str>,
    /// The methods that it takes, as `Allow` has them.
    pub(crate) allow: HeaderValue,
    endpoints: Vec<&'static Endpoint>,
}

#[derive(Debug, Default)]
struct RouteNode {
    literals: Vec<(&'static str, Self)>,
    parameter: Option<Box<Self>>,
    route: Option<usize>,
}

/// All routes, and the trees by which they are found.
#[derive(Debug)]
pub(crate) struct RouteTable {
    routes: Vec<Route>,
    /// Those below [`BASE`].
    api: RouteNode,
    others: RouteNode,
    /// Those whose one parameter is the rest of the path: what is before it, and their numbers.
    tails: Vec<(&'static str, usize)>,
}

/// Where a parameter stands in a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct KeySpan {
    from: u16,
    to: u16,
}

/// What a request asks for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Matched {
    /// None for a path that there is not.
    pub(crate) route: Option<&'static Route>,
    /// None where the path does not take the method.
    pub(crate) endpoint: Option<&'static Endpoint>,
    parameters: [KeySpan; PARAMETERS_MAX],
}

impl RouteTable {
    fn new() -> Self {
        let (api, others) = (RouteNode::default(), RouteNode::default());
        let mut table = Self { routes: Vec::new(), api, others, tails: Vec::new() };
        for endpoint in rows::ENDPOINTS {
            table.add(endpoint);
        }
        for route in &mut table.routes {
            route.allow = allow(&route.endpoints);
        }
        table
    }

    fn add(&mut self, endpoint: &'static Endpoint) {
        let template = endpoint.template();
        if let Some((before, name)) = template.split_once("{*") {
            let (number, name) = (self.routes.len(), name.trim_end_matches('}'));
            self.tails.push((before, number));
            self.routes.push(Route::new(template, number, vec![name]));
            self.routes[number].endpoints.push(endpoint);
            return;
        }
        let (mut node, below) = match template.strip_prefix(BASE) {
            Some(below) => (&mut self.api, below),
            None => (&mut self.others, template.strip_prefix('/').unwrap_or(template)),
        };
        let mut names = Vec::new();
        for segment in below.split('/') {
            node = match segment.strip_prefix('{').and_then(|name| name.strip_suffix('}')) {
                Some(name) => {
                    names.push(name);
                    node.parameter.get_or_insert_default()
                }
                None => node.literal(segment),
            };
        }
        let number = *node.route.get_or_insert(self.routes.len());
        if number == self.routes.len() {
            self.routes.push(Route::new(template, number, names));
        }
        self.routes[number].endpoints.push(endpoint);
    }

    /// All routes, by their numbers.
    pub(crate) fn routes(&self) -> &[Route] {
        &self.routes
    }

    /// What a request asks for.
    pub(crate) fn find(&'static self, method: &Method, path: &str) -> Matched {
        let mut matched = Matched { route: None, endpoint: None, parameters: Default::default() };
        let (tree, below) = match path.strip_prefix(BASE) {
            Some(below) => (&self.api, below),
            None => match path.strip_prefix('/') {
                Some(below) => {
                    if let Some((before, number)) =
                        self.tails.iter().find(|(before, _)| path.starts_with(before))
                    {
                        return self.with_tail(path, before.len(), *number, method);
                    }
                    (&self.others, below)
                }
                None => return matched,
            },
        };
        let from = path.len() - below.len();
        let (below, has_slash) = below.strip_suffix('/').map_or((below, false), |below| (below, true));
        let number = tree.find(below, from, &mut matched.parameters, 0);
        let route = number.and_then(|number| self.routes.get(number));
        matched.route = route.filter(|route| !has_slash || route.takes_slash());
        matched.endpoint = matched.route.and_then(|route| route.endpoint(method));
        matched
    }

    /// What a request asks for whose parameter begins here.
    fn with_tail(&'static self, path: &str, from: usize, number: usize, method: &Method) -> Matched {
        let mut parameters: [KeySpan; PARAMETERS_MAX] = Default::default();
        // Hyper takes no longer path.
        if let (Ok(from), Ok(to)) = (u16::try_from(from), u16::try_from(path.len())) {
            parameters[0] = KeySpan { from, to };
        }
        let route = self.routes.get(number);
        Matched { route, endpoint: route.and_then(|route| route.endpoint(method)), parameters }
    }
}

impl RouteNode {
    /// The node below a literal; a new one where there is none.
    fn literal(&mut self, segment: &'static str) -> &mut Self {
        let known = self.literals.iter().position(|(literal, _)| *literal == segment);
        let place = known.unwrap_or_else(|| {
            self.literals.push((segment, Self::default()));
            self.literals.len() - 1
        });
        &mut self.literals[place].1
    }

    /// The number of the route of a path below this node. `from` is where it begins in the whole path, `depth` how many
    /// parameters are above.
    fn find(
        &self,
        path: &str,
        from: usize,
        parameters: &mut [KeySpan; PARAMETERS_MAX],
        depth: usize,
    ) -> Option<usize> {
        let (segment, rest) = match path.split_once('/') {
            Some((segment, rest)) => (segment, Some(rest)),
            None => (path, None),
        };
        let to = from + segment.len();
        let go_on = |node: &Self, parameters: &mut _, depth| match rest {
            None => node.route,
            Some(rest) => node.find(rest, to + 1, parameters, depth),
        };
        let literal = self.literals.iter().find(|(literal, _)| *literal == segment);
        if let Some(found) = literal.and_then(|(_, node)| go_on(node, parameters, depth)) {
            return Some(found);
        }
        let node = self.parameter.as_ref()?;
        // Hyper takes no longer path.
        let (from, to) = (u16::try_from(from).ok()?, u16::try_from(to).ok()?);
        *parameters.get_mut(depth)? = KeySpan { from, to };
        go_on(node, parameters, depth + 1)
    }
}

impl Route {
    fn new(template: &'static str, number: usize, names: Vec<&'static str>) -> Self {
        let allow = HeaderValue::from_static("");
        Self { template, number, names, allow, endpoints: Vec::new() }
    }

    /// Whether it speaks the protocol of Consul, whatever the method.
    pub(crate) fn is_consul(&self) -> bool {
        self.endpoints.first().is_some_and(|endpoint| endpoint.is_consul)
    }

    /// Whether the document has it.
    #[cfg(test)]
    pub(crate) fn is_documented(&self) -> bool {
        self.endpoints.iter().all(|endpoint| endpoint.is_documented)
    }

    fn endpoint(&self, method: &Method) -> Option<&'static Endpoint> {
        let method = EndpointMethod::of(method)?;
        self.endpoints.iter().copied().find(|endpoint| endpoint.method == method)
    }

    fn takes_slash(&self) -> bool {
        self.endpoints.first().is_some_and(|endpoint| endpoint.takes_slash)
    }
}

/// The value of `Allow`.
fn allow(endpoints: &[&Endpoint]) -> HeaderValue {
    let mut methods: Vec<Method> = Vec::new();
    for endpoint in endpoints {
        methods.push(endpoint.method.http());
        methods.extend(endpoint.takes_head.then_some(Method::HEAD));
    }
    let names: Vec<&str> = methods.iter().map(Method::as_str).collect();
    HeaderValue::from_str(&names.join(",")).expect("names of methods are visible ASCII")
}

impl Matched {
    /// The path as metrics and the audit log name it.
    pub(crate) fn template(&self) -> Option<&'static str> {
        self.route.map(|route| route.template)
    }

    /// Whether a request needs no key.
    pub(crate) fn is_open(&self, method: &Method, path: &str) -> bool {
        match self.endpoint {
            Some(endpoint) => endpoint.right == RequiredRight::Open,
            None => {
                self.route.is_none() && is_get(method) && OPEN_FOLDERS.iter().any(|one| path.starts_with(one))
            }
        }
    }

    /// Whether a request may change something. What is rejected for its path or method counts by its method.
    pub(crate) fn is_write(&self, method: &Method) -> bool {
        self.endpoint.map_or_else(|| !is_get(method), Endpoint::is_write)
    }

    /// The names and the values of the path's parameters, not decoded.
    pub(crate) fn parameters<'a>(&self, uri: &'a Uri) -> impl Iterator<Item = (&'static str, &'a str)> {
        let names = self.route.map_or(&[][..], |route| route.names.as_slice());
        let texts = self.parameters.map(|span| span.of(uri));
        names.iter().copied().zip(texts)
    }

    /// The key of the definition that the path names, decoded but not validated; empty where it names none. Bytes that
    /// are not UTF-8 become a replacement character, which no key contains.
    pub(crate) fn definition<'a>(&self, uri: &'a Uri) -> Cow<'a, str> {
        self.key(uri, 0, "definition")
    }

    /// The same of the config.
    pub(crate) fn config<'a>(&self, uri: &'a Uri) -> Cow<'a, str> {
        self.key(uri, 1, "config")
    }

    fn key<'a>(&self, uri: &'a Uri, place: usize, name: &str) -> Cow<'a, str> {
        if self.route.and_then(|route| route.names.get(place)) != Some(&name) {
            return Cow::Borrowed("");
        }
        let text = self.parameters.get(place).map_or("", |span| span.of(uri));
        // Most are not encoded, and this is a search for one byte.
        if text.contains('%') { percent_decode_str(text).decode_utf8_lossy() } else { Cow::Borrowed(text) }
    }

    /// The parameter of the path that is no key, decoded. One whose bytes are not UTF-8 is a replacement character,
    /// which no name has, so that it is answered as any other unknown name.
    pub(crate) fn name(&self, uri: &Uri) -> String {
        let is_key = self.route.is_none_or(|route| route.names.first() == Some(&"definition"));
        if is_key { String::new() } else { self.parameters[0].name(uri) }
    }

    /// Three such parameters; empty where the path has fewer.
    pub(crate) fn names(&self, uri: &Uri) -> [String; PARAMETERS_MAX] {
        self.parameters.map(|span| span.name(uri))
    }
}

impl KeySpan {
    fn of(self, uri: &Uri) -> &str {
        uri.path().get(usize::from(self.from)..usize::from(self.to)).unwrap_or_default()
    }

    fn name(self, uri: &Uri) -> String {
        let text = percent_decode_str(self.of(uri)).decode_utf8();
        text.map_or_else(|_| char::REPLACEMENT_CHARACTER.into(), Cow::into_owned)
    }
}

fn is_get(method: &Method) -> bool {
    method == Method::GET || method == Method::HEAD
}
