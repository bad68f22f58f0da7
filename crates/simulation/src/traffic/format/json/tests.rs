//! The scanner, compared with `serde_json`.

use proptest::prelude::*;
use serde_json::Value;

use super::super::FieldValues;
use super::JsonParser;

fn json() -> impl Strategy<Value = Value> {
    let text = prop_oneof!["[ -~]{0,6}", "\\PC{0,4}", "[\"\\\\/\n\t\u{1}-]{1,3}"];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        text.prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[abc]|a\\.b|é\"", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// Returns a value as its field has it.
fn expected(value: Option<&Value>) -> Option<String> {
    let text = match value? {
        Value::Null => return None,
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    Some(text).filter(|text| !text.is_empty() && text != "-")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn values_are_those_of_serde_json(a in json(), b in json()) {
        let value = serde_json::json!({"a": a, "b": [b]});
        let paths = ["a", "a.b", "a[1]", "a.a.c", "b[0]", "b[0].a", "b[0].\"a.b\"", "b[0].\"é\\\"\""];
        let pointers = ["/a", "/a/b", "/a/1", "/a/a/c", "/b/0", "/b/0/a", "/b/0/a.b", "/b/0/é\""];
        let parser = JsonParser::new(&paths.map(Some)).expect("paths");
        let mut found = FieldValues::default();
        found.clear(paths.len());
        parser.parse(value.to_string().as_bytes(), &mut found).expect("JSON");
        for (index, pointer) in pointers.into_iter().enumerate() {
            // A pointer does not tell a key from an index.
            let at = value.pointer(pointer).filter(|_| index != 2 || value["a"].is_array());
            let text = found.get(index).map(|value| String::from_utf8_lossy(value).into_owned());
            prop_assert_eq!(text, expected(at), "{}", pointer);
        }
    }

    #[test]
    fn what_serde_json_reads_is_read(value in json(), cut in any::<prop::sample::Index>(), by in any::<u8>()) {
        let mut text = serde_json::json!({"a": value}).to_string().into_bytes();
        let place = cut.index(text.len());
        text[place] = by;
        let parser = JsonParser::new(&[Some("a")]).expect("a path");
        let mut found = FieldValues::default();
        found.clear(1);
        let is_object = serde_json::from_slice::<serde_json::Map<String, Value>>(&text).is_ok();
        let is_read = parser.parse(&text, &mut found).is_ok();
        prop_assert!(is_read || !is_object, "{}", text.escape_ascii());
    }
}
