//! A field of a submitted object with its path, and the errors that were found.

use std::cell::{Cell, RefCell};

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::FieldError;

/// A present value of the object, with the path of its field.
#[derive(Clone)]
pub(super) struct Node<'a> {
    path: String,
    value: &'a Value,
    findings: &'a Findings,
}

/// The errors of one object.
pub(super) struct Findings {
    namespace: String,
    errors: RefCell<Vec<FieldError>>,
    omitted: Cell<usize>,
    malformed: Cell<bool>,
    /// How many more items of lists are read.
    items_left: Cell<usize>,
}

/// The maximum number of reported errors. The API server passes the message on to the client
/// unchanged.
pub(super) const MAX_ERRORS: usize = 20;

/// The maximum number of items in all lists of an object. The schemas of the Gateway API, which
/// have the largest bounds, allow 128 matches with 33 conditions each.
const MAX_ITEMS: usize = 8_192;

/// The length of a value in a message.
const MAX_VALUE: usize = 100;

impl Findings {
    pub(super) fn new(namespace: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            errors: RefCell::default(),
            omitted: Cell::new(0),
            malformed: Cell::new(false),
            items_left: Cell::new(MAX_ITEMS),
        }
    }

    pub(super) fn is_clean(&self) -> bool {
        self.errors.borrow().is_empty()
    }

    /// Whether the type of the resource cannot represent the object.
    pub(super) fn is_malformed(&self) -> bool {
        self.malformed.get()
    }

    pub(super) fn into_errors(self) -> (Vec<FieldError>, usize) {
        (self.errors.into_inner(), self.omitted.get())
    }

    fn add(&self, error: FieldError) {
        let mut errors = self.errors.borrow_mut();
        if errors.len() < MAX_ERRORS {
            errors.push(error);
        } else {
            self.omitted.set(self.omitted.get() + 1);
        }
    }
}

impl<'a> Node<'a> {
    pub(super) fn root(value: &'a Value, findings: &'a Findings) -> Self {
        Self {
            path: String::new(),
            value,
            findings,
        }
    }

