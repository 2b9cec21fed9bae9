//! Deserialization that counts the memory of the values that it builds, before they grow.
//!
//! A short text may become a large value: an element `{}` of a list of containers takes three bytes
//! of JSON and a kilobyte of memory. Formats and types do not limit that, so [`Metered`] wraps a
//! deserializer, and all that it passes to visitors, and charges lists, maps and texts to a
//! [`Budget`] by the sizes of their types. A value is abandoned at the first refused charge.
//!
//! [`super::review`] reads reviews and their objects with it.

use std::fmt;

use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, MapAccess, SeqAccess, VariantAccess, Visitor,
};

/// Memory for deserialized values.
pub(super) trait Budget {
    /// Takes a number of bytes, and returns whether they were left.
    fn take(&self, bytes: usize) -> bool;
}

/// A deserializer, visitor, seed or access that charges the values that it builds.
pub(super) struct Metered<'m, T> {
    inner: T,
    budget: &'m dyn Budget,
    /// Whether the entries of a map become the entries of a map, and not fields of a struct, whose
    /// memory belongs to the value that contains it.
    entries: bool,
}

/// A list that is being read.
struct MeteredSeq<'m, A> {
    inner: A,
    budget: &'m dyn Budget,
    elements: usize,
    /// The elements that the vector has room for.
    capacity: usize,
}

/// A map or struct that is being read.
struct MeteredMap<'m, A> {
    inner: A,
    budget: &'m dyn Budget,
    entries: bool,
    count: usize,
    key_size: usize,
}

/// Blocks of the allocator are multiples of it.
const ALIGNMENT: usize = 16;

/// The entries that a node of a B-tree has room for, the fewest that it has after a split, and its
/// pointers and lengths.
const NODE_CAPACITY: usize = 11;
const NODE_ENTRIES: usize = 5;
const NODE_OVERHEAD: usize = 112;

impl<'m, T> Metered<'m, T> {
    pub(super) fn new(inner: T, budget: &'m dyn Budget) -> Self {
        Self {
            inner,
            budget,
            entries: true,
        }
    }

    fn fields(inner: T, budget: &'m dyn Budget) -> Self {
        Self {
            entries: false,
            ..Self::new(inner, budget)
        }
    }

    fn charge_text<E: serde::de::Error>(&self, bytes: usize) -> Result<(), E> {
        charge(self.budget, bytes.next_multiple_of(ALIGNMENT))
    }
}

fn charge<E: serde::de::Error>(budget: &dyn Budget, bytes: usize) -> Result<(), E> {
    if bytes == 0 || budget.take(bytes) {
        Ok(())
    } else {
        Err(E::custom("the memory of the review is used up"))
    }
}

