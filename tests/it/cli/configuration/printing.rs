//! The printed configuration, which reads back as the same configuration.

use std::path::Path;

use super::effective;
use rlaas_testkit::TempDir;

#[test]
fn printed_configuration_reads_back() {
    let dir = TempDir::new();
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/rules.yaml");
    let out = effective(&["--config", &example.display().to_string()], &[]);
    let file = dir.write("printed.yaml", &out).display().to_string();
    let again = effective(&["--config", &file], &[]);
    let without_origin = |text: &str| -> Vec<String> {
        text.lines().map(|line| line.split("  #").next().unwrap_or(line).to_owned()).collect()
    };
    assert_eq!(without_origin(&again), without_origin(&out));
}

#[test]
fn printed_text_of_any_kind_reads_back() {
    let dir = TempDir::new();
    let texts = [
        "#1",
        "a #1",
        "a: b",
        "a:",
        "it's",
        "\"q\"",
        "[x]",
        "[x, y]",
        "{x}",
        "*",
        "a*",
        "&a",
        "!t",
        "%",
        "@",
        "`",
        "|",
        ">",
        "007",
        "1e3",
        "0x1F",
        "60s",
        "true",
        "No",
        "~",
        "null",
        "",
        " a ",
        "- a",
        "? x",
        "a,b",
        "a\nb\tc",
        "\u{85}\u{2028}\u{feff}x",
        "é",
        "\\*",
        "\\n",
        "[",
        "]",
        "---",
    ];
    let json = |value: &str| serde_json::to_string(value).expect("JSON");
    let rule = |(number, text): (usize, &&str)| {
        let (one, list) = (json(text), json(&format!("{text},")));
        format!(
            "  - {{name: r{number}, endpoint: {one}, limit: 1, window: 1s, match: {{user_id: [{one}, \
             {list}], attributes: {{{one}: {one}, a.b: x, 'c[0]': z}}}}}}\n"
        )
    };
    let rules: String = texts.iter().enumerate().map(rule).collect();
    let file = dir.write("rules.yaml", &format!("rules:\n{rules}")).display().to_string();
    let settings = ["store.redis.key-prefix=007", "server.listen=[::1]:0"];
    let settings: Vec<&str> = settings.iter().flat_map(|of| ["--set", of]).collect();
    let out = effective(&[&["--config", &*file], &settings[..]].concat(), &[]);
    let printed = dir.write("printed.yaml", &out).display().to_string();
    let again = effective(&["--config", &printed], &[]);
    let without_origin = |text: &str, origins: &[&str]| -> Vec<String> {
        let strip = |line: &str| {
            let cut = origins.iter().find_map(|of| line.strip_suffix(&format!("  # {of}")));
            cut.unwrap_or(line).to_owned()
        };
        text.lines().map(strip).collect()
    };
    assert_eq!(
        without_origin(&again, &[&printed]),
        without_origin(
            &out,
            &[&file, "default", "command line", "default: memory store, and no rule uses api_key",]
        ),
    );
    assert!(out.contains("endpoint: 'a #1'  #"), "{out}");
}