    /// The namespace of the object, which is empty for an object of the cluster.
    pub(super) fn namespace(&self) -> &'a str {
        &self.findings.namespace
    }

    pub(super) fn is_object(&self) -> bool {
        self.value.is_object()
    }

    pub(super) fn value(&self) -> &'a Value {
        self.value
    }

    /// Returns a field of an object; `None` if it is absent or `null`.
    pub(super) fn get(&self, name: &str) -> Option<Self> {
        let value = self.value.get(name).filter(|value| !value.is_null())?;
        Some(self.at(self.path_of(name), value))
    }

    /// Returns a field that the type of the resource requires; reports a missing one.
    pub(super) fn require(&self, name: &str, fix: &str) -> Option<Self> {
        let found = self.get(name);
        if found.is_none() {
            self.missing(name, fix);
        }
        found
    }

    /// Returns the fields of an object; reports another type.
    pub(super) fn object(&self) -> Option<&'a Map<String, Value>> {
        let object = self.value.as_object();
        if object.is_none() {
            self.malformed("is not an object", "write an object with fields");
        }
        object
    }

    /// Returns the items of a list; reports another type, and a `null` item.
    pub(super) fn items(&self) -> Vec<Self> {
        let Some(items) = self.value.as_array() else {
            self.malformed("is not a list", "write a list");
            return Vec::new();
        };
        let left = self.findings.items_left.get();
        if items.len() > left {
            let problem = format!("exceeds the {MAX_ITEMS} items that all lists of an object have");
            self.error(None, &problem, "split the object");
            self.findings.items_left.set(0);
            return Vec::new();
        }
        self.findings.items_left.set(left - items.len());
        let items = items.iter().enumerate();
        items
            .map(|(at, value)| self.at(format!("{}[{at}]", self.path), value))
            .filter(|item| {
                if item.value.is_null() {
                    item.malformed("is not a value", "remove the item");
                }
                !item.value.is_null()
            })
            .collect()
    }

    /// Returns the items of an optional list.
    pub(super) fn items_of(&self, name: &str) -> Vec<Self> {
        self.get(name).map(|list| list.items()).unwrap_or_default()
    }

    /// Returns a text; reports another type.
    pub(super) fn text(&self) -> Option<&'a str> {
        let text = self.value.as_str();
        if text.is_none() {
            self.malformed("is not a text", "write a text, in quotes if it is a number");
        }
        text
    }

    /// Returns the text of an optional field.
    pub(super) fn text_of(&self, name: &str) -> Option<&'a str> {
        self.get(name)?.text()
    }

    /// Returns a boolean; reports another type.
    pub(super) fn boolean(&self) -> Option<bool> {
        let boolean = self.value.as_bool();
        if boolean.is_none() {
            self.malformed("is not a boolean", "write true or false");
        }
        boolean
    }

    /// Returns an integer of the range of a type; reports others.
    pub(super) fn integer<T: TryFrom<i64>>(&self, expected: &str) -> Option<T> {
        let number = self.value.as_i64().and_then(|it| T::try_from(it).ok());
        if number.is_none() {
            self.malformed(&format!("is not {expected}"), &format!("write {expected}"));
        }
        number
    }

    /// Reports a text that is not a value of an enumeration.
    pub(super) fn one_of<'t>(&self, allowed: &[&'t str]) -> Option<&'t str> {
        let text = self.text()?;
        let found = allowed.iter().find(|allowed| **allowed == text);
        if found.is_none() {
            let problem = "is not a value of this field";
            self.malformed(problem, &format!("write {}", alternatives(allowed)));
        }
        found.copied()
    }

    /// Returns the value as a type that deserializes it; reports one that it cannot represent.
    pub(super) fn read<T: DeserializeOwned>(&self, fix: &str) -> Option<T> {
        // From a reference, so that the value is not copied.
        match T::deserialize(self.value) {
            Ok(value) => Some(value),
            Err(error) => {
                let problem = format!("cannot be read ({})", excerpt(&error.to_string()));
                self.malformed(&problem, fix);
                None
            }
        }
    }

    /// Reports a value that a type cannot represent, if no error of its fields has been reported,
    /// which would be more precise.
    pub(super) fn expect_type<T: DeserializeOwned>(&self, fix: &str) {
        if self.findings.is_clean() {
            self.read::<T>(fix);
        }
    }

    /// Reports a value that violates a rule.
    pub(super) fn invalid(&self, problem: &str, fix: &str) {
        self.error(Some(json(self.value)), problem, fix);
    }

    /// Reports a value that the type of the resource cannot represent.
    pub(super) fn malformed(&self, problem: &str, fix: &str) {
        self.findings.malformed.set(true);
        self.invalid(problem, fix);
    }

    /// Reports an absent field that the type of the resource requires.
    pub(super) fn missing(&self, name: &str, fix: &str) {
        self.findings.malformed.set(true);
        self.absent(name, "is missing", fix);
    }

    /// Reports an absent field that a rule requires.
    pub(super) fn absent(&self, name: &str, problem: &str, fix: &str) {
        self.findings.add(FieldError {
            field: self.path_of(name),
            value: None,
            problem: problem.to_owned(),
            fix: fix.to_owned(),
        });
    }

    /// Reports an error of the value as a whole, whose JSON would say nothing.
    pub(super) fn conflict(&self, problem: &str, fix: &str) {
        self.error(None, problem, fix);
    }

    fn error(&self, value: Option<String>, problem: &str, fix: &str) {
        let field = match self.path.as_str() {
            "" => "object",
            path => path,
        };
        self.findings.add(FieldError {
            field: field.to_owned(),
            value,
            problem: problem.to_owned(),
            fix: fix.to_owned(),
        });
    }

    fn at(&self, path: String, value: &'a Value) -> Self {
        Self {
            path,
            value,
            findings: self.findings,
        }
    }

    /// Keys of annotations contain dots, and are quoted.
    fn path_of(&self, name: &str) -> String {
        let name = excerpt(name);
        if name.contains(['.', '/']) {
            format!("{}[{name:?}]", self.path)
        } else if self.path.is_empty() {
            name
        } else {
            format!("{}.{name}", self.path)
        }
    }
}

/// Returns the start of a text, which comes from the client, for a message.
pub(super) fn excerpt(text: &str) -> String {
    let mut shown: String = text.chars().take(MAX_VALUE).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    shown
}

/// Returns the start of the JSON of a value. Its control characters are escaped.
fn json(value: &Value) -> String {
    match value {
        Value::String(text) => format!("{:?}", excerpt(text)),
        Value::Array(list) if list.is_empty() => "[]".to_owned(),
        Value::Array(list) => format!("a list of {}", list.len()),
        Value::Object(fields) if fields.is_empty() => "{}".to_owned(),
        Value::Object(fields) => {
            let names: Vec<String> = fields.keys().take(4).map(|name| excerpt(name)).collect();
            excerpt(&format!("an object with {}", names.join(", ")))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value.to_string(),
    }
}

/// Returns `a, b or c`.
pub(super) fn alternatives(texts: &[&str]) -> String {
    match texts {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}
