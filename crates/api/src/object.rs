//! Objects that are read from objects only.
//!
//! A derived reader would also take a list of a struct's fields in their order, which nobody means
//! and which would turn a mistake into silence.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// A value that was an object.
struct Object<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Reader<T> {
            type Value = Object<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Object)
            }
        }

        deserializer.deserialize_map(Reader(PhantomData))
    }
}

/// An object, or nothing.
pub(crate) fn one<'de, T, D>(deserializer: D) -> Result<Option<T>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    Ok(Option::<Object<T>>::deserialize(deserializer)?.map(|object| object.0))
}

/// A list of objects, or nothing.
pub(crate) fn list<'de, T, D>(deserializer: D) -> Result<Option<Vec<T>>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    let objects = Option::<Vec<Object<T>>>::deserialize(deserializer)?;
    Ok(objects.map(|objects| objects.into_iter().map(|object| object.0).collect()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use crate::request::{CreateSession, SubmitInput};

    #[test]
    fn lists_of_fields_are_no_objects() {
        for bad in [
            r#"{"policy": []}"#,
            r#"{"policy": [{}, "batch"]}"#,
            r#"{"policy": "none"}"#,
            r#"{"policy": {"auto_continue": [true]}}"#,
        ] {
            let error = serde_json::from_str::<CreateSession>(bad).unwrap_err();
            assert!(error.to_string().contains("expected an object"), "{bad}: {error}");
        }
        let bad = r#"{"content": [["text", "hi"]]}"#;
        assert!(serde_json::from_str::<SubmitInput>(bad).is_err());
        let good = r#"{"policy": {"auto_continue": {"enabled": false}}}"#;
        let policy = serde_json::from_str::<CreateSession>(good).unwrap().policy.unwrap();
        assert_eq!(policy.auto_continue.unwrap().enabled, Some(false));
        for none in ["{}", r#"{"policy": null}"#] {
            assert_eq!(serde_json::from_str::<CreateSession>(none).unwrap().policy, None);
        }
        let good = r#"{"content": [{"type": "text", "text": "hi"}]}"#;
        assert_eq!(serde_json::from_str::<SubmitInput>(good).unwrap().content.unwrap().len(), 1);
    }
}
