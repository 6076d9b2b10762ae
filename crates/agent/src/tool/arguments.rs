//! Reading what a model wrote as arguments. Strict: what is not understood is refused with a text
//! that lets the model do better.

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::ToolSpec;

/// Parses the arguments of a call of `spec`.
///
/// `T` must refuse unknown fields.
pub(super) fn parse<T: DeserializeOwned>(spec: &ToolSpec, arguments: &Value) -> Result<T, String> {
    if !arguments.is_object() {
        return Err(refusal(spec, "they must be a JSON object"));
    }
    serde_path_to_error::deserialize(arguments).map_err(|error| {
        let at = error.path().to_string();
        let what = error.into_inner().to_string();
        refusal(spec, &if at == "." { what } else { format!("`{at}`: {what}") })
    })
}

/// The text for a call whose arguments are no good.
pub(super) fn refusal(spec: &ToolSpec, what: &str) -> String {
    let mut text = format!("bad arguments for {}: {what}. Nothing was done. It takes:", spec.name);
    let required: Vec<&str> = spec.parameters["required"]
        .as_array()
        .map(|names| names.iter().filter_map(Value::as_str).collect())
        .unwrap_or_default();
    for (name, schema) in spec.parameters["properties"].as_object().into_iter().flatten() {
        let kind = schema["type"].as_str().unwrap_or("value");
        let need = if required.contains(&name.as_str()) { "required" } else { "optional" };
        text.push_str(&format!("\n- {name} ({kind}, {need})"));
    }
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use everturn_core::Effect;
    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(deny_unknown_fields)]
    struct Arguments {
        path: String,
        limit: Option<u32>,
    }

    fn spec() -> ToolSpec {
        ToolSpec {
            name: "look".to_owned(),
            description: String::new(),
            parameters: json!({
                "type": "object",
                "properties": {"path": {"type": "string"}, "limit": {"type": "integer"}},
                "required": ["path"],
            }),
            effect: Effect::Read,
        }
    }

    #[test]
    fn every_refusal_names_what_is_wrong_and_what_is_taken() {
        for (arguments, part) in [
            (json!({}), "missing field `path`"),
            (json!({"path": 3}), "`path`: invalid type: integer `3`, expected a string"),
            (json!({"path": "a", "limit": "9"}), "`limit`: invalid type"),
            (json!({"path": "a", "limit": -1}), "`limit`: invalid value"),
            (json!({"path": "a", "limt": 1}), "unknown field `limt`"),
            (json!(["a"]), "JSON object"),
            (Value::Null, "JSON object"),
        ] {
            let text = parse::<Arguments>(&spec(), &arguments).unwrap_err();
            assert!(text.contains(part), "{text}");
            assert!(text.contains("- path (string, required)"), "{text}");
            assert!(text.contains("- limit (integer, optional)"), "{text}");
        }
    }

    #[test]
    fn an_optional_argument_may_be_null() {
        let read: Arguments = parse(&spec(), &json!({"path": "a", "limit": null})).unwrap();
        assert_eq!(read, Arguments { path: "a".to_owned(), limit: None });
    }
}
