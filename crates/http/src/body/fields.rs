//! The members of request bodies.
//!
//! One function declares a body by reading it:
//!
//! ```ignore
//! fn read(fields: &mut BodyFields) -> ConfigCreation {
//!     let key = fields.required("config_key", &KEY);
//!     ConfigCreation { key, data: Document::new(fields.required("data", &DATA)) }
//! }
//! ```
//!
//! [`BodyFields::read`] runs it on a body and collects every wrong member. [`schema_of`] runs it without a body,
//! records the members that it asks for, and makes the schema of the `OpenAPI` document of them. So the two cannot
//! differ.
//!
//! A member that `read` does not ask for is an error: a misspelt condition would be no condition. The bodies of the
//! specification are read by [`BodyFields::read_leniently`]. Their clients may send more, and are told of it.
//!
//! **Invariant:** a body is rejected if any member is wrong: the values that stand in for wrong members are never used.

use serde_json::{Map, Value};
use utoipa::openapi::{
    ArrayBuilder, ObjectBuilder, RefOr, Schema, Type,
    schema::{OneOfBuilder, SchemaType},
};

use crate::{
    openapi::schemas::{object, paths, reference, text},
    reply::{Detail, Problem},
};
use concord_model::{
    error::{Invalid, LocSegment, Violation},
    limits::{KEY_BYTES_MAX, Limits, VIOLATIONS_MAX},
    patch::{Patch, PatchFormat, ShapeErrorKind},
};
use concord_service::Refusal;

/// How many ignored members a warning names at most.
pub(crate) const IGNORED_NAMES_MAX: usize = 5;

/// What a member holds: how it is read, and its schema.
pub(crate) struct FieldType<T> {
    /// `None` if the value is wrong: then the error has been added.
    pub(crate) read: fn(Value, &mut BodyFields) -> Option<T>,
    pub(crate) schema: fn(&Limits) -> RefOr<Schema>,
}

/// The key of a definition or config. The service validates it.
pub(crate) const KEY: FieldType<String> = FieldType { read: string, schema: |_| reference("Key") };

/// A list of indexed or unique paths. The service validates them.
pub(crate) const PATHS: FieldType<Vec<String>> =
    FieldType { read: |value, fields| fields.list(value, string), schema: |limits| paths(limits).into() };

/// The members of a body, or of an object in it, and the errors that were found so far.
#[derive(Default)]
pub(crate) struct BodyFields {
    object: Map<String, Value>,
    /// The location of `object`, or of the member that is read.
    path: Vec<PathStep>,
    /// What the locations of violations begin with.
    violation_root: Option<&'static str>,
    details: Vec<Detail>,
    violations: Vec<Violation>,
    /// Recorded if only the schema is wanted.
    declared: Option<Vec<DeclaredField>>,
    /// The names of unknown members, if they are no errors.
    ignored: Option<Vec<String>>,
}

#[derive(Clone, Copy)]
enum PathStep {
    Member(&'static str),
    Element(u64),
}

struct DeclaredField {
    name: &'static str,
    schema: fn(&Limits) -> RefOr<Schema>,
    presence: Presence,
}

#[derive(Clone, Copy)]
struct Presence {
    is_required: bool,
    takes_null: bool,
}

impl BodyFields {
    /// Reads a body, which must be an object.
    ///
    /// # Errors
    /// All errors of shape. If there are none, all violations that `read` has added.
    pub(crate) fn read<T>(body: Value, read: impl FnOnce(&mut Self) -> T) -> Result<T, Problem> {
        Self::default().read_all(body, |body, fields| fields.object(body, read))
    }

    /// The same for a body that may have unknown members. Returns their names.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub(crate) fn read_leniently<T>(
        body: Value,
        read: impl FnOnce(&mut Self) -> T,
    ) -> Result<(T, Vec<String>), Problem> {
        let fields = Self { ignored: Some(Vec::new()), ..Self::default() };
        fields.read_all(body, |body, fields| {
            let made = fields.object(body, read)?;
            Some((made, fields.ignored.take().unwrap_or_default()))
        })
    }

