//! The report as JUnit XML.

use rlaas_testkit::TempDir;

use super::{RULES, test_in};

/// Returns the names of the elements with their attributes, and asserts that each is closed.
fn elements(xml: &str) -> Vec<String> {
    let xml = xml.strip_prefix("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n").expect("a head");
    let (mut open, mut found) = (Vec::new(), Vec::new());
    for part in xml.split('<').skip(1) {
        let (tag, text) = part.split_once('>').expect("a tag ends");
        assert!(!text.contains(['>', '"']), "{text}");
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name.to_owned()));
            continue;
        }
        let name = tag.split(' ').next().expect("a name");
        if !tag.ends_with('/') {
            open.push(name.to_owned());
        }
        found.push(tag.trim_end_matches('/').to_owned());
    }
    assert!(open.is_empty(), "{open:?}");
    found
}

/// Replaces the times, which differ from run to run.
fn without_times(element: &str) -> String {
    let Some((before, rest)) = element.split_once(" time=\"") else { return element.to_owned() };
    let (time, after) = rest.split_once('"').expect("a quote");
    assert!(time.parse::<f64>().is_ok_and(|time| time < 60.0), "{element}");
    format!("{before}{after}")
}

#[test]
fn results_are_written_as_junit() {
    let dir = TempDir::new();
    dir.write("rules.yaml", RULES);
    dir.write("a&b.yaml", "config: rules.yaml
cases:
  - { name: 'waits <1s> & \"more\"', steps: [{ check: { user_id: \"\\e]]>\", resource: /pay }, expect: denied }] }
  - { name: passes, steps: [{ check: { user_id: a, resource: /pay } }] }
");
    dir.write(
        "c.yaml",
        "config: rules.yaml
cases: [{ name: passes, steps: [{ check: { user_id: a, resource: /pay } }] }]
",
    );
    let report = dir.path("junit.xml");
    let option = report.display().to_string();
    let tested = test_in(&dir, &["a&b.yaml", "c.yaml"], &["--junit", &option]);
    assert_eq!((tested.code, tested.errors.as_str()), (1, ""), "{}", tested.out);
    let xml = std::fs::read_to_string(&report).expect("a report");
    let folder = dir.path("").display().to_string();
    let xml = xml.replace(&format!("{}/", folder.trim_end_matches('/')), "");
    let found: Vec<String> = elements(&xml).iter().map(|of| without_times(of)).collect();
    assert_eq!(
        found,
        [
            r#"testsuites name="rlaas test" tests="3" failures="1" errors="0" skipped="0""#,
            r#"testsuite name="a&amp;b.yaml" tests="2" failures="1" errors="0" skipped="0""#,
            r#"testcase name="waits &lt;1s&gt; &amp; &quot;more&quot;" classname="a&amp;b.yaml" file="a&amp;b.yaml" line="3""#,
            r#"failure message="line 3: steps[0] at 0s" type="failed""#,
            r#"testcase name="passes" classname="a&amp;b.yaml" file="a&amp;b.yaml" line="4""#,
            r#"testsuite name="c.yaml" tests="1" failures="0" errors="0" skipped="0""#,
            r#"testcase name="passes" classname="c.yaml" file="c.yaml" line="2""#,
        ]
    );
    assert!(xml.contains("    denied: expected true, got false\n"), "{xml}");
    assert!(!xml.contains('\u{1b}'));
}

#[test]
fn a_report_that_cannot_be_written_is_an_error_before_anything_runs() {
    let dir = TempDir::new();
    dir.write("rules.yaml", RULES);
    dir.write(
        "t.yaml",
        "config: rules.yaml
cases: [{ name: passes, steps: [{ check: { user_id: a, resource: /pay } }] }]
",
    );
    let tested = test_in(&dir, &["t.yaml"], &["--junit", "/nonexistent/junit.xml"]);
    assert_eq!((tested.code, tested.out.as_str()), (64, ""));
    assert_eq!(tested.errors, "rlaas: --junit: No such file or directory (os error 2)\n");
}
