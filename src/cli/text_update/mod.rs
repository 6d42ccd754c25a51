//! Changes values in the text of a file and leaves everything else: comments, quotes, blank lines, the layout.
//!
//! JSON is changed by the syntax tree of its parser (`json`), YAML by its text (`yaml`).
//!
//! **Invariants:** the new text is read again. If it does not have exactly the values that were asked for, there is no new
//! text. Nor is there one if a comment is lost that is of nothing that was removed or replaced.

mod json;
mod yaml;

use std::{
    path::Path,
    time::{Duration, Instant},
};

use serde_json::Value;
use similar::{Algorithm, DiffOp, capture_diff_slices_deadline};

use super::document;

/// How long the search for the elements of a list that stay may take; then fewer of them stay.
const DIFF_TIME_MAX: Duration = Duration::from_secs(1);

/// A text with these values of its documents.
///
/// # Errors
/// When its layout can't be kept.
pub(super) fn update(text: &str, path: &Path, wanted: &[Value]) -> Result<String, String> {
    let bare = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mark = &text[..text.len() - bare.len()];
    let is_dos = bare.contains("\r\n") && bare.matches('\n').count() == bare.matches("\r\n").count();
    let new = if document::is_taken_for_json(bare, path) {
        json::update(bare, wanted)?
    } else if is_dos {
        // To readers of YAML, the end of a line is the same either way.
        yaml::update(&bare.replace("\r\n", "\n"), wanted)?.replace('\n', "\r\n")
    } else {
        yaml::update(bare, wanted)?
    };
    let read = document::read(&new, path).map_err(|error| format!("it would no longer be read{error}"))?;
    let is_wanted = read.len() == wanted.len()
        && read.iter().zip(wanted).all(|(read, wanted)| document::is_same(&read.value, wanted));
    if is_wanted { Ok(format!("{mark}{new}")) } else { Err("its layout can't be kept".into()) }
}

/// What becomes of elements of a list.
enum Pair {
    /// The old element stays at the place of the new one.
    Both(usize, usize),
    Old(usize),
    /// A new element, before the old element of this number.
    New(usize, usize),
}

/// Which elements stay: those that are equal, and of those between them as many as there are on both sides.
fn pairs(now: &[String], wanted: &[Value]) -> Vec<Pair> {
    let wanted: Vec<String> = wanted.iter().map(Value::to_string).collect();
    let mut all = Vec::new();
    let until = Instant::now() + DIFF_TIME_MAX;
    for op in capture_diff_slices_deadline(Algorithm::Myers, now, &wanted, Some(until)) {
        let (old, new) = (op.old_range(), op.new_range());
        if let DiffOp::Equal { .. } | DiffOp::Replace { .. } = op {
            all.extend(old.clone().zip(new.clone()).map(|(old, new)| Pair::Both(old, new)));
        }
        let both = old.len().min(new.len());
        all.extend((old.start + both..old.end).map(Pair::Old));
        all.extend((new.start + both..new.end).map(|place| Pair::New(old.end, place)));
    }
    all
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Map, json};

    use super::{yaml::flow, *};
    use concord_formats::yaml::write_exact;

    fn changed(text: &str, path: &str, change: impl FnOnce(&mut Vec<Value>)) -> String {
        let mut values: Vec<Value> =
            document::read(text, Path::new(path)).unwrap().into_iter().map(|one| one.value).collect();
        change(&mut values);
        update(text, Path::new(path), &values).unwrap_or_else(|error| panic!("{error}: {values:?}\n{text}"))
    }

    const TEXT: &str = "# limits of customers
config_definition_key: limits   # the definition
config_key: acme

data:
  # as agreed
  plan: 'pro'  # not gold
  quota: {requests: 1000, burst: [1, 2]} # per minute
  # notes of
  # two lines
  note: |
    # no comment
    two
  regions:
    # first
    - eu   # Europe
    - name: us
      weight: 2
  empty:
# the end
---
config_definition_key: limits
config_key: globex
data: {plan: free}
";

    #[test]
    fn comments_and_layout_stay() {
        assert_eq!(changed(TEXT, "f.yaml", |_| ()), TEXT);
        let new = changed(TEXT, "f.yaml", |all| {
            let data = &mut all[0]["data"];
            data["plan"] = "gold".into();
            data["quota"]["requests"] = 2000.into();
            data["quota"]["burst"][1] = json!(7.0);
            data["note"] = "# no comment\nthree\n".into();
            data["regions"][1]["weight"] = 3.into();
            data["empty"] = "no".into();
            all[1]["data"]["plan"] = "pro".into();
        });
        let expected = TEXT
            .replace("'pro'", "gold")
            .replace("1000, burst: [1, 2]", "2000, burst: [1, 7.0]")
            .replace("    two\n", "    three\n")
            .replace("weight: 2", "weight: 3")
            .replace("empty:", "empty: \"no\"")
            .replace("{plan: free}", "{plan: pro}");
        assert_eq!(new, expected);
    }

    #[test]
    fn members_and_elements_come_and_go_with_their_comments() {
        let new = changed(TEXT, "f.yaml", |all| {
            let data = all[0]["data"].as_object_mut().unwrap();
            data.shift_remove("note");
            data["quota"] = json!({"requests": 1});
            data["regions"] = json!(["de", "eu", {"name": "us", "weight": 2, "zones": ["a"]}]);
            data.insert("more".into(), json!({"a": [1], "text": "x\ny\n"}));
        });
        let expected = TEXT
            .replace("  # notes of\n  # two lines\n  note: |\n    # no comment\n    two\n", "")
            .replace("{requests: 1000, burst: [1, 2]}", "{requests: 1}")
            .replace("    # first\n    - eu", "    - de\n    # first\n    - eu")
            .replace("      weight: 2\n", "      weight: 2\n      zones:\n        - a\n")
            .replace("# the end\n", "  more:\n    a:\n      - 1\n    text: |\n      x\n      y\n# the end\n");
        assert_eq!(new, expected);
    }

    const SECTIONS: &str = "# begin