    /// Reads a body that need not be an object. Locations of violations begin with `violation_root`.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub(crate) fn read_value<T>(
        violation_root: &'static str,
        body: Value,
        read: impl FnOnce(Value, &mut Self) -> Option<T>,
    ) -> Result<T, Problem> {
        Self { violation_root: Some(violation_root), ..Self::default() }.read_all(body, read)
    }

    fn read_all<T>(
        mut self,
        body: Value,
        read: impl FnOnce(Value, &mut Self) -> Option<T>,
    ) -> Result<T, Problem> {
        let made = read(body, &mut self);
        if !self.details.is_empty() {
            return Err(Problem::Shape(self.details));
        }
        match made {
            Some(made) if self.violations.is_empty() => Ok(made),
            Some(_) | None => Err(Refusal::Invalid(Invalid::Violations(self.violations)).into()),
        }
    }

    /// A member that must be there. Its default stands in for it if it is wrong.
    pub(crate) fn required<T: Default>(&mut self, name: &'static str, kind: &FieldType<T>) -> T {
        let presence = Presence { is_required: true, takes_null: false };
        self.member(name, kind, presence).flatten().unwrap_or_default()
    }

    /// A member that must be there and may be null.
    pub(crate) fn required_or_null<T>(&mut self, name: &'static str, kind: &FieldType<T>) -> Option<T> {
        self.member(name, kind, Presence { is_required: true, takes_null: true }).flatten()
    }

    /// A member that may be absent, and is not null.
    pub(crate) fn optional<T>(&mut self, name: &'static str, kind: &FieldType<T>) -> Option<T> {
        self.member(name, kind, Presence { is_required: false, takes_null: false }).flatten()
    }

    /// A member that may be absent or null, which mean the same.
    pub(crate) fn nullable<T>(&mut self, name: &'static str, kind: &FieldType<T>) -> Option<T> {
        self.nullable_if_present(name, kind).flatten()
    }

    /// A member for which absence and null (`Some(None)`) have different meanings.
    pub(crate) fn nullable_if_present<T>(
        &mut self,
        name: &'static str,
        kind: &FieldType<T>,
    ) -> Option<Option<T>> {
        self.member(name, kind, Presence { is_required: false, takes_null: true })
    }

    /// A member that is read only to reject it, so the document does not have it.
    pub(crate) fn unlisted<T>(&mut self, name: &'static str, kind: &FieldType<T>) -> Option<T> {
        let declared = self.declared.take();
        let value = self.optional(name, kind);
        self.declared = declared;
        value
    }

    /// Whether the object has this member, which is not unknown then. The document does not have it.
    pub(crate) fn has(&mut self, name: &str) -> bool {
        self.object.remove(name).is_some()
    }

    /// Ignores the members that are left, because an error says already why they can't be read.
    pub(crate) fn skip_rest(&mut self) {
        self.object.clear();
    }

    fn member<T>(
        &mut self,
        name: &'static str,
        kind: &FieldType<T>,
        presence: Presence,
    ) -> Option<Option<T>> {
        if let Some(declared) = &mut self.declared {
            declared.push(DeclaredField { name, schema: kind.schema, presence });
        }
        match self.object.remove(name) {
            Some(Value::Null) if presence.takes_null => Some(None),
            Some(value) => Some(self.below(PathStep::Member(name), |fields| (kind.read)(value, fields))),
            None => {
                if presence.is_required {
                    self.below(PathStep::Member(name), |fields| {
                        fields.shape_error(&[], "field required", "missing");
                    });
                }
                None
            }
        }
    }

    fn below<T>(&mut self, step: PathStep, read: impl FnOnce(&mut Self) -> T) -> T {
        self.path.push(step);
        let made = read(self);
        self.path.pop();
        made
    }

    /// The members of an object, read by `read`.
    pub(crate) fn object<T>(&mut self, value: Value, read: impl FnOnce(&mut Self) -> T) -> Option<T> {
        let Value::Object(object) = value else {
            self.shape_error(&[], "input should be a valid object", "model_attributes_type");
            return None;
        };
        let outer = std::mem::replace(&mut self.object, object);
        let made = read(self);
        let unknown = std::mem::replace(&mut self.object, outer);
        let mut unknown: Vec<String> = unknown.into_iter().map(|(name, _)| name).collect();
        unknown.sort_unstable();
        unknown.into_iter().for_each(|name| self.note_unknown(name));
        Some(made)
    }

    fn note_unknown(&mut self, name: String) {
        match &mut self.ignored {
            Some(ignored) => {
                if ignored.len() < IGNORED_NAMES_MAX {
                    ignored.push(name);
                }
            }
            None => {
                let name: String = name.chars().take(KEY_BYTES_MAX).collect();
                self.shape_error(&[name.as_str().into()], "this member is unknown here", "extra_forbidden");
            }
        }
    }

    /// The elements of a list, each read by `read`, without the wrong ones.
    pub(crate) fn list<T>(
        &mut self,
        value: Value,
        read: impl FnMut(Value, &mut Self) -> Option<T>,
    ) -> Option<Vec<T>> {
        self.bounded_list(value, usize::MAX, "", read)
    }

    /// A list of at most `length_max` elements; `too_long` is the violation of a longer one.
    pub(crate) fn bounded_list<T>(
        &mut self,
        value: Value,
        length_max: usize,
        too_long: &str,
        mut read: impl FnMut(Value, &mut Self) -> Option<T>,
    ) -> Option<Vec<T>> {
        let Value::Array(items) = value else {
            self.shape_error(&[], "input should be a valid list", "list_type");
            return None;
        };
        if items.len() > length_max {
            self.violation(&[], too_long);
            return None;
        }
        let element = |(place, item)| self.below(PathStep::Element(place), |fields| read(item, fields));
        Some((0..).zip(items).filter_map(element).collect())
    }

    /// Adds an error in the shape of the body, below the current location.
    pub(crate) fn shape_error(&mut self, below: &[LocSegment], msg: &'static str, kind: &'static str) {
        // A response has no room for more.
        if self.details.len() < VIOLATIONS_MAX {
            let loc = self.loc(Some("body"), below);
            self.details.push(Detail { loc, msg: msg.into(), kind });
        }
    }

    /// Adds a violation below the current location.
    pub(crate) fn violation(&mut self, below: &[LocSegment], msg: impl Into<String>) {
        if self.violations.len() < VIOLATIONS_MAX {
            let loc = self.loc(self.violation_root, below);
            self.violations.push(Violation::at(loc, msg));
        }
    }

    /// Adds a violation in a member.
    pub(crate) fn violation_in(&mut self, name: &str, msg: impl Into<String>) {
        self.violation(&[name.into()], msg);
    }

    fn loc(&self, root: Option<&'static str>, below: &[LocSegment]) -> Vec<LocSegment> {
        let step = |step: &PathStep| match step {
            PathStep::Member(name) => (*name).into(),
            PathStep::Element(place) => LocSegment::Index(*place),
        };
        root.into_iter()
            .map(LocSegment::from)
            .chain(self.path.iter().map(step))
            .chain(below.iter().cloned())
            .collect()
    }

    /// A patch. Errors in it are added.
    pub(crate) fn patch(&mut self, format: PatchFormat, patch: &Value) {
        for error in Patch::check_shape(format, patch) {
            let (msg, kind) = match error.kind {
                ShapeErrorKind::Missing => ("field required", "missing"),
                ShapeErrorKind::NotText => ("input should be a valid string", "string_type"),
                ShapeErrorKind::NotList => ("input should be a valid list", "list_type"),
                ShapeErrorKind::NotObject => ("input should be a valid object", "model_attributes_type"),
                ShapeErrorKind::Wrong(msg) => {
                    self.violation(&error.loc, msg);
                    continue;
                }
            };
            self.shape_error(&error.loc, msg, kind);
        }
    }
}