/// Forwards methods of a deserializer; `$wrap` decides how the entries of maps count.
macro_rules! deserialize {
    ($wrap:ident: $($method:ident($($argument:ident: $type:ty),*)),* $(,)?) => {
        $(fn $method<V: Visitor<'de>>(
            self,
            $($argument: $type,)*
            visitor: V,
        ) -> Result<V::Value, Self::Error> {
            self.inner.$method($($argument,)* Metered::$wrap(visitor, self.budget))
        })*
    };
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Metered<'_, D> {
    type Error = D::Error;

    deserialize!(new: deserialize_any(), deserialize_bool(), deserialize_i8(), deserialize_i16(),
        deserialize_i32(), deserialize_i64(), deserialize_i128(), deserialize_u8(),
        deserialize_u16(), deserialize_u32(), deserialize_u64(), deserialize_u128(),
        deserialize_f32(), deserialize_f64(), deserialize_char(), deserialize_str(),
        deserialize_string(), deserialize_bytes(), deserialize_byte_buf(), deserialize_option(),
        deserialize_unit(), deserialize_seq(), deserialize_map(), deserialize_identifier(),
        deserialize_tuple(len: usize));
    deserialize!(fields: deserialize_unit_struct(name: &'static str),
        deserialize_newtype_struct(name: &'static str),
        deserialize_tuple_struct(name: &'static str, len: usize),
        deserialize_struct(name: &'static str, fields: &'static [&'static str]),
        deserialize_enum(name: &'static str, variants: &'static [&'static str]));

    /// Builds nothing.
    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        self.inner.deserialize_ignored_any(visitor)
    }

    fn is_human_readable(&self) -> bool {
        self.inner.is_human_readable()
    }
}

/// Forwards values without memory of their own.
macro_rules! visit_scalars {
    ($($method:ident: $type:ty),* $(,)?) => {
        $(fn $method<E: serde::de::Error>(self, value: $type) -> Result<V::Value, E> {
            self.inner.$method(value)
        })*
    };
}

/// Charges texts, whether the visitor copies them or not.
macro_rules! visit_texts {
    ($($method:ident: $type:ty),* $(,)?) => {
        $(fn $method<E: serde::de::Error>(self, text: $type) -> Result<V::Value, E> {
            self.charge_text::<E>(text.len())?;
            self.inner.$method(text)
        })*
    };
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Metered<'_, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.expecting(f)
    }

    visit_scalars!(visit_bool: bool, visit_i8: i8, visit_i16: i16, visit_i32: i32, visit_i64: i64,
        visit_i128: i128, visit_u8: u8, visit_u16: u16, visit_u32: u32, visit_u64: u64,
        visit_u128: u128, visit_f32: f32, visit_f64: f64, visit_char: char);
    visit_texts!(visit_str: &str, visit_borrowed_str: &'de str, visit_string: String,
        visit_bytes: &[u8], visit_borrowed_bytes: &'de [u8], visit_byte_buf: Vec<u8>);

    fn visit_none<E: serde::de::Error>(self) -> Result<V::Value, E> {
        self.inner.visit_none()
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<V::Value, E> {
        self.inner.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        self.inner.visit_some(Metered::new(inner, self.budget))
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        self.inner
            .visit_newtype_struct(Metered::new(inner, self.budget))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, inner: A) -> Result<V::Value, A::Error> {
        self.inner.visit_seq(MeteredSeq {
            inner,
            budget: self.budget,
            elements: 0,
            capacity: 0,
        })
    }

    fn visit_map<A: MapAccess<'de>>(self, inner: A) -> Result<V::Value, A::Error> {
        self.inner.visit_map(MeteredMap {
            inner,
            budget: self.budget,
            entries: self.entries,
            count: 0,
            key_size: 0,
        })
    }

    fn visit_enum<A: EnumAccess<'de>>(self, inner: A) -> Result<V::Value, A::Error> {
        self.inner.visit_enum(Metered::new(inner, self.budget))
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Metered<'_, S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, inner: D) -> Result<S::Value, D::Error> {
        self.inner.deserialize(Metered::new(inner, self.budget))
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for MeteredSeq<'_, A> {
    type Error = A::Error;

    /// Charges an element when it has been read and before the vector grows for it.
    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        let seed = Metered::new(seed, self.budget);
        let element = self.inner.next_element_seed(seed)?;
        if element.is_some() {
            let size = size_of::<S::Value>();
            if self.elements == self.capacity {
                let more = self.capacity.max(first_capacity(size));
                charge::<A::Error>(self.budget, more.saturating_mul(size))?;
                self.capacity += more;
            }
            self.elements += 1;
        }
        Ok(element)
    }

    fn size_hint(&self) -> Option<usize> {
        self.inner.size_hint()
    }
}

/// Returns the capacity of a vector with one element of this size.
fn first_capacity(size: usize) -> usize {
    match size {
        0 | 1 => 8,
        2..=1024 => 4,
        _ => 1,
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for MeteredMap<'_, A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        if !self.entries {
            // The name of a field.
            return self.inner.next_key_seed(seed);
        }
        self.key_size = size_of::<S::Value>();
        self.inner.next_key_seed(Metered::new(seed, self.budget))
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        let value = self
            .inner
            .next_value_seed(Metered::new(seed, self.budget))?;
        let entry = self.key_size + size_of::<S::Value>();
        if self.entries && entry > 0 {
            if self.count.is_multiple_of(NODE_ENTRIES) {
                charge::<A::Error>(self.budget, NODE_CAPACITY * entry + NODE_OVERHEAD)?;
            }
            self.count += 1;
        }
        Ok(value)
    }

    fn size_hint(&self) -> Option<usize> {
        self.inner.size_hint()
    }
}

impl<'de, 'm, A: EnumAccess<'de>> EnumAccess<'de> for Metered<'m, A> {
    type Error = A::Error;
    type Variant = Metered<'m, A::Variant>;

    fn variant_seed<S: DeserializeSeed<'de>>(
        self,
        seed: S,
    ) -> Result<(S::Value, Self::Variant), A::Error> {
        let (name, variant) = self.inner.variant_seed(seed)?;
        Ok((name, Metered::new(variant, self.budget)))
    }
}

impl<'de, A: VariantAccess<'de>> VariantAccess<'de> for Metered<'_, A> {
    type Error = A::Error;

    fn unit_variant(self) -> Result<(), A::Error> {
        self.inner.unit_variant()
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, A::Error> {
        self.inner
            .newtype_variant_seed(Metered::new(seed, self.budget))
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, A::Error> {
        self.inner
            .tuple_variant(len, Metered::fields(visitor, self.budget))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        self.inner
            .struct_variant(fields, Metered::fields(visitor, self.budget))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::BTreeMap;

    use k8s_openapi::api::core::v1::{Container, EnvVar, Pod, PodSpec};
    use serde::de::DeserializeOwned;
    use serde::{Deserialize, Serialize};
    use serde_json::{Value, json};

    use super::*;

    struct Counted {
        taken: Cell<usize>,
        limit: usize,
    }

    impl Budget for Counted {
        fn take(&self, bytes: usize) -> bool {
            let taken = self.taken.get() + bytes;
            let fits = taken <= self.limit;
            if fits {
                self.taken.set(taken);
            }
            fits
        }
    }

    fn read<T: DeserializeOwned>(json: &str, limit: usize) -> (serde_json::Result<T>, usize) {
        let budget = Counted {
            taken: Cell::new(0),
            limit,
        };
        let mut text = serde_json::Deserializer::from_str(json);
        let read = T::deserialize(Metered::new(&mut text, &budget));
        (read, budget.taken.get())
    }

    /// All the forms of serde's data model that JSON can have.
    #[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
    struct Forms {
        texts: Vec<String>,
        pair: (u8, char),
        optional: Option<Box<Self>>,
        unit: Vec<()>,
        map: BTreeMap<String, f64>,
        choices: Vec<Choice>,
        wrapped: Wrapped,
        #[serde(flatten)]
        rest: BTreeMap<String, Value>,
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    enum Choice {
        Unit,
        New(u64),
        Tuple(bool, i64),
        Struct { name: String },
    }

    #[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
    struct Wrapped(i32);

    #[test]
    fn values_are_the_same_as_without_a_budget() {
        let forms = Forms {
            texts: vec!["a".into(), "\u{1F600}\n".into()],
            pair: (1, 'ü'),
            optional: Some(Box::default()),
            unit: vec![(), ()],
            map: [("one".to_owned(), 1.5)].into(),
            choices: vec![
                Choice::Unit,
                Choice::New(u64::MAX),
                Choice::Tuple(true, i64::MIN),
                Choice::Struct { name: "n".into() },
            ],
            wrapped: Wrapped(-1),
            rest: [("other".to_owned(), json!({"a": [null, {"b": 1}]}))].into(),
        };
        let text = serde_json::to_string(&forms).unwrap();
        assert_eq!(read::<Forms>(&text, usize::MAX).0.unwrap(), forms);
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(read::<Value>(&text, usize::MAX).0.unwrap(), value);
        for wrong in [r#"{"texts": [1]}"#, r#"{"texts""#, "[]"] {
            let without = serde_json::from_str::<Forms>(wrong).unwrap_err();
            let with = read::<Forms>(wrong, usize::MAX).0.unwrap_err();
            assert_eq!(with.to_string(), without.to_string());
        }
    }

    /// Compares the charge with the allocations of vectors and maps.
    #[test]
    fn charge_is_at_least_what_is_allocated_and_not_much_more() {
        let within = |what: &str, charged: usize, allocated: usize| {
            let range = allocated..=2 * allocated;
            assert!(
                range.contains(&charged),
                "{what}: {charged} for {allocated}"
            );
        };
        for count in [1, 4, 5, 100, 1000] {
            let containers = vec!["{}"; count].join(",");
            let text = format!(r#"{{"spec": {{"containers": [{containers}]}}}}"#);
            let (pod, charged) = read::<Pod>(&text, usize::MAX);
            let containers = pod.unwrap().spec.unwrap().containers.capacity();
            within("containers", charged, containers * size_of::<Container>());
            let (variables, charged) =
                read::<Vec<EnvVar>>(&json!(vec![json!({}); count]).to_string(), usize::MAX);
            let capacity = variables.unwrap().capacity();
            within("variables", charged, capacity * size_of::<EnvVar>());
            let (_, charged) =
                read::<Value>(&json!(vec![json!({"": 0}); count]).to_string(), usize::MAX);
            let leaf = 11 * (size_of::<String>() + size_of::<Value>());
            within("maps", charged, count * leaf);
        }
        // A map of many entries has at least five in each node.
        let entries: BTreeMap<String, Value> =
            (0..10_000).map(|i| (format!("{i:05}"), json!(0))).collect();
        let (_, charged) = read::<Value>(&serde_json::to_string(&entries).unwrap(), usize::MAX);
        let entry = size_of::<String>() + size_of::<Value>();
        assert!(charged >= 10_000 * entry * 11 / 5, "{charged}");
        let (_, charged) = read::<Value>(&json!("x".repeat(10_000)).to_string(), usize::MAX);
        assert_eq!(charged, 10_000);
    }

    #[test]
    fn value_is_abandoned_at_the_first_refused_charge() {
        const LIMIT: usize = 1 << 20;
        let spec = |field: &str, element: &str| {
            format!(r#"{{"{field}": [{}]}}"#, vec![element; 100_000].join(","))
        };
        for text in [
            spec("containers", "{}"),
            spec("volumes", "{}"),
            spec("containers", r#"{"env": [{}, {}]}"#),
            spec("tolerations", r#"{"key": "k"}"#),
        ] {
            let (read, taken) = read::<PodSpec>(&text, LIMIT);
            let error = read.unwrap_err().to_string();
            assert!(error.contains("memory of the review"), "{error}");
            assert!(taken <= LIMIT, "{taken}");
        }
        // Fields that are not read cost nothing.
        assert_eq!(read::<Wrapped>("1", LIMIT).1, 0);
        let (ignored, taken) = read::<PodSpec>(&spec("unknown", "{}"), LIMIT);
        assert_eq!((ignored.is_ok(), taken), (true, 0));
    }
}