config_key: acme
data:
  # of a
  a: 1 # one
    # more of a

  # --- section ---

  # of b
  b: |  # agreed with legal
    text
  # below b

  c: # why
    # of x
    x: {w: 1} # w
    # in c
  # behind c

# Owners: all
";

    #[test]
    fn comments_that_are_of_no_member_stay() {
        let without = |names: &[&str]| {
            changed(SECTIONS, "f.yaml", |all| {
                let data = all[0]["data"].as_object_mut().unwrap();
                names.iter().for_each(|name| drop(data.shift_remove(*name)));
            })
        };
        let a = "  # of a\n  a: 1 # one\n    # more of a\n\n";
        let b = "  # of b\n  b: |  # agreed with legal\n    text\n";
        let c = "  c: # why\n    # of x\n    x: {w: 1} # w\n    # in c\n";
        let gone =
            |parts: &[&str]| parts.iter().fold(SECTIONS.to_owned(), |text, part| text.replacen(part, "", 1));
        assert_eq!(without(&["a"]), gone(&[a]));
        assert_eq!(without(&["b"]), gone(&[b]));
        assert_eq!(without(&["c"]), gone(&[c]));
        assert_eq!(without(&["a", "b"]), gone(&[a, b]));
        assert_eq!(without(&["b", "c"]), gone(&[b, c]));
        let new = changed(SECTIONS, "f.yaml", |all| {
            let data = &mut all[0]["data"];
            data["b"] = "other\ntext\n".into();
            data["c"]["x"] = json!({"w": 1, "z": 2});
            data["c"]["more"] = 3.into();
            data["d"] = 4.into();
        });
        let expected = SECTIONS
            .replace("    text\n", "    other\n    text\n")
            .replace("{w: 1} # w\n", "{w: 1, z: 2} # w\n    more: 3\n")
            .replace("  # behind c", "  d: 4\n  # behind c");
        assert_eq!(new, expected);
        let new = changed(SECTIONS, "f.yaml", |all| {
            all[0]["data"]["b"] = 2.into();
            all[0]["data"]["c"] = 3.into();
        });
        let expected = SECTIONS
            .replace("|  # agreed with legal\n    text", "2  # agreed with legal")
            .replace(c, "  c: 3 # why\n");
        assert_eq!(new, expected);
    }

    #[test]
    fn where_a_comment_would_be_lost_there_is_no_new_text() {
        let text = "a: {\n  b: 1, # one\n  # of c\n  c: '# no comment' }\n# end";
        let same = changed(text, "f.yaml", |all| all[0]["a"]["b"] = 2.into());
        assert_eq!(same, format!("{}\n", text.replace("b: 1", "b: 2")));
        let failed = update(text, Path::new("f.yaml"), &[json!({"a": {"b": 1}})]).unwrap_err();
        assert_eq!(failed, "the comment in line 2 would be lost");
        // Nobody wants them in a value that is no collection.
        assert_eq!(update(text, Path::new("f.yaml"), &[json!({"a": 1})]).unwrap(), "a: 1\n# end\n");
    }

    #[test]
    fn a_list_may_be_at_the_column_of_its_name() {
        let text = "required:\n# the first\n- plan # why\n- -1\nproperties: {}\nrows:\n- - 1\n  - 2\n- a: 1\n  b: 2\n";
        let new = changed(text, "f.yaml", |all| {
            all[0]["required"] = json!(["plan", -1, "size"]);
            all[0]["rows"] = json!([[1, 3], {"a": 1, "b": 4}]);
        });
        let expected =
            text.replace("- -1\n", "- -1\n- size\n").replace("  - 2\n", "  - 3\n").replace("b: 2", "b: 4");
        assert_eq!(new, expected);
    }

    #[test]
    fn a_name_in_brackets_may_stand_alone() {
        let text = "quota: {x: 1, a}\nnext: {b: {c}, \"d\" : 2}\n";
        let new = changed(text, "f.yaml", |all| {
            all[0]["quota"]["x"] = 2.into();
            all[0]["next"]["d"] = 3.into();
        });
        assert_eq!(new, text.replace("x: 1", "x: 2").replace(": 2}", ": 3}"));
        let mut value = document::read(text, Path::new("f.yaml")).unwrap().remove(0).value;
        value["quota"]["a"] = 7.into();
        assert!(update(text, Path::new("f.yaml"), &[value]).is_err());
    }

    #[test]
    fn lines_end_as_they_did() {
        let dos = |text: &str| text.replace('\n', "\r\n");
        let new = changed(&dos("a: 1 # one\nb: |\n  x\n  y\n"), "f.yaml", |all| {
            all[0]["a"] = 2.into();
            all[0]["c"] = json!(["z"]);
        });
        assert_eq!(new, dos("a: 2 # one\nb: |\n  x\n  y\nc:\n  - z\n"));
    }

    #[test]
    fn json_keeps_its_comments() {
        let text =
            "// why\n{\n  \"a\": 1, // one\n  \"b\": [1, 2, /* three */ 3],\n  \"c\": {\"d\": true}\n}\n";
        let new = changed(text, "f.json", |all| {
            all[0]["a"] = json!("x");
            all[0]["b"] = json!([2, 3, 4]);
            all[0]["c"]["e"] = json!([]);
        });
        assert!(new.starts_with("// why\n{\n  \"a\": \"x\", // one\n"), "{new}");
        assert!(new.contains("/* three */ 3"), "{new}");
    }

    #[test]
    fn comments_of_json_go_where_their_members_go() {
        let text = "{\n  // of a\n  \"a\": 1, // one\n\n  // of b\n  // and more\n  \"b\": [2], /* two */\n  \
                    // section\n\n  \"c\": {\"url\": \"http://c\", // c\n    // in c\n    \"d\": 4} // three\n  // end\n}\n";
        let without = |name: &str| {
            changed(text, "f.json", |all| drop(all[0].as_object_mut().unwrap().shift_remove(name)))
        };
        assert_eq!(without("a"), text.replace("  // of a\n  \"a\": 1, // one\n", ""));
        assert_eq!(without("b"), text.replace("\n  // of b\n  // and more\n  \"b\": [2], /* two */\n", ""));
        let c = without("c");
        assert!(c.contains("// section") && c.contains("// end") && !c.contains("in c"), "{c}");
        // Another order, and a new member.
        let new = changed(text, "f.json", |all| {
            let Value::Object(members) = &all[0] else { panic!() };
            let mut members: Map<String, Value> = members.clone().into_iter().rev().collect();
            members["b"] = json!([2, 3]);
            members.insert("z".into(), json!(null));
            all[0] = members.into();
        });
        assert!(new.contains("  // of b\n  // and more\n  \"b\": [2, 3], /* two */\n"), "{new}");
        assert!(new.contains("  // of a\n  \"a\": 1, // one\n"), "{new}");
        assert!(
            new.contains("// section") && new.contains("// end") && new.contains("} // three\n")
                || new.contains("}, // three\n"),
            "{new}"
        );
        let text = "[1, /* two */ 2,\n// three\n3 // 3\n]";
        let new = update(text, Path::new("f.json"), &[json!([1, 3])]).unwrap();
        assert!(new.ends_with("// three\n3 // 3\n]") && !new.contains("two"), "{new}");
        assert_eq!(update(text, Path::new("f.json"), &[json!([1, 2])]).unwrap(), "[1, /* two */ 2\n]");
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            (0..30).prop_map(Value::from),
            "[a-z:# -]{0,4}".prop_map(Value::from),
            "([ab:# -]{1,3}\n){1,3}[ab]{0,2}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::vec(("[a-e]|a: #b", inner), 0..4)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    fn any_record() -> impl Strategy<Value = Value> {
        prop::collection::vec(("[a-f]", any_value()), 1..5)
            .prop_map(|members| Value::Object(members.into_iter().collect()))
    }

    proptest! {
        #[test]
        fn any_value_can_take_the_place_of_any_other(one in any_record(), other in any_record(), layout in 0..6) {
            let (text, path) = match layout {
                0 => (write_exact(&one), "f.yaml"),
                // Comments behind all lines that can have one.
                1 => {
                    let lines = write_exact(&one);
                    let is_plain = !lines.contains('|');
                    let end = if is_plain { " # c\n" } else { "\n" };
                    (format!("# begin\n{}# end\n", lines.replace('\n', end)), "f.yaml")
                }
                2 => (format!("{} # c\n", flow(&one)), "f.yaml"),
                // Comments above all lines that can have one.
                3 => {
                    let lines = write_exact(&one);
                    let is_plain = !lines.contains('|');
                    let above = |line: &str| format!("{}# c\n{line}\n", " ".repeat(line.len() - line.trim_start().len()));
                    (if is_plain { lines.lines().map(above).collect() } else { lines }, "f.yaml")
                }
                4 => (format!("{one:#}\n").replace('\n', " // c\n"), "f.json"),
                _ => (format!("{one:#}"), "f.json"),
            };
            let new = update(&text, Path::new(path), std::slice::from_ref(&other));
            prop_assert!(new.is_ok(), "{new:?}\n{text}\nto {other}");
            if layout == 1 {
                prop_assert!(new.unwrap().starts_with("# begin\n"));
            }
        }
    }
}