pub(crate) fn string(value: Value, fields: &mut BodyFields) -> Option<String> {
    let Value::String(text) = value else {
        fields.shape_error(&[], "input should be a valid string", "string_type");
        return None;
    };
    Some(text)
}

/// A text of which only `word` is valid; `otherwise` is the violation of any other.
pub(crate) fn word(value: Value, fields: &mut BodyFields, word: &str, otherwise: &str) -> Option<()> {
    if string(value, fields)? != word {
        fields.violation(&[], otherwise);
    }
    Some(())
}

/// A non-negative integer.
pub(crate) fn integer(value: Value, fields: &mut BodyFields) -> Option<u64> {
    let number = value.as_u64();
    if number.is_none() {
        fields.shape_error(&[], "input should be a valid integer", "int_type");
    }
    number
}

pub(crate) fn boolean(value: Value, fields: &mut BodyFields) -> Option<bool> {
    let boolean = value.as_bool();
    if boolean.is_none() {
        fields.shape_error(&[], "input should be a valid boolean", "bool_type");
    }
    boolean
}

/// An object whose members Concord does not define: data or a JSON schema.
pub(crate) fn any_object(value: Value, fields: &mut BodyFields) -> Option<Value> {
    if value.is_object() {
        return Some(value);
    }
    fields.shape_error(&[], "input should be a valid object", "dict_type");
    None
}

/// The schema of the bodies that `read` reads.
pub(crate) fn schema_of<T>(limits: &Limits, read: impl FnOnce(&mut BodyFields) -> T) -> ObjectBuilder {
    let mut fields = BodyFields { declared: Some(Vec::new()), ..BodyFields::default() };
    read(&mut fields);
    fields.declared.unwrap_or_default().into_iter().fold(object(), |object, field| {
        let schema = (field.schema)(limits);
        let schema = if field.presence.takes_null { or_null(schema) } else { schema };
        let object = object.property(field.name, schema);
        if field.presence.is_required { object.required(field.name) } else { object }
    })
}

fn or_null(schema: RefOr<Schema>) -> RefOr<Schema> {
    match schema {
        RefOr::T(Schema::Object(mut object)) => {
            if let SchemaType::Type(kind) = object.schema_type {
                object.schema_type = SchemaType::Array(vec![kind, Type::Null]);
            }
            RefOr::T(Schema::Object(object))
        }
        RefOr::T(Schema::OneOf(mut any)) => {
            any.items.push(ObjectBuilder::new().schema_type(Type::Null).into());
            RefOr::T(Schema::OneOf(any))
        }
        other @ (RefOr::Ref(_) | RefOr::T(_)) => {
            OneOfBuilder::new().item(other).item(ObjectBuilder::new().schema_type(Type::Null)).into()
        }
    }
}

/// A list of at most `length_max` elements.
pub(crate) fn array(items: impl Into<RefOr<Schema>>, length_max: usize) -> ArrayBuilder {
    ArrayBuilder::new().items(items.into()).max_items(Some(length_max))
}

/// A text that is always the same.
pub(crate) fn constant(word: &str) -> ObjectBuilder {
    text().enum_values(Some([word]))
}
